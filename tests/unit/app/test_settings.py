"""One schema for file, flags, screen and docs."""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path

import msgspec
import pytest
from tests.support.manual import render_manual

from sapo_desktop import cli, settings
from sapo_desktop.cli import VERBS, build_parser
from sapo_desktop.dashboard.look import choose_glyphs
from sapo_desktop.errors import UsageError
from sapo_desktop.settings import editing, flags
from sapo_lab.schema import ArmConditions
from sapo_swarm.config import MOST_ROUNDS, RENAMED, RunConfig, settings_of_today
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.node.governor.rules import ResourceLimits

ROOT = Path(__file__).resolve().parents[3]


def typed(*arguments: str) -> argparse.Namespace:
    sub = argparse.ArgumentParser()
    flags.add_run_flags(sub)
    return sub.parse_args(arguments)


def test_a_flag_wins_only_if_it_was_typed() -> None:
    base = settings.settings_from_tables({"run": {"rounds": 7, "group_size": 4}}, "test")
    config = flags.run_config(base, typed("--group-size", "6"))
    assert (config.rounds, config.group_size) == (7, 6)


def test_new_refuses_a_precision_that_no_engine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    assert cli.run_command_line(["new", "pr", "--base", "starter", "--precision", "foo"]) == 2
    assert "There is no precision 'foo'. Known: 4bit, " in capsys.readouterr().err
    assert not list((tmp_path / "data" / "models").glob("*"))
    for precision in ("float32", "4bit-float32"):
        assert flags.run_config(settings.Settings(), typed("--precision", precision)).precision == precision


def test_a_model_that_always_reasons_has_room_for_it_unless_a_limit_is_typed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen2ForCausalLM"]}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    config = tmp_path / "tokenizer_config.json"
    for template, tokens in (("{{ messages[0].content }}<think>\n", 1024), ("{{ messages[0].content }}", 96)):
        config.write_text(json.dumps({"chat_template": template}))
        asked = ("--model", str(tmp_path))
        assert flags.run_config(settings.Settings(), typed(*asked)).max_new_tokens == tokens
        assert flags.run_config(settings.Settings(), typed(*asked, "--max-new-tokens", "50")).max_new_tokens == 50


def test_a_file_that_was_written_reads_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    settings.write_setting(path, "run.tasks", "bf, arc_1d")
    settings.write_setting(path, "limits.pause_on_battery", "false")
    found = settings.load_settings(path)
    assert found.run.tasks == ("bf", "arc_1d")
    assert found.limits.pause_on_battery is False


def test_a_refused_change_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    settings.write_setting(path, "run.rounds", "5")
    before = path.read_text()
    with pytest.raises(UsageError, match=r"run\.rounds"):
        settings.write_setting(path, "run.rounds", "-1")
    assert path.read_text() == before


@pytest.mark.parametrize("key", [field.key for field in settings.setting_fields() if "number" in field.kind])
def test_inf_is_refused_for_every_number_setting(tmp_path: Path, key: str) -> None:
    for value in ("inf", "nan"):
        with pytest.raises(UsageError, match=key):
            settings.write_setting(tmp_path / "config.toml", key, value)
    assert not list(tmp_path.iterdir())


def test_limits_follow_the_file_and_survive_a_broken_one(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    limits = settings.LiveLimits(path, ResourceLimits())
    assert limits() == ResourceLimits()
    settings.write_setting(path, "limits.max_celsius", "70")
    assert limits().max_celsius == 70
    path.write_text("[limits\n")
    assert limits().max_celsius == 70
    path.unlink()
    assert limits() == ResourceLimits()


def test_resetting_a_key_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    settings.write_setting(path, "run.rounds", "5")
    settings.write_setting(path, "run.group_size", "4")
    assert settings.remove_setting(path, "run.rounds").run.rounds == 0
    assert settings.read_tables(path) == {"run": {"group_size": 4}}


def test_every_setting_says_what_it_does() -> None:
    silent = [f.key for f in settings.setting_fields() if not f.help]
    assert silent == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_that_can_be_printed(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser(verb).parse_args([verb, "--help"])
    assert ended.value.code == 0
    assert "usage: sapo-desktop" in capsys.readouterr().out


def test_every_choice_of_glyphs_is_one_that_the_dashboard_knows() -> None:
    (glyphs,) = (f for f in settings.setting_fields() if f.key == "ui.glyphs")
    assert len(glyphs.choices) == 3
    for choice in glyphs.choices:
        assert choose_glyphs(choice).full


def test_the_manual_in_the_docs_is_the_one_the_code_makes() -> None:
    """Mend it with: python -m tests.support.manual > docs/manual.md"""
    assert (ROOT / "docs" / "manual.md").read_text("utf-8") == render_manual()


def test_a_renamed_key_keeps_comments_and_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        "# mine\n[person]\nname = 'Ada'  # not own_groups\n\n[run]\n# a few\n own_groups = 4 # groups\nrounds = 3\n"
    )
    assert settings.load_settings(path).run.local_groups == 4
    assert path.read_text() == (
        "# mine\n[person]\nname = 'Ada'  # not own_groups\n\n[run]\n# a few\n local_groups = 4 # groups\nrounds = 3\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "run.own_groups = 4\n",
        "run = {own_groups = 4}\n",
        "[run]\nown_groups = 3\nlocal_groups = 4\n",
        "[run]\nlocal_groups = 4\nown_groups = 3\n",
    ],
)
def test_a_renamed_key_is_found_however_it_is_written_and_the_name_of_today_wins(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    assert settings.load_settings(path).run.local_groups == 4
    assert settings.read_tables(path) == {"run": {"local_groups": 4}}
    assert "own_groups" not in path.read_text()


def test_a_removed_key_leaves_the_file_with_one_sentence_and_the_rest_of_the_file_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "config.toml"
    path.write_text("# mine\n[limits]\nnice = 7  # low\nslow_fan_rpm = 3000.0\npause_lid_closed = true\n")
    assert settings.load_settings(path).limits == ResourceLimits(nice=7)
    assert path.read_text() == "# mine\n[limits]\nnice = 7  # low\n"
    assert "there is no limits.pause_lid_closed any more, there is no limits.slow_fan_rpm any more" in caplog.text
    path.write_text("[node]\nmetrics_port = 9464\n[limits]\nnice = 7  # low\n")
    assert settings.load_settings(path).limits == ResourceLimits(nice=7)
    assert path.read_text() == "[limits]\nnice = 7  # low\n"
    path.write_text("limits = {slow_fan_rpm = 3000.0, nice = 7}\n")
    assert settings.load_settings(path).limits == ResourceLimits(nice=7)
    assert settings.read_tables(path) == {"limits": {"nice": 7}}


def test_no_removed_key_is_a_setting_of_today() -> None:
    removed = {f"{section}.{name}" for section, names in settings._REMOVED.items() for name in names}
    assert not removed & {field.key for field in settings.setting_fields()}


def test_a_renamed_key_counts_where_the_file_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[run]\nown_groups = 4\n")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert settings.load_settings(path).run.local_groups == 4
    assert path.read_text() == "[run]\nown_groups = 4\n"
    assert "still has the old keys" in caplog.text


def test_every_renamed_setting_has_a_name_of_today() -> None:
    assert set(RENAMED.values()) <= set(RunConfig.__struct_fields__)
    assert not set(RENAMED) & set(RunConfig.__struct_fields__)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("run.temperature", "run.temperature: that is no number. Allowed: number, more than 0, at most 4."),
        ("run.group_size", "run.group_size: that is no whole number. Allowed: whole number, 2 to 64."),
        ("limits.pause_on_battery", "limits.pause_on_battery: that is neither true nor false. Allowed: true, false."),
    ],
)
def test_what_cannot_be_meant_is_said_in_plain_words(tmp_path: Path, key: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        settings.write_setting(tmp_path / "config.toml", key, "warm")
    assert str(refused.value) == said


def test_a_base_and_a_theme_that_are_not_there_are_not_set_and_a_base_counts_for_new_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    assert cli.run_command_line(["config", "set", "run.model", str(tmp_path)]) == 2
    assert "has no config.json" in capsys.readouterr().err
    assert cli.run_command_line(["config", "set", "ui.theme", "sapo-drak"]) == 2
    assert "Did you mean 'sapo-dark'?" in capsys.readouterr().err
    assert cli.run_command_line(["config", "reset"]) == 2
    assert "sapo-desktop config reset KEY" in capsys.readouterr().err
    assert not (tmp_path / "config.toml").exists()
    for theme in ("sapo-light", "nord"):
        assert cli.run_command_line(["config", "set", "ui.theme", theme]) == 0
    assert cli.run_command_line(["config", "set", "run.model", "starter-1m"]) == 0
    assert "Make one: sapo-desktop new NAME" in capsys.readouterr().err


def test_names_that_a_registry_has_are_chosen_and_not_typed(tmp_path: Path) -> None:
    choices = {row.key: row.choices for row in editing.setting_rows(tmp_path / "config.toml")}
    assert "maxrl" in choices["run.algorithm"]
    assert "library" in choices["run.preset"]
    assert "reward_guided" in choices["run.sampling"]


@pytest.mark.parametrize("schema", [RunConfig, ResourceLimits, CoordinatorSettings, ArmConditions])
def test_every_whole_number_has_bounds(schema: type[msgspec.Struct]) -> None:
    """Else it is stored as it was typed, and nothing can count so far."""
    numbers = [field for field in settings.schema_fields(schema) if field.kind.startswith("whole number")]
    assert numbers
    assert [field.key for field in numbers if not re.search(r", [\d,]+ to [\d,]+\Z", field.kind)] == []


@pytest.mark.parametrize("key", ["rounds", "eval_every", "checkpoint_every", "keep_groups", "keep_checkpoints", "seed"])
def test_a_number_beyond_all_reason_is_refused_with_its_bounds(key: str) -> None:
    with pytest.raises(UsageError, match=rf"^run\.{key}: that is too large\. Allowed: whole number, \d to [\d,]+\.$"):
        settings.config_with_setting(RunConfig(), f"run.{key}", "99999999999999999999")


def test_a_stored_number_from_before_there_was_a_bound_becomes_the_bound() -> None:
    stored = {**msgspec.to_builtins(RunConfig()), "rounds": 10**12, "keep_groups": 10**20, "keep_checkpoints": 10**20}
    config = msgspec.convert(settings_of_today(stored), RunConfig)
    assert (config.rounds, config.keep_groups, config.keep_checkpoints) == (MOST_ROUNDS, MOST_ROUNDS, 1_000_000)
    assert config.seed == RunConfig().seed
