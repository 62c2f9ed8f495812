"""How the examples phase reads: in the lines of a node, on screen 1 and in the linear mode."""

from __future__ import annotations

import io
import math
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.unit.node.test_examples_rules import AUTO, old_round, read

from sapo_desktop.commands.nodes.node import ConsoleReporter
from sapo_desktop.dashboard.look import UNICODE
from sapo_desktop.dashboard.screens.dashboard import empty_chart_text, reward_lines
from sapo_desktop.dashboard.screens.models.compare import of_one, of_two
from sapo_desktop.dashboard.screens.models.screen import evaluation_rows
from sapo_desktop.dashboard.state import DashboardState, apply_event
from sapo_desktop.dashboard.widgets.chart import heldout_marks, reward_title
from sapo_desktop.dashboard.widgets.held_out import held_out_panel
from sapo_desktop.dashboard.widgets.panels import now_panel
from sapo_desktop.linear import facts
from sapo_desktop.services.against_base import describe_difference
from sapo_desktop.services.models.figures import figure_rows
from sapo_desktop.services.models.shelf.history import TrainingHistory, load_history
from sapo_desktop.services.models.shelf.overview import format_gain
from sapo_swarm.events import (
    BaseAsked,
    Evaluated,
    Event,
    GreedyScore,
    PairedSoFar,
    Phase,
    RunStarted,
    StateChanged,
    settled_evaluations,
)
from sapo_swarm.node.base_trial import no_questions
from sapo_swarm.node.journal import Journal

STARTED = RunStarted(
    run_id="r", mode="silo", model="m", backend="b", device="cpu", precision="float32", method="lora", parameters=1,
    tasks=("t",), algorithm="grpo", group_size=8, local_groups=8, external_groups=0, round=0, rounds_planned=10, seed=0,
    versions={},
)  # fmt: skip
TRIAL = msgspec.structs.replace(
    no_questions(AUTO), plan="examples", sentence="Nothing right in 96 answers yet: examples first, then practice."
)
STEP = old_round(round=0, examples=16, local_groups=0, reward_local=None, loss=1.25, seconds={"examples": 9.0})
READING = msgspec.structs.replace(read(31), sentence="Examples, 1 pass: 31 of 40 right on rows set aside")
SECOND = msgspec.structs.replace(STEP, round=1)
OVER = msgspec.structs.replace(READING, round=2, step=2, over=True)
PRACTICE = old_round(round=2, seconds={"generate": 2.0})
PHASE: tuple[Event, ...] = (STARTED, TRIAL, STEP, READING, SECOND, OVER, PRACTICE)


def after(count: int) -> DashboardState:
    """The dashboard's picture after so many of the events."""
    state = DashboardState()
    for event in PHASE[:count]:
        state = apply_event(state, event)
    return state


def test_a_node_s_lines_count_steps_of_examples_and_rounds_of_practice_apart(tmp_path: Path) -> None:
    out = io.StringIO()
    reporter = ConsoleReporter(out, json=False, quiet=False)
    for event in PHASE:
        reporter.show(event)
    reporter.summary(tmp_path)
    lines = out.getvalue().splitlines()
    assert any("examples first, then practice" in line for line in lines)
    assert any(line.startswith("examples   1  loss 1.250  16 texts") for line in lines)
    assert any(line.startswith("examples   2  31/40 right on rows set aside") for line in lines)
    assert any(line.startswith("round    1/10") for line in lines)
    assert any(line.startswith("Examples: 2 steps in") for line in lines)
    assert any(line.startswith("1 round of practice in") for line in lines)


def test_screen_1_tells_why_and_how_far() -> None:
    def panel(count: int) -> str:
        return now_panel(after(count), 0.0, 100, 10, UNICODE).plain

    assert "examples first" in panel(2)
    assert "examples 1 · right answers are imitated" in panel(3)
    assert "examples 2 · 31 of 40 set aside right" in panel(5)
    assert "round 1 done of 10" in panel(7)


def test_the_chart_draws_how_much_of_the_rows_set_aside_is_right() -> None:
    assert "set aside" not in [line.label for line in reward_lines(after(3))], "nothing was read yet"
    line = reward_lines(after(6))[0]
    assert (line.label, line.share) == ("set aside", True)
    assert [value for _, _, value in line.series.buckets()] == [31 / 40, 31 / 40]


def test_the_chart_has_a_point_after_the_first_step() -> None:
    """What the model gave each token of the right answers, as a geometric mean; practice adds nothing to that line."""
    likely = msgspec.structs.replace(STEP, logprob_local=math.log(0.25))
    state = apply_event(after(2), likely)
    (line,) = (line for line in reward_lines(state) if line.label == "likelihood")
    assert [value for _, _, value in line.series.buckets()] == [pytest.approx(0.25)]
    assert line.share
    state = apply_event(state, PRACTICE)
    (line,) = (line for line in reward_lines(state) if line.label == "likelihood")
    assert len(line.series) == 1


ASKED = BaseAsked(round=1, answered=48, items=144, pass_at_1=0.125, low=0.06, high=0.25, greedy=0.25, seconds=9.0)
RESULT = Evaluated(
    round=15, temperature=1.0, items=144, pass_at_1=0.5, low=0.4, high=0.6, delta=None, delta_low=None, delta_high=None,
    tasks=(), seconds=20.0, base_missing=96, so_far=PairedSoFar(48, 0.125, 0.5, 0.375, 0.25, 0.5),
    greedy=GreedyScore(144, 0.6, 0.5, 0.7, base_missing=96, so_far=PairedSoFar(48, 0.25, 0.65, 0.4, 0.3, 0.5)),
)  # fmt: skip
BASE = msgspec.structs.replace(
    RESULT, round=0, pass_at_1=0.1, low=0.06, high=0.16, base_missing=0, so_far=None, seconds=0.0, belated=True,
    greedy=GreedyScore(144, 0.2, 0.1, 0.3),
)  # fmt: skip
AGAIN = msgspec.structs.replace(
    RESULT, delta=0.4, delta_low=0.3, delta_high=0.5, base_missing=0, so_far=None, seconds=0.0, belated=True,
    greedy=GreedyScore(144, 0.6, 0.5, 0.7, 0.4, 0.3, 0.5),
)  # fmt: skip


def picture(*events: Event) -> DashboardState:
    state = after(7)
    for event in events:
        state = apply_event(state, event)
    return state


def panel(state: DashboardState, height: int = 12) -> str:
    return held_out_panel(state, 0.0, 100, height, UNICODE).plain


def test_how_far_the_untrained_model_is_stands_on_screen_1_and_its_result_so_far_on_the_chart() -> None:
    state = picture(ASKED)
    assert "The untrained model has answered 48 of 144 held-out questions: 12.5 % (95 %: 6.0 to 25.0)" in panel(state)
    (mark,) = heldout_marks(state.figures)
    assert (mark.x, mark.y, mark.low, mark.high) == (0, 0.125, 0.06, 0.25)


def test_a_gain_is_shown_on_what_both_have_answered_and_says_so() -> None:
    text = panel(picture(ASKED, RESULT))
    assert "+37.5 points (95 %: +25.0 to +50.0)" in text
    assert "+40.0 points (95 %: +30.0 to +50.0)" in text
    assert "against the base on the 48 of 144 questions that it has answered so far" in text
    assert "not compared" not in text
    assert describe_difference(RESULT).startswith(
        "+37.5 points against the base on the 48 of 144 questions that it has answered so far (95 %: +25.0"
    )
    assert "so far" in format_gain(RESULT)
    assert "+37.5 so far" in format_gain(RESULT, 30)


def test_the_base_s_result_that_comes_late_takes_no_newer_one_s_place() -> None:
    """It is drawn at round 0, and the result that waited for it is the same point, now compared."""
    state = picture(ASKED, RESULT, BASE, AGAIN)
    assert state.latest == AGAIN
    assert state.base == BASE
    assert picture(ASKED, RESULT, BASE).latest == RESULT
    marks = heldout_marks(state.figures)
    assert [(m.x, m.y) for m in marks] == [(0, 0.1), (15, 0.5)]
    assert state.figures.held_out.best == (15, 0.5)
    assert "so far" not in panel(state)
    assert "+40.0 points" in panel(state)
    events = (*PHASE, ASKED, RESULT, BASE, AGAIN)
    assert settled_evaluations(events) == [BASE, AGAIN]
    assert [row.round for row in figure_rows(events) if row.kind == "held_out"] == [0, 15]


def test_a_node_s_lines_tell_it_too(tmp_path: Path) -> None:
    out = io.StringIO()
    reporter = ConsoleReporter(out, json=False, quiet=False)
    for event in (STARTED, STEP, ASKED, RESULT, BASE, AGAIN):
        reporter.show(event)
    reporter.summary(tmp_path)
    text = out.getvalue()
    assert "The untrained model has answered 48 of 144 held-out questions" in text
    assert "Held-out pass@1: sampled 50.0 %" in text, "not the base's own result, which came last but one"


def test_a_chart_marks_where_the_phase_begins_and_ends() -> None:
    assert [(m.letter, m.round) for m in after(7).moments] == [("E", 0), ("E", 2)]


def test_the_linear_mode_says_it_in_sentences() -> None:
    assert "Examples, step 2: 16 right answers imitated, 9.0 s" in facts.dashboard_facts(after(6), 0.0)
    assert any(line.startswith("Round 1: local reward 0.00") for line in facts.dashboard_facts(after(7), 0.0))


PAUSED = StateChanged(time=1e9, state="paused", sentence="Paused", reason="person")
FINISHED = StateChanged(time=1e9, state="paused", sentence="Finished: 31 of 40 set-aside rows right", reason="done")


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_pause_before_the_examples_are_over_promises_the_examples_first(count: int) -> None:
    text = empty_chart_text(apply_event(after(count), PAUSED), 0.0)
    assert text == "No practice so far: press space and the examples go on first."


@pytest.mark.parametrize(("count", "pause"), [(6, PAUSED), (6, FINISHED), (5, FINISHED)])
def test_a_pause_after_the_examples_promises_practice(count: int, pause: StateChanged) -> None:
    assert empty_chart_text(apply_event(after(count), pause), 0.0).endswith("It follows if you press space.")


def test_after_the_end_of_a_training_no_phase_is_marked_as_in_progress() -> None:
    measuring = Phase(time=5.0, round=2, phase="evaluate", fraction=1.0, eta_s=0.0, detail="Evaluating")
    at_work = apply_event(after(6), measuring)
    assert "▶ evaluate" in now_panel(at_work, 0.0, 100, 10, UNICODE).plain
    rows = now_panel(apply_event(at_work, FINISHED), 0.0, 100, 10, UNICODE).plain
    assert "✓ evaluate" in rows
    assert "▶" not in rows


def history_of(folder: Path, *events: Event) -> TrainingHistory:
    """The history of a model whose journal holds these events."""
    with closing(Journal(folder / "journal.db")) as journal:
        journal.append(events)
    return load_history(folder)


def test_a_model_that_learned_from_examples_alone_has_their_chart_with_its_held_out_results(tmp_path: Path) -> None:
    """The base's result came late, and so did the comparison: each is drawn where the weights were."""
    likely = [msgspec.structs.replace(STEP, round=n, logprob_local=math.log(0.25)) for n in range(32)]
    read = msgspec.structs.replace(OVER, round=32, step=32)
    late = [msgspec.structs.replace(event, round=32) for event in (RESULT, AGAIN)]
    story = history_of(tmp_path, STARTED, TRIAL, *likely, read, late[0], BASE, late[1])
    lines, marks, _ = of_one(story)
    assert [(line.label, line.series.last_x) for line in lines if not line.series.empty] == [
        ("set aside", 32),
        ("likelihood", 32),
    ]
    assert reward_title(lines, "kitchen") == "kitchen, examples: how likely right answers are"
    assert [(mark.x, mark.y) for mark in marks if mark.y is not None] == [(0, 0.1), (32, 0.5)]
    assert [(mark.letter, mark.x) for mark in marks if mark.y is None] == [("E", 0), ("E", 32)]


def test_after_practice_the_chart_of_a_model_is_called_reward_and_shows_the_examples_too(tmp_path: Path) -> None:
    story = history_of(tmp_path, *PHASE)
    lines, _, _ = of_one(story)
    assert [line.label for line in lines] == ["set aside", "likelihood", "local"]
    assert reward_title(lines, "kitchen") == "kitchen: reward"
    assert [line.label for line in of_two(("a", story), ("b", story))[0]] == ["a", "b"], "practice alone is compared"


def test_the_step_of_a_held_out_result_fits_into_a_narrow_panel() -> None:
    steps = [msgspec.structs.replace(STEP, round=n) for n in range(32)]
    state = after(2)
    for event in (*steps, msgspec.structs.replace(AGAIN, round=32, items=137)):
        state = apply_event(state, event)
    lines = {width: held_out_panel(state, 0.0, width, 12, UNICODE).plain.splitlines() for width in (28, 60)}
    assert "137 items, 32 steps" in [line.rstrip() for line in lines[28]]
    assert "137 items, step 32 of examples" in [line.rstrip() for line in lines[60]]


@pytest.mark.parametrize(
    ("width", "gain"),
    [
        (70, "100.0 %, +40.0 (+30.0 to +50.0)"),
        (74, "100.0 % sampled, 60.0 % greedy, +40.0"),
        (120, "100.0 % sampled, 60.0 % greedy, +40.0 points"),
    ],
)
def test_a_held_out_result_of_an_opened_model_stands_on_one_line(width: int, gain: str) -> None:
    """Where it has no room for its unit, the heading above says it."""
    result = msgspec.structs.replace(AGAIN, round=2, pass_at_1=1.0, items=37)
    (row,) = evaluation_rows((result,), after(6).counts, width, UNICODE)
    assert row.plain.startswith("after step 2 of examples")
    assert row.plain.rstrip().endswith(" 37 items")
    assert gain in row.plain
    assert row.cell_length <= width
