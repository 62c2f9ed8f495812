"""Steps of examples and rounds of practice as a person reads them, in every place, before and after a rollback."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from tests.support.scripted_feed import SILO
from tests.unit.app.test_examples_words import STARTED, STEP, after
from tests.unit.app.test_status_verb import STATUS
from tests.unit.node.test_examples_rules import old_round

import sapo_desktop
from sapo_desktop import cli
from sapo_desktop.commands.models.models import _table
from sapo_desktop.commands.nodes.control import describe_status
from sapo_desktop.commands.nodes.node import ConsoleReporter
from sapo_desktop.dashboard.look import UNICODE
from sapo_desktop.dashboard.screens.models import compare
from sapo_desktop.dashboard.screens.models.screen import column_header, model_details, model_row
from sapo_desktop.dashboard.screens.rollouts.detail import group_details
from sapo_desktop.dashboard.state import DashboardState, apply_event
from sapo_desktop.dashboard.widgets.frame import status_summary
from sapo_desktop.dashboard.widgets.panels import now_panel
from sapo_desktop.dashboard.widgets.plot import Axis, axis_ticks
from sapo_desktop.linear import facts
from sapo_desktop.paths import Home
from sapo_desktop.services.against_base import describe_practice
from sapo_desktop.services.models import going_back
from sapo_desktop.services.models.checkpoints import select_weights
from sapo_desktop.services.models.exports.card import record_of, render_model_card
from sapo_desktop.services.models.screen.actions import HomeModels
from sapo_desktop.services.models.shelf import history, store
from sapo_desktop.services.models.shelf.overview import load_overview
from sapo_swarm.config import RunConfig
from sapo_swarm.events import CheckpointSaved, Evaluated, Event, GroupRecorded, Phase, StateChanged
from sapo_swarm.node.journal import Journal
from sapo_swarm.node.training_count import TrainingCount, TrainingCounts

PRACTICE = old_round(seconds={"generate": 2.0})
MEASURED = Evaluated(
    round=2, temperature=1.0, items=100, pass_at_1=0.76, low=0.7, high=0.82, delta=None, delta_low=None, delta_high=None,
    tasks=(), seconds=1.0,
)  # fmt: skip
BACK = CheckpointSaved(round=6, weights="w", parent="p", optimizer=False, bytes=1, reason="rollback", restored=3)
LIFE: tuple[Event, ...] = (
    STARTED,
    *(msgspec.structs.replace(STEP, round=number) for number in (0, 1)),
    MEASURED,
    *(msgspec.structs.replace(PRACTICE, round=number) for number in (2, 3, 4)),
    BACK,
    msgspec.structs.replace(STARTED, round=6, examples_rounds=2, changed=("temperature 1 -> 0.8",)),
    msgspec.structs.replace(PRACTICE, round=6),
    msgspec.structs.replace(MEASURED, round=7, pass_at_1=0.767),
)
"""Two steps of examples, three rounds of practice, back to the first of them, one more round."""
TRAINED = "2 steps of examples and 2 rounds of practice"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> store.Model:
    """A model with that life, and a checkpoint of every number that was saved."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    made = store.create_model_folder(Home.find(), "bikes", RunConfig(model="starter-1m"))
    journal = Journal(made.folder / "journal.db")
    journal.append(LIFE)
    journal.close()
    for number in (0, 2, 3, 5, 6, 7):
        (made.folder / "checkpoints" / f"round-{number:06d}").mkdir(parents=True)
    return store.read_model(made.folder)


def folded(*events: Event) -> DashboardState:
    state = DashboardState()
    for event in (*LIFE, *events):
        state = apply_event(state, event)
    return state


def test_the_header_the_panel_and_the_log_count_the_same_round() -> None:
    running = StateChanged(time=1.0, state="running", sentence="Working on round 3")
    state = folded(running)
    assert status_summary(state, 2.0)[1] == "Round 2 done"
    assert "round 2 done of 10" in now_panel(state, 0.0, 100, 10, UNICODE).plain
    busy = folded(running, Phase(time=2.0, round=7, phase="generate", fraction=0.1, eta_s=1.0, detail="Generating"))
    assert status_summary(busy, 2.0)[1] == "Round 3 · Generating"
    log = [line.text for line in state.log]
    assert any(text.startswith("r opened after round 1: ") for text in log), "the round that the rollback went back to"
    assert any("76.0 % after step 2 of examples" in text for text in log)
    assert any("76.7 % after round 2" in text for text in log)
    assert facts.round_sentence(state.round or PRACTICE, state.counts).startswith("Round 2: ")


def test_the_list_of_models_and_its_column_count_steps_and_rounds_separately(model: store.Model) -> None:
    overview = load_overview(model)
    (line,) = _table([overview])
    assert f"  {TRAINED}  " in line
    head, row = column_header(100).plain, model_row(overview, False, 0.0, 100, UNICODE).plain
    place = head.index("steps")
    assert head[place:].split()[:2] == ["steps", "rounds"]
    assert row[place:].split()[:2] == ["2", "2"]
    details = model_details(overview, 0.0, 100, UNICODE).plain
    assert "after step 2 of examples" in details
    assert "      7  after round 2" in details, "a checkpoint by its number, and what is in it"


def test_the_verbs_name_what_is_in_the_weights(model: store.Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command_line(["models", "show", "bikes"]) == 0
    shown = capsys.readouterr().out
    assert f"trained     {TRAINED}" in shown
    assert "after round 1" in shown, "where the second session began"
    assert cli.run_command_line(["rollback", "bikes"]) == 0
    listed = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:3] for line in listed if line.split()}
    assert rows["checkpoint"] == ["steps", "rounds"]
    assert [rows[number] for number in ("2", "5", "6", "7")] == [["2", "0"], ["2", "3"], ["2", "1"], ["2", "2"]]
    assert "going back to 3" in going_back.saved_reason(going_back.load_kept_states(model)[-2])
    assert select_weights(Home.find(), "bikes", "6").label == "bikes after 2 steps of examples and 1 round of practice"
    assert history.trained_count(model) == TrainingCount(2, 2)


def test_the_status_and_the_end_of_a_run_count_them_separately(tmp_path: Path) -> None:
    status = msgspec.structs.replace(
        STATUS, mode="silo", name="bikes", round=7, rounds_planned=15, trained=TrainingCount(2, 2)
    )
    assert "Model bikes · 2 steps of examples, 2 of 10 rounds of practice done · " in describe_status(status)
    assert "3 rounds done" in describe_status(STATUS), "of a node of an earlier version"
    out = io.StringIO()
    reporter = ConsoleReporter(out, json=False, quiet=False)
    reporter.begin(LIFE[:8])
    for event in LIFE[8:]:
        reporter.show(event)
    reporter.summary(tmp_path)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("r goes on with round 2: ")
    assert any(line.startswith("round    2/10 ") for line in lines)
    assert any(line.startswith("1 round of practice in ") for line in lines)
    assert "Practice: held-out 76.0 % before it, 76.7 % after it: no measurable change." in lines


def test_a_change_by_practice_is_named_where_the_intervals_are_clear_of_each_other() -> None:
    better = msgspec.structs.replace(MEASURED, round=9, pass_at_1=0.95, low=0.9, high=0.98)
    assert describe_practice(MEASURED, better).endswith("95.0 % after it: +19.0 points")


def test_the_card_of_an_export_says_how_many_of_each(model: store.Model) -> None:
    record = record_of("bikes", RunConfig(model="starter-1m"), model.folder / "journal.db", 7)
    card = render_model_card(record, "hf", "Load it.\n", "")
    assert "in 2 steps of imitating right answers, then 2 rounds of practice by grpo on its own rollouts" in card
    assert "measured after round 2, with 95 % intervals" in card
    earlier = record_of("bikes", RunConfig(model="starter-1m"), model.folder / "journal.db", 2)
    assert earlier.trained == TrainingCount(2, 0)


def test_a_chart_names_its_places_as_everything_else_does() -> None:
    counts = TrainingCounts.of(
        [*(msgspec.structs.replace(STEP, round=n) for n in range(19))]
        + [msgspec.structs.replace(PRACTICE, round=n) for n in range(19, 59)]
    )
    axis = Axis(1.0, 59.0, (1.0, 59.0), None, counts)
    labels = [text for _, text in axis_ticks(axis, 60)]
    assert labels[0] == "step 1"
    assert labels[-1] == "40"
    assert "20" in labels
    first = msgspec.structs.replace(LIFE[4], round=2)
    two = history.TrainingHistory(rounds=(STEP, msgspec.structs.replace(STEP, round=1), first), counts=folded().counts)
    lines, _, _ = compare.of_two(("a", two), ("b", two))
    assert [line.series.first_x for line in lines] == [1.0, 1.0], "their first round of practice, whatever came before"


def test_a_group_is_of_the_round_that_the_list_says() -> None:
    event = next(e for e in SILO if isinstance(e, GroupRecorded))
    event = msgspec.structs.replace(event, round=6)
    counts = folded().counts
    assert "  round 2 · " in group_details(event, UNICODE, counts=counts).plain
    assert facts.group_sentence(event, counts).startswith("Round 2, ")


def test_an_opening_in_the_middle_of_the_examples_names_the_step() -> None:
    state = after(4)
    state = apply_event(state, msgspec.structs.replace(STARTED, round=1, examples_rounds=1))
    assert [line.text for line in state.log][-1].startswith("r opened after step 1 of examples: ")


def test_the_menu_of_exports_says_beforehand_what_needs_llama_cpp(
    model: store.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offered(here: bool) -> dict[str, str]:
        monkeypatch.setattr("sapo_desktop.services.models.screen.actions.is_here", lambda _module: here)
        return {choice.label: choice.what for choice in HomeModels(Home.find()).exports(model.record.id)}

    assert "llama.cpp is not installed here, so it is written but not checked" in offered(False)["gguf q8_0"]
    assert "not installed" not in offered(True)["gguf q8_0"]
    assert "not installed" not in offered(False)["hf"]


def test_eval_says_what_the_keys_of_its_json_mean(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.run_command_line(["eval", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for key in ("swapped", "accuracy_share", "maybe_trained_on"):
        assert key in text


def test_sentences_are_english() -> None:
    """A newcomer stumbled over each of these."""
    source = " ".join(path.read_text(encoding="utf-8") for path in Path(sapo_desktop.__file__).parent.rglob("*.py"))
    for stumbling in (
        "do not end where yours would",
        '"the last line"',
        "A node that is training waits",
        '"never: it is part of',
        "there t to chat",
        "what mends the rest",
        '"Aha trail',
        '"a real one"',
    ):
        assert stumbling not in source
