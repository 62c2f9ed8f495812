"""How the examples phase reads: in the lines of a node, on screen 1 and in the linear mode."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
from tests.unit.node.test_examples_rules import AUTO, old_round, read

from sapo_desktop.dashboard.look import UNICODE
from sapo_desktop.dashboard.screens.dashboard import reward_lines
from sapo_desktop.dashboard.state import DashboardState, apply_event
from sapo_desktop.dashboard.widgets.panels import now_panel
from sapo_desktop.linear import facts
from sapo_desktop.services.nodes.report import ConsoleReporter
from sapo_swarm.events import Event, RunStarted
from sapo_swarm.node.base_trial import no_questions

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
    assert any(line.startswith("1 round in") for line in lines)


def test_screen_1_tells_why_and_how_far() -> None:
    def panel(count: int) -> str:
        return now_panel(after(count), 0.0, 100, 10, UNICODE).plain

    assert "examples first" in panel(2)
    assert "examples 1 · right answers are imitated" in panel(3)
    assert "examples 2 · 31 of 40 set aside right" in panel(5)
    assert "round 1 done of 10" in panel(7)


def test_the_chart_draws_how_much_of_the_rows_set_aside_is_right() -> None:
    assert [line.label for line in reward_lines(after(3))] == ["local"], "nothing was read yet"
    line = reward_lines(after(6))[0]
    assert (line.label, line.share) == ("set aside", True)
    assert [value for _, _, value in line.series.buckets()] == [31 / 40, 31 / 40]


def test_a_chart_marks_where_the_phase_begins_and_ends() -> None:
    assert [(m.letter, m.round) for m in after(7).moments] == [("E", 0), ("E", 2)]


def test_the_linear_mode_says_it_in_sentences() -> None:
    assert "Examples, step 2: 16 right answers imitated, 9.0 s" in facts.dashboard_facts(after(6), 0.0)
    assert any(line.startswith("Round 1: local reward 0.00") for line in facts.dashboard_facts(after(7), 0.0))
