"""The results of lab runs that lie beside a report, after the journals are gone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from msgspec.structs import replace

import sapo_lab
from sapo_lab.__main__ import main as cli
from sapo_lab.report.results import load_all
from sapo_lab.report.saved_runs import FILE, legacy_scoring_note, save_runs, with_saved_runs
from sapo_lab.schema import BadExperiment, Experiment, load_experiment, parse_experiment

DOCS = Path(__file__).parents[3] / "docs" / "lab"
EXPERIMENT_OF = {"paper-four-arms-again": "paper-four-arms", "sharing-again": "sharing"}
"""Folders of the docs that are not named after their experiment."""

RUN = {
    "trainer": "fake",
    "model": "fake",
    "tasks": ["basic_arithmetic"],
    "rounds": 2,
    "group_size": 2,
    "max_new_tokens": 4,
    "eval_every": 1,
    "eval_items": 1,
}


def tables(**top: Any) -> dict[str, Any]:
    arms = [{"name": "8-0", "local_groups": 1, "external_groups": 0}, {"name": "1-1", "local_groups": 1}]
    run = {**RUN, "external_groups": 1}
    return {
        "name": "e",
        "nodes": 2,
        "seeds": [1],
        "final_items": 1,
        "final_answers": 1,
        "run": run,
        "arms": arms,
        **top,
    }


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the journals of both arms, seed 1."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "e.toml").write_text(tomli_w.dumps(tables()))
    assert cli(["run", str(folder / "e.toml"), "--out", str(folder)]) == 0
    return folder


def saved(ran: Path, to: Path) -> tuple[Experiment, list[Path]]:
    found = parse_experiment(tables())
    return found, save_runs(load_all(found, ran / "e"), ran / "e", to)


def test_a_report_without_its_journals_says_what_it_said_with_them(ran: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = ["report", str(ran / "e.toml"), "--to", str(tmp_path)]
    assert cli([*report, "--out", str(ran)]) == 0
    before = (tmp_path / "report.md").read_text()
    assert cli([*report, "--out", str(tmp_path / "nothing")]) == 0
    assert (tmp_path / "report.md").read_text() == before
    (tmp_path / FILE).unlink()
    assert cli([*report, "--out", str(tmp_path / "nothing")]) == 2


def test_saved_runs_are_those_of_the_journals_to_seven_digits(ran: Path, tmp_path: Path) -> None:
    found, written = saved(ran, tmp_path)
    assert [path.name for path in written] == [FILE]
    again = with_saved_runs(found, {}, tmp_path)
    for arm, runs in load_all(found, ran / "e").items():
        assert again[arm][0].held_out == runs[0].held_out
        np.testing.assert_allclose(again[arm][0].tokens, runs[0].tokens, rtol=1e-6)
        np.testing.assert_array_equal(np.isnan(again[arm][0].external), np.isnan(runs[0].external))
        assert again[arm][0].cpu_s == runs[0].cpu_s > 0
        (task,) = runs[0].verdicts
        np.testing.assert_array_equal(again[arm][0].verdicts[task], runs[0].verdicts[task])
        assert np.mean(runs[0].verdicts[task]) == runs[0].held_out[-1].pass_at_1


def test_what_is_saved_already_is_not_written_again(ran: Path, tmp_path: Path) -> None:
    saved(ran, tmp_path)
    assert saved(ran, tmp_path)[1] == []


def test_a_finished_journal_counts_before_what_is_saved(ran: Path, tmp_path: Path) -> None:
    found, _ = saved(ran, tmp_path)
    journals = load_all(found, ran / "e")
    assert with_saved_runs(found, journals, tmp_path)["1-1"][0] is journals["1-1"][0]


def test_a_journal_that_goes_on_does_not_touch_what_was_saved_of_a_finished_run(ran: Path, tmp_path: Path) -> None:
    found, (path,) = saved(ran, tmp_path / "to")
    shutil.copytree(ran / "e", tmp_path / "e")
    for done in (tmp_path / "e").glob("*/*/done.json"):
        done.unlink()
    for settings in (tmp_path / "e").glob("*/*/arm.json"):
        settings.write_bytes(b"of another run")
    before = path.read_bytes()
    everything = with_saved_runs(found, load_all(found, tmp_path / "e"), tmp_path / "to")
    assert save_runs(everything, tmp_path / "e", tmp_path / "to") == []
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "changed", [{"final_items": 2}, {"first_item": 900}, {"run": {**RUN, "external_groups": 1, "learning_rate": 1e-3}}]
)
def test_a_run_of_other_settings_is_refused_with_what_to_do(ran: Path, tmp_path: Path, changed: dict[str, Any]) -> None:
    saved(ran, tmp_path)
    with pytest.raises(BadExperiment, match="run with other settings"):
        with_saved_runs(parse_experiment(tables(**changed)), {}, tmp_path)


def test_the_runs_of_an_arm_that_is_gone_stay_in_the_file_and_are_left_out(ran: Path, tmp_path: Path) -> None:
    """The setting that it was about was deleted."""
    saved(ran, tmp_path)
    without = tables()
    del without["arms"][0]
    assert set(with_saved_runs(parse_experiment(without), {}, tmp_path)) == {"1-1"}
    save_runs(load_all(parse_experiment(without), ran / "e"), ran / "e", tmp_path)
    assert set(with_saved_runs(parse_experiment(tables()), {}, tmp_path)) == {"8-0", "1-1"}
    other = tables(name="other", arms=[{"name": "a"}])
    with pytest.raises(BadExperiment, match="no arm"):
        with_saved_runs(parse_experiment(other), {}, tmp_path)


def test_a_report_says_which_runs_the_librarys_rule_judged(ran: Path, tmp_path: Path) -> None:
    """Runs of before the exact rule kept no verdicts."""
    found, _ = saved(ran, tmp_path)
    runs = with_saved_runs(found, {}, tmp_path)
    assert legacy_scoring_note(runs) == ""
    runs["1-1"].append(replace(runs["1-1"][0], seed=2, verdicts={}))
    assert legacy_scoring_note(runs).startswith("The runs of 1-1 (2) were judged by the library's rule")
    assert legacy_scoring_note({"1-1": runs["1-1"][1:]}).startswith("These runs were")


def test_an_arm_may_be_called_and_compared_otherwise(ran: Path, tmp_path: Path) -> None:
    saved(ran, tmp_path)
    changed = tables()
    changed["arms"][1] |= {"title": "1/1", "against": ["8-0"]}
    assert set(with_saved_runs(parse_experiment(changed), {}, tmp_path)) == {"8-0", "1-1"}


@pytest.mark.parametrize("content", [b"", b"\x1f\x8bnonsense", b"{}"])
def test_a_damaged_file_is_named(ran: Path, tmp_path: Path, content: bytes) -> None:
    found, (path,) = saved(ran, tmp_path)
    path.write_bytes(content)
    with pytest.raises(BadExperiment, match=path.name):
        with_saved_runs(found, {}, tmp_path)


OF_OTHER_CODE = {path.parent.name for path in DOCS.glob("*/*.toml")}
"""Folders with an experiment of their own, for the code of an earlier commit."""


@pytest.mark.parametrize("name", sorted({path.parent.name for path in DOCS.glob(f"*/{FILE}")} - OF_OTHER_CODE))
def test_the_saved_runs_in_the_docs_are_those_of_the_experiments_that_ship(name: str) -> None:
    experiment = load_experiment(sapo_lab.list_experiments()[EXPERIMENT_OF.get(name, name)])
    found = with_saved_runs(experiment, {}, DOCS / name)
    assert found
    assert all(run.finished and run.last is not None for runs in found.values() for run in runs)


def test_the_saved_runs_in_the_docs_weigh_less_than_two_megabytes() -> None:
    assert 0 < sum(path.stat().st_size for path in DOCS.glob(f"*/{FILE}")) < 2_000_000
