"""What the panels say: honest wording, and nothing a terminal would obey."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.fixtures.make_recordings import recording

from sapo_desktop.dashboard.look import (
    UNICODE,
    format_count,
    format_memory,
    format_reward_value,
    format_share,
    hanging_indent,
    plain_text,
    shorten_phrases,
    to_ascii,
    wrap_text,
)
from sapo_desktop.dashboard.screens.dashboard import empty_chart_text
from sapo_desktop.dashboard.screens.log import in_order, log_text
from sapo_desktop.dashboard.screens.rollouts import detail as rollouts_detail
from sapo_desktop.dashboard.screens.swarm import screen as swarm_screen
from sapo_desktop.dashboard.state import DashboardState, NodeLink, apply_event, evaluation_sentence
from sapo_desktop.dashboard.widgets import held_out, panels
from sapo_desktop.dashboard.widgets.frame import header_line, status_summary
from sapo_desktop.services.against_base import base_scores
from sapo_swarm.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    ExamplesRead,
    GreedyScore,
    GroupRecorded,
    LogLine,
    Phase,
    RoundFinished,
    RunStarted,
    StateChanged,
    SwarmUpdated,
    TaskScore,
)
from sapo_swarm.node.clock import format_age
from sapo_swarm.node.training_count import ROUNDS_ONLY
from sapo_swarm.types import Group, Peer, Question, Rollout, TaskRef

HOSTILE = "[/bad] [red]\x1b[31m \x1b]52;c;aGk=\x07 \x9b2J \u202egnp.exe \x00 \ud800 ✓"
FORBIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def fold(events: list[Event]) -> DashboardState:
    state = DashboardState()
    for event in events:
        state = apply_event(state, event)
    return state


def run(**changes: Any) -> RunStarted:
    first = next(iter(recording("silo", 1, 1)))
    assert isinstance(first, RunStarted)
    return RunStarted(**{**{name: getattr(first, name) for name in first.__struct_fields__}, **changes})


def evaluated(delta: tuple[float, float, float] | None, pass_at_1: float = 0.2) -> Evaluated:
    mid, low, high = delta or (None, None, None)
    return Evaluated(
        time=1.0,
        round=25,
        temperature=1.0,
        items=400,
        pass_at_1=pass_at_1,
        low=0.1,
        high=0.3,
        delta=mid,
        delta_low=low,
        delta_high=high,
        tasks=(),
        seconds=1.0,
    )


def heldout(event: Evaluated) -> str:
    return held_out.held_out_panel(fold([run(), event]), 0.0, 50, 10, UNICODE).plain


def test_the_held_out_result_of_weights_that_were_left_is_no_longer_shown_as_the_one_of_now() -> None:
    after = evaluated((0.067, 0.046, 0.088))
    back = CheckpointSaved(round=31, weights="w", parent="p", optimizer=False, bytes=1, reason="rollback", restored=10)

    def shown(*events: Event) -> str:
        return held_out.held_out_panel(fold([run(), *events]), 0.0, 50, 10, UNICODE).plain

    assert "+6.7 points" in shown(after)
    assert "+6.7 points" not in shown(after, back)
    assert "+6.7 points" in shown(after, msgspec.structs.replace(back, restored=25))


def test_a_long_path_is_broken_after_a_slash_and_never_in_a_word() -> None:
    path = "/home/kim/.local/share/sapo-desktop/models/helper/exports/round-000039-gguf-same"
    lines = wrap_text(f"Wrote it to {path} (98 MB).", 40)
    assert max(map(len, lines)) <= 40
    assert lines[0] == "Wrote it to"
    assert "".join(lines[1:]).removesuffix(" (98 MB).") == path
    assert all(line.endswith("/") for line in lines[1:-1])


def test_an_interval_that_holds_zero_is_called_no_measurable_change() -> None:
    said = heldout(evaluated((0.012, -0.01, 0.034)))
    assert "no measurable change" in said
    assert "points" not in said


def test_a_gain_is_told_with_its_interval_and_items() -> None:
    said = heldout(evaluated((0.067, 0.046, 0.088)))
    assert "+6.7 points (95 %: +4.6 to +8.8)" in said
    assert "400 items, T=1" in said
    assert "base  13.3 %" in said


def test_a_loss_is_told_as_plainly() -> None:
    assert "-6.7 points (95 %: -8.8 to -4.6)" in heldout(evaluated((-0.067, -0.088, -0.046)))


def test_a_task_whose_score_does_not_come_from_the_question_says_so() -> None:
    tricked = TaskScore("logic", 16, 0.5, 0.3, 0.7, 1.0, 0.0, 0.4)
    honest = TaskScore("sums", 16, 0.5, 0.3, 0.7, 1.0, 0.0, 0.1)
    after = msgspec.structs.replace(evaluated((0.1, 0.05, 0.15)), tasks=(tricked, honest))
    said = heldout(after)
    assert "shortcut: logic" in said
    assert "shortcut: sums" not in said
    assert "shortcut" not in heldout(msgspec.structs.replace(after, round=0)), "an untrained model has learnt none"


def test_the_first_measurement_is_only_a_base() -> None:
    said = heldout(msgspec.structs.replace(evaluated(None), round=0))
    assert said.startswith("base  20.0 %")
    assert "(95 %: 10.0 to 30.0)" in said
    assert "change" not in said


def test_a_trained_model_without_answers_of_the_base_says_so_and_is_not_called_the_base() -> None:
    said = heldout(msgspec.structs.replace(evaluated(None), base_missing=72))
    assert said.startswith("now   20.0 %")
    assert "the base" in said
    assert "has not answered 72 of these questions" in " ".join(said.split())


def test_what_the_base_scored_on_other_questions_stands_beside_no_task() -> None:
    score = TaskScore("sums", 16, 0.5, 0.3, 0.7, 1.0, 0.0)
    later = msgspec.structs.replace(evaluated(None, 0.6), tasks=(score,))
    assert base_scores(later) == {}
    noted = msgspec.structs.replace(score, base=0.25)
    assert base_scores(msgspec.structs.replace(later, tasks=(noted,))) == {"sums": 0.25}


def test_before_any_measurement_the_panel_says_what_it_waits_for() -> None:
    assert "No measurement yet" in held_out.held_out_panel(DashboardState(), 0.0, 50, 5, UNICODE).plain


def test_a_round_without_unequal_rewards_says_that_there_was_nothing_to_learn_from() -> None:
    finished = next(event for event in recording("silo", 2, 1) if isinstance(event, RoundFinished))
    fields = {name: getattr(finished, name) for name in finished.__struct_fields__}
    state = fold([run(), RoundFinished(**{**fields, "nonzero_groups": 0, "loss": 0.0})])
    assert "nothing to learn from" in panels.now_panel(state, 0.0, 70, 8, UNICODE).plain


@pytest.mark.parametrize(("truncated", "told"), [(12, False), (13, True)])
def test_more_than_a_fifth_of_the_answers_cut_off_is_told_on_the_screen(truncated: int, told: bool) -> None:
    done = next(e for e in recording("silo", 3, 1) if isinstance(e, RoundFinished))
    state = fold([run(), msgspec.structs.replace(done, truncated=truncated, completions=64)])
    assert ("% cut off · loss" in panels.now_panel(state, 0.0, 60, 8, UNICODE).plain) == told


@pytest.mark.parametrize("drawn", [0, 1])
def test_a_pool_is_called_empty_only_when_nothing_came_from_it(drawn: int) -> None:
    finished = next(event for event in recording("swarm", 2, 1) if isinstance(event, RoundFinished))
    fields = {name: getattr(finished, name) for name in finished.__struct_fields__}
    state = fold([run(mode="swarm"), RoundFinished(**{**fields, "external_groups": drawn, "external_wanted": 4})])
    told = "no external group had unequal rewards" in panels.now_panel(state, 0.0, 70, 8, UNICODE).plain
    assert told == (drawn == 0)


def test_the_header_tells_the_reason_and_its_age() -> None:
    state = fold([run(), StateChanged(time=10.0, state="paused", sentence="Paused: on battery · r to run anyway 1 h")])
    line = header_line(state, 22.0, 120, 1, UNICODE).plain
    assert line.endswith("‖ Paused: on battery · r to run anyway 1 h · 12 s")
    assert "silo · starter" in line


def test_a_lost_node_outranks_everything_in_the_header() -> None:
    state = apply_event(
        fold([run(), StateChanged(time=1.0, state="running", sentence="Training")]),
        NodeLink(False, "The node went away", 5.0),
    )
    assert status_summary(state, 9.0)[1:] == ("The node went away", 4.0)


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_the_header_never_outgrows_its_line(width: int) -> None:
    state = fold([run(model="m" * 80), StateChanged(time=1.0, state="paused", sentence="why " * 60)])
    assert len(header_line(state, 90.0, width, 1, UNICODE).plain) <= width


def test_waiting_for_the_first_round_says_what_goes_on() -> None:
    assert "Waiting for the node" in empty_chart_text(DashboardState(), 0.0)
    running = fold([run(), StateChanged(time=1.0, state="running", sentence="Training")])
    assert empty_chart_text(running, 0.0) == "Waiting for the first round: generating 64 rollouts on cpu."


def hostile_state() -> DashboardState:
    ref = TaskRef(dataset="bf", preset="starter", seed=1)
    question = Question(ref=ref, prompt=HOSTILE, prompt_sha256="0" * 64)
    group = Group(
        question=question,
        rollouts=(Rollout(text=f"<answer>{HOSTILE}</answer>", finish="stop", reward=1.0),),
        source="external",
        node="b" * 26,
        model=HOSTILE,
    )
    peer = Peer(node="b" * 26, name=HOSTILE, model=HOSTILE, groups=1, share=0.5, uptake=1, seen_s=1.0)
    swarm = SwarmUpdated(
        time=1.0,
        coordinator=HOSTILE,
        connected=True,
        sentence=HOSTILE,
        window=60.0,
        share=0.1,
        uptake=1,
        external_share=0.5,
        nodes=2,
        rounds_per_s=1.0,
        made=1,
        accepted=1,
        rejected={HOSTILE: 2},
        refused={HOSTILE: 1},
        peers=(peer,),
    )
    return fold(
        [
            run(mode="swarm", model=HOSTILE, device=HOSTILE),
            StateChanged(time=1.0, state="paused", sentence=HOSTILE, reason=HOSTILE),
            GroupRecorded(time=1.0, round=0, group=group, trained=True),
            swarm,
            LogLine(time=1.0, level="warning", text=HOSTILE),
        ]
    )


def test_peer_text_reaches_no_panel_as_markup_or_as_a_control_character() -> None:
    state = hostile_state()
    event = state.groups.last
    assert event is not None
    assert state.swarm is not None
    texts = [
        header_line(state, 2.0, 120, 1, UNICODE),
        panels.rollouts_panel(state, 2.0, 120, 5, UNICODE),
        rollouts_detail.group_details(event, UNICODE),
        swarm_screen.swarm_overview(state, 2.0, 120, 9, UNICODE),
        swarm_screen.peer_rows(state.swarm, 120, UNICODE),
        swarm_screen.exchange_summary(state, 2.0, 120, 9, UNICODE),
        log_text(list(state.log), "", 120),
    ]
    for content in texts:
        assert not FORBIDDEN.search(content.plain), content.plain
        assert "[/bad]" in content.plain


def test_a_node_that_was_killed_can_be_started_again() -> None:
    """It had no time to say so: it is nobody in its place that tells."""
    running = fold([run(), StateChanged(time=1.0, state="running", sentence="Training")])
    away = apply_event(running, NodeLink(False, "The node went away", 5.0))
    assert not away.gone
    killed = apply_event(away, NodeLink(False, "The node is gone", 9.0, ended=True))
    assert killed.gone
    assert status_summary(killed, running.newest + 4.0)[1:] == (
        "The node is gone · space starts the node again",
        4.0,
    )
    assert not apply_event(killed, NodeLink(True, "Connected", 10.0)).gone


def test_a_right_answer_that_was_not_paid_is_not_called_wrong() -> None:
    event = hostile_state().groups.last
    assert event is not None
    rollouts = tuple(
        msgspec.structs.replace(rollout, reward=0.0, shortcut=place == 0)
        for place, rollout in enumerate(event.group.rollouts)
    )
    group = msgspec.structs.replace(event.group, rollouts=rollouts)
    said = rollouts_detail.group_details(msgspec.structs.replace(event, group=group), UNICODE).plain
    assert "○ 1  right on other questions too" in said
    assert ("○ 2  wrong" in said) is (len(rollouts) > 1)


def test_numbers_are_shown_in_few_characters() -> None:
    assert [format_age(s) for s in (0, 12, 89, 300, 7200, 400_000)] == ["0 s", "12 s", "89 s", "5 min", "2 h", "5 d"]
    assert (format_share(0.048, 1), format_share(None), format_reward_value(0.29), format_reward_value(1.0)) == (
        "4.8 %",
        "—",
        ".290",
        "1.000",
    )
    assert (format_count(1870.4), format_memory(412e6), format_memory(None)) == ("1,870", "412 MB", "—")


def test_a_sentence_that_does_not_fit_loses_whole_phrases_from_its_end() -> None:
    text = "Round 3 · Generating 256 rollouts · 81 done · 486 tok/s"
    assert shorten_phrases(text, 60) == text
    assert shorten_phrases(text, 50) == "Round 3 · Generating 256 rollouts · 81 done"
    assert shorten_phrases(text, 20) == "Round 3"
    assert shorten_phrases("No phrase to drop here", 10) == "No phrase…"


def test_what_follows_a_label_is_wrapped_under_itself() -> None:
    assert hanging_indent("one two three four", 14, 4) == "one two\n    three four"


@given(st.text(max_size=40))
def test_ascii_text_is_as_wide_as_what_it_stands_for(text: str) -> None:
    shown = to_ascii(plain_text(text))
    assert shown.isascii()
    assert len(shown) == cell_len(plain_text(text))


def test_the_log_is_in_the_order_of_the_journal_also_after_a_clock_was_set_back() -> None:
    """The history of groups is told after everything else; what is not in the journal stays where it came."""
    told = [
        LogLine(seq=seq, time=t, level="info", text=f"{seq}") for seq, t in ((3, 9e3), (1, 7e3), (0, 2e3), (4, 2e3))
    ]
    assert [line.text for line in in_order(told, "")] == ["1", "3", "0", "4"]


def test_a_result_at_both_temperatures_names_both_and_says_which_a_chat_gives() -> None:
    at_0 = GreedyScore(items=400, pass_at_1=0.84, low=0.8, high=0.88, delta=0.74, delta_low=0.7, delta_high=0.78)
    event = msgspec.structs.replace(evaluated((0.067, 0.046, 0.088)), greedy=at_0)
    for width in (28, 50):
        rows = held_out.held_out_panel(fold([run(), event]), 0.0, width, 10, UNICODE).plain.splitlines()
        assert rows[:3] == ["      sampled  greedy (chat)", "base   13.3 %   10.0 %", "now    20.0 %   84.0 %"]
        assert "greedy +74.0 points" in "\n".join(rows)
        assert max(map(len, rows)) <= max(width, 28)
    said = evaluation_sentence(event, ROUNDS_ONLY)
    assert "greedy 84.0 % (95 %: 80.0 to 88.0) (what chat gives), +74.0 points against the base" in said


def test_before_any_measurement_the_panel_tells_how_far_the_examples_are() -> None:
    read = ExamplesRead(
        round=4,
        step=4,
        passes=1.0,
        right=9,
        items=12,
        logprob=None,
        tokens=100,
        seconds=3.0,
        over=False,
        sentence="Examples: 9 of 12 right.",
    )
    assert held_out.held_out_panel(fold([run(), read]), 0.0, 50, 5, UNICODE).plain == "Examples: 9 of 12 right."


def test_after_the_end_of_a_training_the_screen_says_what_to_do_with_the_model() -> None:
    finished = "Finished: 26 of 28 set-aside rows right · space goes on"
    at_rest = fold([run(rounds_planned=0), StateChanged(time=1.0, state="paused", sentence=finished, reason="done")])
    assert "Next: 4, then t to chat or e to export" in panels.now_panel(at_rest, 2.0, 40, 8, UNICODE).plain
    asked = fold([run(rounds_planned=0), StateChanged(time=1.0, state="paused", sentence="Paused", reason="person")])
    assert "Next:" not in panels.now_panel(asked, 2.0, 40, 8, UNICODE).plain
    silo = recording("silo", 4, 4)
    done = [
        msgspec.structs.replace(event, rounds_planned=4) if isinstance(event, RunStarted) else event for event in silo
    ]
    stopped = StateChanged(time=1e9, state="stopped", sentence="Stopped after round 4.")
    assert fold([*done, stopped]).finished
    assert not fold([*done[: len(done) // 2], stopped]).finished


def test_what_the_opening_does_stands_under_its_progress_without_a_guess_of_the_time() -> None:
    reading = "Reading weights (SmolLM2-135M-Instruct-Q4_1.gguf)"
    opening = Phase(time=2.0, round=0, phase="open", fraction=0.1, eta_s=-1.0, detail=reading)
    starting = StateChanged(time=1.0, state="starting", sentence="Loading SmolLM2-135M-Instruct-Q4_1.gguf")
    state = fold([starting, opening])
    wide = panels.now_panel(state, 2.0, 60, 8, UNICODE).plain
    assert reading in wide
    assert "eta" not in wide
    assert panels.now_panel(state, 2.0, 40, 3, UNICODE).plain.splitlines()[-1] == "Reading weights"


ASKED = "The untrained model answers held-out questions: 12 of 74"
MEASURING = "Measuring the untrained model, to compare with later"


@pytest.mark.parametrize(
    ("detail", "wide", "narrow"),
    [(ASKED, ASKED, "The untrained model answers: 12 of 74"), (MEASURING, MEASURING, "Measuring the untrained model")],
)
def test_while_held_out_questions_are_answered_the_panel_says_whose_answers_these_are(
    detail: str, wide: str, narrow: str
) -> None:
    working = StateChanged(time=1.0, state="running", sentence="Working on round 1")
    state = fold([run(), working, Phase(time=2.0, round=0, phase="evaluate", fraction=0.1, eta_s=-1.0, detail=detail)])
    assert wide in panels.now_panel(state, 3.0, 60, 8, UNICODE).plain
    assert panels.now_panel(state, 3.0, 40, 3, UNICODE).plain.splitlines()[-1] == narrow


def test_what_sharing_changes_is_said_alike_on_screen_2_and_in_the_readme() -> None:
    """What was measured with and without success."""
    readme = " ".join((Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8").split())
    readme = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", readme)
    for words in ("four equal small models", "changed nothing measurable; beside a larger one", "from 0 to 25 %"):
        assert words in readme
        assert words in swarm_screen.SWARMS
