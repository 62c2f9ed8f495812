"""`models figures`: what a run did as a table and as JSON lines."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import msgspec
import pytest
from tests.support.node_process import FAKE, sapo
from tests.support.records import evaluation, finished, opened
from tests.support.week_recording import week

from sapo_desktop import cli
from sapo_desktop.paths import Home
from sapo_desktop.services.models.figures import FORMATS, figure_rows
from sapo_desktop.services.models.recording import load_recording
from sapo_desktop.services.models.shelf import store
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Event, GreedyScore, RoundFinished, TaskScore, encode_event
from sapo_swarm.node.journal import Journal

RECORDING = Path(__file__).parents[3] / "assets" / "sapo_assets" / "tour" / "swarm.jsonl"


def recorded(folder: Path, events: list[Event]) -> Path:
    path = folder / "run.jsonl"
    path.write_bytes(b"".join(encode_event(event) + b"\n" for event in events))
    return path


def rounds_recorded() -> list[RoundFinished]:
    return [event for event in load_recording(RECORDING) if isinstance(event, RoundFinished)]


def written(source: Path, target: Path, format_: str, *more: str) -> int:
    return cli.run_command_line(["models", "figures", str(source), "--format", format_, "-o", str(target), *more])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_local_external_and_batch_reward_stay_apart_and_agree_with_the_recording(tmp_path: Path) -> None:
    assert written(RECORDING, tmp_path / "run.csv", "csv") == 0
    with (tmp_path / "run.csv").open(newline="") as file:
        table = [row for row in csv.DictReader(file) if row["kind"] == "round"]
    events = rounds_recorded()
    assert len(table) == len(events) == 250
    assert any(event.reward_external is not None for event in events)
    for row, event in zip(table, events, strict=True):
        assert int(row["round"]) == event.round + 1
        for name in ("local", "external", "batch"):
            told = getattr(event, f"reward_{name}")
            assert row[f"reward/{name}"] == ("" if told is None else str(told)), name


def test_a_held_out_result_has_its_interval_and_its_temperature(tmp_path: Path) -> None:
    warm = msgspec.structs.replace(evaluation(3, 0.25), temperature=0.6)
    run = recorded(tmp_path, [opened(0), evaluation(0), finished(0), finished(1), finished(2), warm])
    assert written(run, tmp_path / "run.out", "jsonl") == 0
    lines = [json.loads(line) for line in (tmp_path / "run.out").read_text().splitlines()]
    base, now = (line for line in lines if line["kind"] == "held_out")
    assert (base["round"], base["held_out_t1/pass_at_1"], base["held_out_t1/low"]) == (0, 0.5, 0.4)
    assert (now["round"], now["held_out_t0.6/pass_at_1"], now["held_out_t0.6/high"]) == (3, 0.25, 0.6)
    assert "held_out_t1/pass_at_1" not in now


def test_the_greedy_part_of_an_evaluation_has_its_own_figures() -> None:
    greedy = GreedyScore(8, 0.75, 0.4, 0.9, 0.25, 0.1, 0.4, tasks=(TaskScore("sums", 8, 0.75, 0.4, 0.9, 1.0, 0.0),))
    event = msgspec.structs.replace(evaluation(3, 0.25), greedy=greedy)
    (row,) = (row for row in figure_rows([opened(0), event]) if row.kind == "held_out")
    assert (row.figures["held_out_t1/pass_at_1"], row.figures["held_out_t0/pass_at_1"]) == (0.25, 0.75)
    assert (row.figures["held_out_t0/delta_low"], row.figures["held_out_t0_task/sums"]) == (0.1, 0.75)


def test_a_folder_of_the_models_name_that_holds_no_journal_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = store.create_model_folder(Home.find(), "kim", RunConfig(model="fake", trainer="fake"))
    journal = Journal(model.folder / "journal.db")
    journal.append([opened(0), finished(0)])
    journal.close()
    (tmp_path / "kim").mkdir()
    monkeypatch.chdir(tmp_path)
    assert written(Path("kim"), tmp_path / "run.csv", "csv") == 0
    assert len((tmp_path / "run.csv").read_text().splitlines()) == 2
    monkeypatch.chdir(model.folder.parent)
    assert written(Path(model.folder.name), tmp_path / "again.csv", "csv") == 0


def test_a_week_is_told_from_its_first_round_and_blocks_say_how_many_rounds_they_cover() -> None:
    found = [row for row in figure_rows(week(groups=0)) if row.kind == "round"]
    assert (found[0].round, found[0].covers) == (1, 1)
    assert sum(row.covers for row in found) == 400_000
    assert any("lowest/reward/local" in row.figures for row in found)


def test_a_round_that_was_done_again_counts_once_and_no_number_is_infinite() -> None:
    again = msgspec.structs.replace(finished(1, reward=0.9), ratio_max=float("inf"))
    found = list(figure_rows([finished(0), finished(1, reward=0.1), again]))
    assert [(row.round, row.figures["reward/local"]) for row in found] == [(1, 0.5), (2, 0.9)]
    assert "update/ratio_max" not in found[1].figures


@pytest.mark.parametrize("format_", FORMATS)
def test_what_exists_is_not_overwritten_without_force(
    tmp_path: Path, format_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "kept"
    target.write_text("mine")
    assert written(RECORDING, target, format_) == 1
    assert "add --force" in capsys.readouterr().err
    assert target.read_text() == "mine"
    assert written(RECORDING, target, format_, "--force") == 0
    assert target.read_text() != "mine"
    assert not list(tmp_path.glob(".kept*"))


def test_the_folders_above_the_file_are_made(tmp_path: Path) -> None:
    assert written(RECORDING, tmp_path / "logs" / "mine" / "run.csv", "csv") == 0
    assert (tmp_path / "logs" / "mine" / "run.csv").is_file()


def test_wrong_places_and_empty_runs_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert written(RECORDING, tmp_path, "csv") == 1
    assert "is a folder" in capsys.readouterr().err
    assert written(recorded(tmp_path, [opened(0)]), tmp_path / "run.csv", "csv") == 1
    assert "has not been trained" in capsys.readouterr().err
    assert cli.run_command_line(["models", "figures", str(RECORDING)]) == 2
    assert "-o figures.csv" in capsys.readouterr().err


def test_a_models_figures_are_those_of_its_journal(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert sapo(home, "node", "--quiet", *FAKE, "--rounds", "2").returncode == 0
    done = sapo(home, "models", "figures", "--format", "jsonl", "-o", str(tmp_path / "run.jsonl"))
    assert done.returncode == 0, done.stderr
    kept = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [line["round"] for line in kept if line["kind"] == "round"] == [1, 2]
