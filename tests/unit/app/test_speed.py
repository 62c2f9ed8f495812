"""Measurements that are kept, and the engine that a run begins with and stays with."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from sapo_backends.common import hardware
from sapo_backends.measure import precision, probe
from sapo_backends.measure.choice import EngineCandidate, EngineMeasurement
from sapo_backends.measure.machine_limits import MachineLimits
from sapo_desktop import settings
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.machine import doctor, engines, speed
from sapo_swarm.config import RunConfig

pytest.importorskip("torch", reason="the torch engine is not installed")

CONFIG = RunConfig(model="starter-1m")
SLOW, FAST = EngineCandidate("torch", "float32", 1), EngineCandidate("torch", "bfloat16", 1)


def figures(*fastest_last: EngineCandidate) -> list[EngineMeasurement]:
    return [
        EngineMeasurement(c, "cpu", c.precision, {1: 10.0, 64: 1000.0 * 2**i}, update=1000.0 * 2**i)
        for i, c in enumerate(fastest_last)
    ]


def run_folder(home: Home, name: str) -> Path:
    folder = home.models / name
    folder.mkdir()
    return folder


def settings_of(config: RunConfig) -> tuple[str, str, int]:
    return config.trainer, config.precision, config.threads


def test_what_was_measured_is_remembered(home: Home) -> None:
    assert speed.load_measurements(home, CONFIG) == []
    assert speed.choose_fastest(home, CONFIG) is None
    speed.save_measurements(home, CONFIG, figures(SLOW, FAST))
    assert speed.load_measurements(home, CONFIG) == figures(SLOW, FAST)
    best = speed.choose_fastest(home, CONFIG)
    assert best is not None
    assert best.candidate == FAST


def test_the_newest_rounds_count_until_another_setting_or_a_bench_makes_the_next_run_another_one(home: Home) -> None:
    assert speed.recent_round_seconds(home, CONFIG) == []
    speed.remember_rounds(home, CONFIG, [9.0] * 30)
    speed.remember_rounds(home, CONFIG, [1.0, 2.0])
    assert speed.recent_round_seconds(home, msgspec.structs.replace(CONFIG, seed=3, rounds=5)) == [
        *[9.0] * 18,
        1.0,
        2.0,
    ]
    other = msgspec.structs.replace(CONFIG, group_size=4)
    assert speed.recent_round_seconds(home, other) == []
    speed.remember_rounds(home, other, [])
    assert speed.recent_round_seconds(home, CONFIG), "a session without a round changes nothing"
    speed.remember_rounds(home, other, [4.0])
    assert (speed.recent_round_seconds(home, other), speed.recent_round_seconds(home, CONFIG)) == ([4.0], [])
    speed.save_measurements(home, other, figures(SLOW))
    assert speed.recent_round_seconds(home, other) == []


def test_measuring_one_candidate_leaves_the_others(home: Home) -> None:
    """A person who tried one setting has not unmeasured the rest."""
    speed.save_measurements(home, CONFIG, figures(SLOW, FAST))
    speed.save_measurements(home, CONFIG, figures(SLOW))
    assert speed.load_measurements(home, CONFIG) == figures(SLOW, FAST)


@pytest.mark.parametrize(
    "change", [{"model": "starter"}, {"method": "lora"}, {"device": "cuda"}, {"model": "nobody/not-here"}]
)
def test_a_measurement_holds_for_its_model_method_and_device_only(home: Home, change: dict[str, str]) -> None:
    speed.save_measurements(home, CONFIG, figures(SLOW, FAST))
    assert speed.load_measurements(home, msgspec.structs.replace(CONFIG, **change)) == []


def test_settings_that_do_not_change_the_speed_share_a_measurement(home: Home) -> None:
    speed.save_measurements(home, CONFIG, figures(SLOW, FAST))
    assert speed.load_measurements(home, msgspec.structs.replace(CONFIG, seed=3, group_size=4, precision="float32"))


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", '{"format": 1}', '{"format": 1, "machine": 3, "entries": {}}'],
)
def test_a_damaged_file_counts_as_none_and_is_replaced(home: Home, content: str) -> None:
    (home.cache / "speed.json").write_text(content)
    assert speed.load_measurements(home, CONFIG) == []
    speed.save_measurements(home, CONFIG, figures(SLOW))
    assert speed.load_measurements(home, CONFIG) == figures(SLOW)


def test_damaged_entries_count_as_none(home: Home) -> None:
    speed.save_measurements(home, CONFIG, figures(SLOW))
    path = home.cache / "speed.json"
    stored = json.loads(path.read_text())
    for junk in (3, {}, {"measured": 3}, {"measured": [{}]}, {"measured": [{"candidate": 3}]}):
        stored["entries"] = dict.fromkeys(stored["entries"], junk)
        path.write_text(json.dumps(stored))
        assert speed.load_measurements(home, CONFIG) == []


def test_another_machines_figures_count_as_none(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    speed.save_measurements(home, CONFIG, figures(SLOW))
    monkeypatch.setattr(hardware, "processor_name", lambda: "Another processor")
    assert speed.load_measurements(home, CONFIG) == []


def test_a_new_run_takes_the_fastest_and_keeps_it(home: Home) -> None:
    """Whatever is measured later, the run goes on with the engine, precision and threads it began with."""
    speed.save_measurements(home, CONFIG, figures(SLOW, FAST))
    folder = run_folder(home, "first")
    assert settings_of(engines.resolve_engine(CONFIG, folder, home)) == ("torch", "bfloat16", 1)
    speed.save_measurements(home, CONFIG, figures(FAST, SLOW))
    assert settings_of(engines.resolve_engine(CONFIG, folder, home)) == ("torch", "bfloat16", 1)
    assert settings_of(engines.stored_config(CONFIG, folder)) == ("torch", "bfloat16", 1)
    assert settings_of(engines.resolve_engine(CONFIG, run_folder(home, "second"), home)) == ("torch", "float32", 1)


def test_a_run_that_began_unmeasured_keeps_the_defaults(home: Home) -> None:
    folder = run_folder(home, "first")
    before = settings_of(engines.resolve_engine(CONFIG, folder, home))
    assert before == (engines.choose_trainer(CONFIG), "auto", 0)
    speed.save_measurements(home, CONFIG, figures(SLOW, FAST))
    assert settings_of(engines.resolve_engine(CONFIG, folder, home)) == before


def test_a_run_of_an_older_version_keeps_the_defaults(home: Home) -> None:
    """It has checkpoints, but nothing says what its open settings meant."""
    speed.save_measurements(home, CONFIG, figures(SLOW, FAST))
    folder = run_folder(home, "old")
    (folder / "checkpoints" / "round-000003").mkdir(parents=True)
    assert settings_of(engines.resolve_engine(CONFIG, folder, home))[1:] == ("auto", 0)


def test_explicit_settings_go_first(home: Home) -> None:
    speed.save_measurements(home, CONFIG, figures(SLOW, FAST))
    config = msgspec.structs.replace(CONFIG, precision="float32", threads=1)
    folder = run_folder(home, "run")
    assert settings_of(engines.resolve_engine(config, folder, home)) == ("torch", "float32", 1)
    wider = msgspec.structs.replace(config, threads=2)
    assert settings_of(engines.resolve_engine(wider, folder, home)) == ("torch", "float32", 2)


def test_the_doctor_tells_whether_there_is_a_measurement_and_how_to_make_one(home: Home) -> None:
    """And what a round will need, before anything is loaded."""
    settings.write_setting(home.settings, "run.model", "starter-1m")
    memory, before = doctor.memory_and_speed_findings(home)
    assert (memory.verdict, memory.what) == ("ok", "memory")
    assert memory.text.startswith("starter-1m: a round of 32 groups of 8 with questions of up to")
    assert (before.verdict, before.text) == (
        "note",
        "starter-1m was not measured here, defaults are used: sapo-desktop bench",
    )
    speed.save_measurements(home, CONFIG, figures(SLOW, FAST))
    _, after = doctor.memory_and_speed_findings(home)
    assert after.verdict == "ok"
    assert after.text.startswith("starter-1m: new runs use torch bfloat16, 1 thread; a round of 256 completions takes")


def test_a_damaged_note_in_a_run_is_named(home: Home) -> None:
    folder = run_folder(home, "run")
    (folder / engines.ENGINE_FILE).write_text("{")
    with pytest.raises(AppError, match=r"engine\.json cannot be read"):
        engines.resolve_engine(CONFIG, folder, home)


def test_a_processor_without_instructions_for_bfloat16_measures_nothing_and_computes_in_float32(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "matrix_unit", lambda: "avx2")
    monkeypatch.setattr(precision, "measure_precisions", lambda *_: pytest.fail("It takes half a minute there."))
    config = msgspec.structs.replace(CONFIG, trainer="torch", device="cpu", threads=1)
    engine = engines.run_builder(config, run_folder(home, "first"), home)(lambda fraction, phrase: None)
    engine.close()
    assert engine.info.precision == "float32"
    assert not speed.precision_seconds(home, config)


def test_the_first_load_of_a_model_measures_its_precision_and_the_run_keeps_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the shipped torch engine: measured once, kept for the run and for the next one."""
    monkeypatch.setattr(hardware, "matrix_unit", lambda: "avx512_bf16")
    config = msgspec.structs.replace(CONFIG, trainer="torch", device="cpu", threads=1)
    folder, said = run_folder(home, "first"), list[str]()
    engine = engines.run_builder(config, folder, home)(lambda fraction, phrase: said.append(phrase))
    seconds = speed.precision_seconds(home, config)
    assert seconds.keys() == {"float32", "bfloat16"}
    assert engine.info.precision == precision.faster_precision(seconds)
    assert engines.stored_config(config, folder).precision == engine.info.precision
    assert any("precision, once" in phrase for phrase in said)
    engine.close()
    said.clear()
    second = engines.run_builder(config, run_folder(home, "second"), home)(lambda fraction, phrase: said.append(phrase))
    second.close()
    assert second.info.precision == engine.info.precision
    assert not any("precision, once" in phrase for phrase in said)


@pytest.mark.parametrize("begun", [True, False])
def test_a_run_with_a_checkpoint_never_changes_its_precision(home: Home, begun: bool) -> None:
    config, folder = msgspec.structs.replace(CONFIG, trainer="torch", device="cpu"), run_folder(home, "run")
    engines.resolve_engine(config, folder, home)
    if begun:
        (folder / "checkpoints" / "round-00000002").mkdir(parents=True)
    speed.remember_precision(home, config, {"float32": 1.0, "bfloat16": 2.0})
    engines.run_builder(config, folder, home)(lambda fraction, phrase: None).close()
    assert engines.stored_config(config, folder).precision == ("auto" if begun else "float32")


def test_a_bench_and_a_first_load_keep_each_others_figures(home: Home) -> None:
    speed.save_measurements(home, CONFIG, figures(SLOW, FAST))
    speed.remember_precision(home, CONFIG, {"float32": 2.0, "bfloat16": 1.0})
    assert len(speed.load_measurements(home, CONFIG)) == 2
    speed.save_measurements(home, CONFIG, figures(FAST, SLOW))
    assert speed.precision_seconds(home, CONFIG) == {"float32": 2.0, "bfloat16": 1.0}


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({}, "auto"),
        ({"float32": 1.0, "bfloat16": 2.0}, "float32"),
        ({"float32": 2.0, "bfloat16": 1.0}, "bfloat16"),
        ({"float32": 1.04, "bfloat16": 1.0}, "float32"),
    ],
)
def test_the_faster_precision_wins_and_a_tie_rounds_less(seconds: dict[str, float], chosen: str) -> None:
    assert precision.faster_precision(seconds) == chosen


def test_a_damaged_precision_counts_as_unmeasured(home: Home) -> None:
    speed.remember_precision(home, CONFIG, {"float32": 1.0})
    file = home.cache / "speed.json"
    file.write_text(file.read_text().replace('{"float32": 1.0}', '"fast"'))
    assert speed.precision_seconds(home, CONFIG) == {}


def test_limits_that_are_measured_again_keep_the_better_figures(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first was on a busy machine, the second found the memory busy."""
    runs = iter([MachineLimits({"float32": 1e10}, 2e10), MachineLimits({"float32": 9e10}, 1e10), MachineLimits()])
    monkeypatch.setattr(probe, "limits_in_child", lambda *_: next(runs))
    assert (
        speed.machine_limits(home, CONFIG)
        == speed.machine_limits(home, CONFIG)
        == MachineLimits({"float32": 1e10}, 2e10)
    )
    better = MachineLimits({"float32": 9e10}, 2e10)
    assert speed.machine_limits(home, CONFIG, again=True) == speed.machine_limits(home, CONFIG) == better
    assert speed.machine_limits(home, CONFIG, again=True) == better  # a child that failed
