"""What a base asks of this machine, told before anything is fetched."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from sapo_backends.checkpoints import hub_cache, locate
from sapo_backends.common import hardware
from sapo_backends.common.round_memory import ModelSize
from sapo_backends.errors import DownloadFailed, ModelNotFound
from sapo_backends.measure import machine_limits
from sapo_backends.measure.choice import RoundWorkload
from sapo_backends.measure.machine_limits import MachineLimits
from sapo_desktop import settings
from sapo_desktop.commands.models import bases
from sapo_desktop.commands.nodes import node
from sapo_desktop.commands.nodes.node import ConsoleReporter
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services import first_run
from sapo_desktop.services.bases import card, recommended, tokens
from sapo_desktop.services.machine import speed
from sapo_swarm.config import RunConfig
from sapo_swarm.protocol import identity

LIMITS = MachineLimits({"float32": 1e11, "bfloat16": 4e11}, 2e10)
HALF_BILLION = ModelSize(494_000_000, 8_800_000, 24, 896, 4864, 128, 151_936)
SMOLLM2 = ModelSize(134_500_000, 4_900_000, 30, 576, 1536, 192, 49_152)
GEMMA = ModelSize(268_100_000, 3_800_000, 18, 640, 2048, 256, 262_144)
STARTER = ModelSize(5_000_000, 5_000_000, 6, 256, 784, 128, 1024)
SMOL = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(speed, "machine_limits", lambda _home, _config: LIMITS)
    return Home(*(tmp_path / name for name in ("config", "data", "cache", "logs", "run")))


def test_the_list_has_a_date_and_every_entry_a_licence_and_a_size() -> None:
    found = recommended.load_recommended_list()
    assert found.date.startswith("20")
    assert len(found.bases) >= 5
    assert [base.bytes for base in found.bases] == sorted(base.bytes for base in found.bases)
    for base in found.bases:
        assert base.license
        assert 2 * base.parameters <= base.bytes <= 3 * base.parameters


def test_a_recommended_base_has_a_card_without_a_network(home: Home) -> None:
    one = card.build_base_card(home, RunConfig(model=SMOL, trainer="torch", device="cpu"))
    said = "\n".join(card.base_card_lines(one))
    assert "135M parameters, apache-2.0" in said
    assert "269 MB of 269 MB (by the list that ships" in said
    assert "a round of 8 groups of 8 with questions of up to" in said
    assert "for 200 rounds of practice (a rough estimate from this machine's limits" in said
    assert "answers     cut at 96 tokens" in said
    assert "answers     cut" not in "".join(
        card.base_card_lines(card.build_base_card(home, RunConfig(model="starter", trainer="torch", device="cpu")))
    )
    assert one.fits
    assert one.hours is not None
    assert one.time is not None
    looks = 1 + 200 // 25
    once = one.time.trial + one.time.examples
    assert 3600 * one.hours == pytest.approx(once + 200 * one.time.round + looks * one.time.evaluation)
    assert min(one.time.trial, one.time.examples, one.time.evaluation) > 0


def test_what_is_too_large_says_what_would_fit(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapo_backends.common.hardware.available_memory", lambda: 1400 << 20)
    one = card.build_base_card(home, RunConfig(model=SMOL, trainer="torch", device="cpu", max_new_tokens=1024))
    assert "--max-new-tokens" not in "".join(card.base_card_lines(one)[:-1])
    assert not one.fits
    assert "too large   " in card.base_card_lines(one)[-1]
    assert "--" in card.base_card_lines(one)[-1]
    assert one.short.endswith("does not fit")


def test_a_model_whose_two_checkpoints_exceed_the_disk_budget_does_not_fit(home: Home) -> None:
    """And a node is not started: nothing is downloaded for it."""
    full = RunConfig(model=SMOL, trainer="torch", device="cpu", method="full", disk_budget_gb=0.5)
    one = card.build_base_card(home, full)
    assert one.short.endswith("does not fit")
    assert "its checkpoints exceed the disk budget" in one.sentence
    told = "too large   2 checkpoints of this model's weights take 1.08 GB"
    assert card.base_card_lines(one)[-1].startswith(told)
    with pytest.raises(UsageError, match="too large: 2 checkpoints"):
        node._tell_what_it_needs(home, full, ConsoleReporter(io.StringIO(), False, True), 0, trained=False)
    for fits in (msgspec.structs.replace(full, method="lora"), msgspec.structs.replace(full, disk_budget_gb=0.0)):
        assert not card.build_base_card(home, fits).over_budget


def test_the_card_counts_the_rounds_that_were_asked_for(home: Home) -> None:
    """The time of a run of ten rounds is no time to two hundred."""
    config = RunConfig(model=SMOL, trainer="torch", device="cpu", rounds=10)
    few, many = (card.build_base_card(home, msgspec.structs.replace(config, rounds=rounds)) for rounds in (10, 0))
    assert any(
        line.startswith("in all") and "for 10 rounds of practice (" in line for line in card.base_card_lines(few)
    )
    assert any("for 200 rounds of practice (" in line for line in card.base_card_lines(many))
    assert few.hours is not None
    assert many.hours is not None
    assert few.hours < many.hours / 5


def test_a_folder_and_a_downloaded_model_have_the_licence_that_they_state(home: Home, tmp_path: Path) -> None:
    """In the front matter of their README, or in a file of its own."""
    folder = Path(shutil.copytree(locate.bundled_model_folder("starter-1m"), tmp_path / "base"))

    def told(model: str = str(folder)) -> tuple[str, str]:
        one = card.build_base_card(home, RunConfig(model=model, trainer="torch", device="cpu"))
        return card.base_card_lines(one)[0].partition("parameters, ")[2], one.license

    assert told() == ("no licence stated", "")
    (folder / "LICENSE").write_text("Do what you like.")
    assert told() == ("a licence of its own", "other")
    (folder / "README.md").write_text("---\nlicense: CC-BY-4.0\n---\n# A model\n")
    assert told() == ("cc-by-4.0", "cc-by-4.0")
    assert told("starter-1m") == ("apache-2.0", "apache-2.0")
    snapshots = hub_cache.repository_folder("owner/name") / "snapshots"
    shutil.copytree(folder, snapshots / "c0")
    hub_cache.update_main_ref("owner/name", "c0")
    assert told("owner/name") == ("cc-by-4.0", "cc-by-4.0")
    (folder / "README.md").write_text(
        "\ufeff---\ntags:\n- x\nlicense: other\nlicense_name: Qwen-Research\n---\n", "utf-8"
    )
    assert told() == ("qwen-research", "qwen-research")
    (folder / "README.md").write_text("---\nlicense:\n- MIT\n---\n")
    assert told() == ("mit", "mit")
    (folder / "README.md").write_text(f"---\nwidget: {'x' * 20_000}\nlicense: MIT\n---\n")
    assert told() == ("mit", "mit")
    (folder / "README.md").write_text("---\nlicense:\nlanguage: en\n---\n")
    assert told() == ("a licence of its own", "other")


def test_the_room_that_reasoning_needs_is_planned_wherever_a_base_is_shown(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """1,024 tokens instead of 96: too much for 2.7 GB."""
    monkeypatch.setattr("sapo_backends.common.hardware.available_memory", lambda: 2560 << 20)
    monkeypatch.setattr(Home, "find", classmethod(lambda _cls: home))
    home.settings.parent.mkdir()
    settings.write_setting(home.settings, "run.trainer", "torch")
    settings.write_setting(home.settings, "run.device", "cpu")
    settings.write_setting(home.settings, "run.precision", "bfloat16")

    def shown() -> tuple[bool, int, bool, str]:
        bases.show_base(home, argparse.Namespace(names=[SMOL], json=True))
        one = json.loads(capsys.readouterr().out)
        bases.list_bases(home, argparse.Namespace(json=True))
        listed = next(row for row in map(json.loads, capsys.readouterr().out.splitlines()) if row["base"] == SMOL)
        return one["fits"], one["memory"]["needed"], listed["fits"], asyncio.run(first_run.wrong_with(SMOL))

    fits, short, listed, wrong = shown()
    assert (fits, listed, wrong) == (True, True, "")
    settings.write_setting(home.settings, "run.thinking", "on")
    fits, long, listed, wrong = shown()
    assert (fits, listed) == (False, False)
    assert "does not fit" in wrong
    assert long > short


def test_a_base_that_is_nowhere_is_a_sentence(home: Home) -> None:
    with pytest.raises(DownloadFailed, match="HF_HUB_OFFLINE forbids"):
        card.build_base_card(home, RunConfig(model="owner/unknown"))
    with pytest.raises(ModelNotFound, match="Did you mean 'starter'"):
        card.build_base_card(home, RunConfig(model="startr"))


def test_an_estimate_grows_with_the_model_and_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (base.size(RunConfig()) for base in recommended.load_recommended_list().bases[::6])
    round_, longer = RoundWorkload(64, 96), RoundWorkload(64, 512)
    first = machine_limits.round_seconds(small, round_, LIMITS, "bfloat16")
    assert first is not None
    for size, work, kind in ((large, round_, "bfloat16"), (small, longer, "bfloat16"), (small, round_, "float32")):
        slower = machine_limits.round_seconds(size, work, LIMITS, kind)
        assert slower is not None
        assert slower > first
    slower = machine_limits.round_seconds(small, round_, LIMITS, "bfloat16", fallback=True)
    assert slower == pytest.approx(1.8 * first)
    assert slower is not None
    states, found = replace(small, state=4_700_000, recurrent=164_000, by_kernels=131_000), list[float]()
    for compiler in ("cc", None):
        monkeypatch.setattr(hardware, "c_compiler", lambda compiler=compiler: compiler)
        found.append(machine_limits.round_seconds(states, round_, LIMITS, "bfloat16", fallback=True) or 0.0)
    assert found[0] > slower + 64 * 96 * 4 * 4 * 4_700_000 / LIMITS.read, "states go through memory"
    assert found[1] > found[0] + 64 * 96 * 6 * 4 * 4_700_000 / LIMITS.read, "more often without compiled kernels"
    assert machine_limits.round_seconds(small, round_, MachineLimits(), "bfloat16") is None


@pytest.mark.parametrize(
    ("size", "unit", "rate", "new_tokens", "seconds"),
    [
        (HALF_BILLION, "avx512_bf16", 411e9, 96, 74.0),
        (HALF_BILLION, "amx_bf16", 2.35e12, 64, 18.9),
        (STARTER, "avx512_bf16", 183e9, 33, 1.72),
    ],
)
def test_an_estimate_is_near_the_rounds_that_were_measured(
    monkeypatch: pytest.MonkeyPatch, size: ModelSize, unit: str, rate: float, new_tokens: int, seconds: float
) -> None:
    """8 x 8 completions at that rate in bfloat16: two of docs/benchmarks/engines.md, and the bundled starter on one thread."""
    monkeypatch.setattr(hardware, "matrix_unit", lambda: unit)
    found = machine_limits.round_seconds(
        size, RoundWorkload(64, new_tokens), MachineLimits({"bfloat16": rate}, 4e10), "bfloat16"
    )
    assert found == pytest.approx(seconds, rel=0.2)


@pytest.mark.parametrize(
    ("size", "rate", "counts", "answers", "step", "generated"),
    [
        (SMOLLM2, 424e9, (81, 47), (3.1, 4.0), 1.77, 0.93),
        (SMOLLM2, 424e9, (80, 32), (5.6, 7.0), 2.42, 1.48),
        (SMOLLM2, 424e9, (61, 34), (9.7, 10.0), 1.68, 1.75),
        (SMOLLM2, 424e9, (85, 31), (24.0, 26.0), 3.18, 5.86),
        (GEMMA, 402e9, (64, 37), (2.8, 3.0), 1.63, 1.05),
        (HALF_BILLION, 410e9, (74, 43), (3.0, 3.0), 3.77, 2.11),
    ],
)
def test_an_estimate_is_near_what_own_tasks_took_on_real_models(
    monkeypatch: pytest.MonkeyPatch,
    size: ModelSize,
    rate: float,
    counts: tuple[int, int],
    answers: tuple[float, float],
    step: float,
    generated: float,
) -> None:
    """Steps of 16.3 examples and 8 x 8 answers of docs/benchmarks/real-tasks.jsonl, within 30 %. counts: tokens of a question,
    and of what all begin with; answers: on average, and of the longest."""
    monkeypatch.setattr(hardware, "matrix_unit", lambda: "avx512_bf16")
    rates = machine_limits.RateEstimator(size, MachineLimits({"bfloat16": rate}, 5e10), "bfloat16")
    (prompt, shared), (answer, longest) = counts, answers
    assert rates.update(shared + 16.3 * (prompt - shared), 16.3 * answer) == pytest.approx(step, rel=0.3)
    work = RoundWorkload(64, answer, True, 8, prompt, shared, longest)
    assert rates.generate(work) == pytest.approx(generated, rel=0.3)


def test_a_token_is_kept_for_its_owner_only_and_forgotten(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_system_keyring", lambda: None)
    assert "readable by you only" in tokens.save_hub_token(home, " hf_abc \n")
    file = home.config / "hub-token.secret"
    assert file.stat().st_mode & 0o777 == 0o600
    assert tokens.load_hub_token(home) == "hf_abc"
    tokens.save_hub_token(home, "")
    assert tokens.load_hub_token(home) is None
    assert not file.exists()
