"""When the examples phase ends, what a trial leads to, and when practice is said to teach nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_backends.base import CancelToken
from sapo_swarm.algorithms import examples_rate
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Event, ExamplesRead, RoundFinished, RunStarted, StateChanged, decode_event, encode_event
from sapo_swarm.node.base_trial import no_questions, plan_of, sentence_of
from sapo_swarm.node.examples_phase import steps_between_readings, why_over, without_gain
from sapo_swarm.node.governor.run_control import RunControl, RunRequests, apply_command, find_obstacle, last_pause
from sapo_swarm.node.journal import EventBus, Journal
from sapo_swarm.node.journal_thinning import merge_rounds
from sapo_swarm.node.round_phases import NodeActivity
from sapo_swarm.node.round_warnings import MASTERED, StallDetector
from sapo_swarm.node.verified_examples import BATCH, cut_into_batches, rows_apart
from sapo_swarm.resolve_run import RunFacts, resolve_run_config
from sapo_swarm.tasks.catalogue import new_tokens
from sapo_swarm.tasks.own.folder import build_task
from sapo_swarm.tasks.own.import_rows import RowTable
from sapo_swarm.tasks.own.spec import TaskSpec

AUTO = RunConfig(tasks=("calendar_arithmetic",))
ROUND = (
    b'{"kind":"round","round":4,"reward_local":0.0,"reward_external":null,"reward_batch":0.0,"own_groups":8,'
    b'"external_groups":0,"external_wanted":0,"informative":0,"truncated":0,"well_formed":0,"completions":64,'
    b'"tokens_generated":640,"tokens_trained":640,"bytes_sent":0,"bytes_received":0,"loss":0.0,"grad_norm":0.0,'
    b'"entropy":1.0,"clip_fraction":0.0,"logprob_own":-1.0,"logprob_external":null,"ratio_max":1.0,"task_rewards":{},'
    b'"seconds":{}}'
)
"""A round as a journal from before the examples phase holds it."""


def read(right: int, passes: float = 1.0, logprob: float | None = None, **more: object) -> ExamplesRead:
    event = ExamplesRead(
        round=1, step=1, passes=passes, right=right, items=40, logprob=logprob, tokens=1, seconds=1.0,
        over=False, sentence="",
    )  # fmt: skip
    return msgspec.structs.replace(event, **more)


def old_round(**changes: object) -> RoundFinished:
    event = decode_event(ROUND)
    assert isinstance(event, RoundFinished)
    return msgspec.structs.replace(event, **changes)


def test_the_phase_ends_when_nearly_all_rows_set_aside_are_right() -> None:
    assert why_over([read(10), read(40, 2)]) == "all rows set aside are right"
    many = msgspec.structs.replace(read(99, 2), items=100)
    assert why_over([read(10), many]) == "nearly all rows set aside are right"
    assert why_over([read(10), read(30, 2)]) == ""


def test_the_phase_ends_where_readings_bring_nothing_more() -> None:
    """Of few right answers three of them, each with a smaller step, of many two."""
    assert why_over([read(20), read(20, 2), read(19, 3)]) == ""
    assert "nothing more" in why_over([read(20), read(20, 2), read(19, 3), read(20, 4)])
    assert why_over([read(37), read(37, 2)]) == ""
    assert "nothing more" in why_over([read(37), read(37, 2), read(36, 3)])


@pytest.mark.parametrize(("of_a_pass", "between"), [(1, 12), (5, 15), (7, 14), (14, 14), (16, 16), (60, 16)])
def test_readings_are_apart_by_whole_short_passes_or_sixteen_steps(of_a_pass: int, between: int) -> None:
    assert steps_between_readings(of_a_pass) == between


def test_right_answers_that_become_likelier_are_a_gain_before_the_first_is_right() -> None:
    readings = [read(0, n, logprob=-3.0 + n) for n in range(3)]
    assert without_gain(readings) == 0
    assert without_gain([*readings, read(0, 3, logprob=-1.0), read(0, 4, logprob=-0.999)]) == 2


def test_the_phase_has_an_end_whatever_it_brings() -> None:
    growing = [read(n, n, logprob=-10.0 / (n + 1)) for n in range(1, 13)]
    assert why_over(growing[:-1]) == ""
    assert "passes" in why_over(growing)
    assert why_over([read(5, seconds=601.0)]) == ""
    assert "10 min" in why_over([read(5), read(5, 2, seconds=601.0)])


@pytest.mark.parametrize(
    ("right", "unequal", "examples", "plan"),
    [
        (0, 0, 200, "examples"),
        (0, 0, 0, "nothing"),
        (30, 8, 200, "examples"),
        (60, 8, 200, "practice"),
        (95, 1, 200, "practice"),
        (96, 0, 200, "practice"),
        (10, 4, 0, "practice"),
    ],
)
def test_what_follows_from_a_trial(right: int, unequal: int, examples: int, plan: str) -> None:
    """Of 12 questions with 8 answers each: examples where fewer than half of the answers are right, and they exist."""
    counts = msgspec.structs.replace(
        no_questions(AUTO), questions=12, answers=96, right=right, unequal=unequal, well_formed=96
    )
    found = plan_of(AUTO, counts, examples, "" if examples else "no answers.")
    assert found == plan
    sentence = sentence_of(counts, found, "no answers.")
    words = {"examples": "examples first", "nothing": "Cannot learn yet", "practice": "Practice at once"}
    assert words[plan] in sentence


def test_examples_that_are_switched_off_are_never_planned() -> None:
    off = msgspec.structs.replace(AUTO, examples="off")
    assert plan_of(off, no_questions(off), 200, "") == "nothing"


def test_three_rounds_without_a_difference_are_told_once_with_the_cause() -> None:
    stalled = StallDetector()
    said = [stalled.after(old_round()) for _ in range(6)]
    assert [len(lines) for lines in said] == [0, 0, 1, 0, 0, 0]
    assert "no answer has the form" in said[2][0].text
    assert "nothing to learn" in stalled.notice
    assert stalled.after(old_round(nonzero_groups=1)) == []
    assert stalled.notice == ""


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"reward_local": 1.0, "well_formed": 64}, "all answers to training questions are right"),
        ({"truncated": 60}, "cut off"),
        ({"well_formed": 64}, "all are wrong"),
        ({"well_formed": 64, "reward_local": 0.4}, "all right or all wrong"),
    ],
)
def test_the_cause_of_a_stalled_run_is_named(changes: dict[str, object], cause: str) -> None:
    stalled = StallDetector()
    lines = [line for _ in range(3) for line in stalled.after(old_round(**changes))]
    assert cause in lines[0].text


@pytest.mark.parametrize(
    ("presets", "advice"), [(True, "(--preset hard)"), (False, "Harder rows would teach it more.")]
)
def test_success_is_no_warning_and_a_table_of_ones_own_is_not_told_of_presets(presets: bool, advice: str) -> None:
    stalled = StallDetector(presets)
    (line,) = [line for _ in range(3) for line in stalled.after(old_round(reward_local=1.0, well_formed=64))]
    assert line.level == "info"
    assert advice in line.text
    assert ("preset" in line.text) == presets


def test_a_task_is_mastered_once_where_all_answers_of_three_rounds_are_right() -> None:
    stalled, right = StallDetector(), {"reward_local": 1.0, "well_formed": 64}
    mastered = []
    for changes in ({"reward_local": 0.9}, right, right, right, right, {"nonzero_groups": 1}, right, right, right):
        stalled.after(old_round(**changes))
        mastered.append(stalled.mastered)
    assert mastered == [False, False, False, True, False, False, False, False, True]


def test_a_run_with_nothing_left_to_learn_pauses_until_the_person_lets_it_go_on() -> None:
    done = msgspec.structs.replace(RunRequests(), done=MASTERED)
    assert find_obstacle(done, 1.0, 0.0) == ("done", MASTERED)
    assert find_obstacle(apply_command(done, "resume", 0.0, 1.0), 1.0, 0.0) is None


def test_the_pause_in_which_a_session_ended_is_the_persons_or_that_nothing_was_left() -> None:
    def ended(reason: str, sentence: str = "") -> list[Event]:
        stopped = StateChanged(state="stopped", sentence="Stopped after round 3.")
        return [
            StateChanged(state="running", sentence=""),
            StateChanged(state="paused", sentence=sentence, reason=reason),
            stopped,
        ]

    assert last_pause([]) is None
    assert last_pause(ended("battery")) is None
    assert last_pause([*ended("person"), StateChanged(state="running", sentence="")]) is None
    planned = StateChanged(state="stopped", sentence="Stopped after round 3.", reason="done")
    finished = last_pause([*ended("person"), planned])
    assert finished is not None
    assert (finished.state, finished.sentence) == ("paused", "Finished after round 3 · space goes on")
    assert last_pause([planned, StateChanged(state="running", sentence=""), ended("")[-1]]) is None
    left = last_pause(ended("done", MASTERED))
    assert left is not None
    assert left.sentence == MASTERED


async def test_other_weights_may_have_something_left_to_learn_and_stay_paused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    pause = StateChanged(state="paused", sentence=MASTERED, reason="done")
    control = RunControl(EventBus(journal), NodeActivity(), CancelToken(), lambda _share, _duty: False, pause=pause)
    assert find_obstacle(control.requests, 1.0, 0.0) == ("done", MASTERED)
    control.weights_replaced()
    await control.settled()
    obstacle = find_obstacle(control.requests, 1.0, 0.0)
    assert obstacle is not None
    assert obstacle[0] == "person"
    journal.close()


def test_rounds_with_groups_of_others_are_not_stalled() -> None:
    stalled = StallDetector()
    assert not any(stalled.after(old_round(external_groups=2)) for _ in range(5))


def test_journals_from_before_the_phase_read_as_practice() -> None:
    assert old_round().examples == 0
    assert decode_event(encode_event(old_round(examples=16))) == old_round(examples=16)
    assert RunStarted.__struct_defaults__[-1] == 0


def test_blocks_of_rounds_keep_the_number_of_texts() -> None:
    assert merge_rounds([old_round(examples=16), old_round(examples=15)]).examples == 31


@given(st.lists(st.integers(0, 120), min_size=1, max_size=400))
def test_rows_that_ask_the_same_are_on_one_side(numbers: list[int]) -> None:
    rows = [{"question": f"Item {n}", "answer": "x"} for n in numbers]
    table = RowTable(rows=rows, numbers=list(range(len(rows))))
    held_out = RowTable(rows=[{"question": "item 7.", "answer": "x"}], numbers=[1])
    task = build_task(TaskSpec(name="t"), table, held_out)
    training, apart = rows_apart(task)
    asked = {task.train[place]["question"] for place in training}
    aside = {task.train[place]["question"] for place in apart}
    assert not asked & aside
    assert "Item 7" not in asked | aside
    assert asked | aside == {row["question"] for row in rows} - {"Item 7"}
    assert len(apart) <= max(1, len(asked))


def test_of_one_row_nothing_is_set_aside() -> None:
    rows = [RowTable(rows=[{"question": text, "answer": "a"}], numbers=[1]) for text in ("q", "r")]
    assert rows_apart(build_task(TaskSpec(name="t"), *rows)) == ([0], [])


@given(st.integers(0, 500))
def test_a_pass_is_cut_into_equal_batches(count: int) -> None:
    batches = cut_into_batches(list(range(count)))  # type: ignore[arg-type]
    sizes = [len(batch) for batch in batches]
    assert sum(sizes) == count
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= 1.5 * BATCH


def limited(config: RunConfig, limits: Mapping[str, int]) -> RunConfig:
    return resolve_run_config(config, facts=RunFacts(answer_limits=limits))[0]


def test_limits_of_the_trial_raise_and_lower_what_an_answer_may_have() -> None:
    both = RunConfig(tasks=("calendar_arithmetic", "bf"))
    narrow = limited(both, {"bf": 24})
    assert (new_tokens(narrow, "bf"), new_tokens(narrow, "calendar_arithmetic")) == (24, 96)
    wide = limited(both, {"bf": 300, "calendar_arithmetic": 30})
    assert (new_tokens(wide, "bf"), new_tokens(wide, "calendar_arithmetic")) == (300, 30)
    assert limited(both, {}) == both


def test_limits_that_a_person_chose_stay() -> None:
    chosen = RunConfig(tasks=("bf",), max_new_tokens=64)
    assert limited(chosen, {"bf": 24}) == chosen
    by_task = RunConfig(tasks=("bf",), task_tokens=("bf=40",))
    assert new_tokens(limited(by_task, {"bf": 24}), "bf") == 40


def test_larger_models_take_smaller_steps_on_examples() -> None:
    rates = [examples_rate("lora", size) for size in (135_000_000, 500_000_000, 1_500_000_000)]
    assert rates == sorted(rates, reverse=True)
    assert examples_rate("full", 5_000_000) > examples_rate("full", 600_000_000)
