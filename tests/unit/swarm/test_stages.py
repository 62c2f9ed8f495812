"""Stages: what is shown of others' text, what is generated again, and what is learned from it."""

from __future__ import annotations

import hashlib
from typing import get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sapo_swarm.config import RunConfig
from sapo_swarm.sapo.stages import (
    SHOWN_CHARACTERS,
    STAGES,
    AnsweredPrompt,
    CritiqueStage,
    RelayStage,
    StageLesson,
    StageMaterial,
    StagePrompt,
    contains_answer,
    masked_hint,
    reasoning_prefix,
    truncate_lines,
)
from sapo_swarm.scoring.prompts import written_answer
from sapo_swarm.types import AnswerFormat, Group, Question, Rollout, TaskRef

WORKED = "2 + 2 is 4\nso twice that\n<answer>8</answer>"
WRONG = "2 + 2 is 5\n<answer>10</answer>"
FORMATS: tuple[AnswerFormat, ...] = get_args(AnswerFormat)


def question(number: int) -> Question:
    text = f"Question {number}?"
    return Question(TaskRef("bf", "paper", number), text, hashlib.sha256(text.encode()).hexdigest())


def group(number: int, *rewards: float, text: str = WORKED) -> Group:
    rollouts = tuple(Rollout(text if reward >= 1.0 else WRONG, "stop", reward, 9) for reward in rewards)
    return Group(question(number), rollouts)


def peer(number: int, *rewards: float, text: str = WORKED) -> Group:
    own = group(number, *rewards, text=text)
    return Group(own.question, own.rollouts, source="external", node="a" * 26)


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def material(local: tuple[Group, ...] = (), known: tuple[Group, ...] = (), wanted: int = 4) -> StageMaterial:
    return StageMaterial(local, known, wanted)


# -- what is shown --------------------------------------------------------------------------------------------------------


def test_a_hint_is_the_reasoning_with_every_occurrence_of_the_answer_masked() -> None:
    assert masked_hint("4*3=12\n12 or 1 2 it is\n<answer>12</answer>", "tags") == "4*3=_\n_ or _ it is"
    assert masked_hint("It is Sunday, SUNDAY\n<answer>Sunday</answer>", "tags") == "It is _, _"


@pytest.mark.parametrize(
    ("text", "answer_format"),
    [
        ("<answer>5</answer>", "tags"),  # no reasoning
        ("so it is 5", "tags"),  # no answer
        ("5 5 5\n<answer>5</answer>", "tags"),  # nothing but the answer
        ("_ then\n<answer>_</answer>", "tags"),  # an answer that is the mask
        ("<answer>5</answer> and\n<answer>5</answer>", "tags"),
        ("5", "last_line"),
    ],
)
def test_there_is_no_hint_where_nothing_is_left_that_helps(text: str, answer_format: AnswerFormat) -> None:
    assert masked_hint(text, answer_format) == ""


def test_a_hint_ends_before_the_first_answer_in_every_format() -> None:
    assert masked_hint("add them <answer>3</answer> again\n<answer>4</answer>", "tags") == "add them"
    assert masked_hint("add them \\boxed{3} again \\boxed{4}", "boxed") == "add them"
    assert masked_hint('add them {"answer": 3} again {"answer": 4}', "json") == "add them"
    assert masked_hint("add them\n4", "last_line") == "add them"


_ALPHABET = "ab12ſßİıK \n_*.\\<>"
_WORDS = st.text(st.sampled_from(_ALPHABET), max_size=30)


@given(_WORDS, st.text(st.sampled_from(_ALPHABET), min_size=1, max_size=6), _WORDS, st.sampled_from(FORMATS))
@example("aabb", "ab", "", "tags")
@example("İ and i̇", "İ", "", "tags")
def test_a_hint_never_holds_the_answer(before: str, answer: str, between: str, answer_format: AnswerFormat) -> None:
    ends = {"tags": "<answer>{}</answer>", "boxed": "\\boxed{{{}}}", "last_line": "\n{}", "json": '{{"answer": "{}"}}'}
    text = f"{before}{answer}{between}{answer}{ends[answer_format].format(answer)}"
    told = written_answer(answer_format, text)
    for shown in (masked_hint(text, answer_format), reasoning_prefix(text, answer_format)):
        assert shown == "" or (told is not None and not contains_answer(shown, told))
        assert "<answer>" not in shown or answer_format != "tags"


@given(st.text(max_size=3000))
def test_what_is_shown_is_never_longer_than_allowed(text: str) -> None:
    assert len(truncate_lines(text)) <= SHOWN_CHARACTERS
    assert len(masked_hint(f"{text}\n<answer>7</answer>", "tags")) <= SHOWN_CHARACTERS


def test_a_text_that_is_too_long_is_cut_behind_a_whole_line() -> None:
    line = "x" * 50
    assert truncate_lines("\n".join([line] * 20)).splitlines() == [line] * 11


def test_a_beginning_ends_where_the_answer_first_stands() -> None:
    assert reasoning_prefix("35 by 8:4r3,0r4.\n<answer>43</answer>", "tags") == "35 by 8:4r3,0r4."
    assert reasoning_prefix("12/42 by 2:6/21 by 3:2/7.\n<answer>2/7</answer>", "tags") == "12/42 by 2:6/21 by 3:"
    assert reasoning_prefix("4 it is\n<answer>4</answer>", "tags") == ""
    assert reasoning_prefix("SS it is\n<answer>ß</answer>", "tags") == "", "the same letters in another case"


# -- relay ----------------------------------------------------------------------------------------------------------------


def test_a_relay_first_attempts_the_questions_that_others_solved_unaided() -> None:
    found = RelayStage().prompts(material((group(1, 0.0),), (peer(2, 1.0, 0.0), peer(3, 0.0, 0.0)), 4), [], rng())
    assert found == [StagePrompt(question(2))], "nobody solved question 3"


@given(st.integers(0, 6), st.integers(1, 4))
def test_a_relay_takes_at_most_so_many_questions_and_none_twice(solved: int, wanted: int) -> None:
    known = tuple(peer(number, 1.0, 0.0) for number in [*range(solved), *range(solved)])
    found = RelayStage().prompts(material((), known, wanted), [], rng())
    refs = [prompt.question.ref for prompt in found]
    assert len(set(refs)) == len(refs) == min(solved, wanted)


def test_where_all_attempts_failed_the_others_reasoning_is_shown_without_the_answer() -> None:
    given_ = material((group(9, 0.0, 0.0),), (peer(1, 1.0, 0.0), peer(2, 1.0, 0.0)))
    first = [
        AnsweredPrompt(StagePrompt(question(1)), group(1, 0.0, 0.0)),
        AnsweredPrompt(StagePrompt(question(2)), group(2, 1.0, 0.0)),
    ]
    (again,) = RelayStage().prompts(given_, first, rng())
    assert again.question == question(1), "2 was solved, and of 9 nobody knows more"
    assert "2 + 2 is 4\nso twice that" in again.text
    assert question(1).prompt in again.text
    assert "8" not in again.text
    assert "<answer>" not in again.text


def test_a_dead_local_question_that_a_peer_solved_is_hinted_at_once() -> None:
    found = RelayStage().prompts(material((group(1, 0.0, 0.0),), (peer(1, 1.0),)), [], rng())
    assert [(p.question, bool(p.text)) for p in found] == [(question(1), True)]


def test_a_relay_ends_after_the_hints() -> None:
    given_ = material((), (peer(1, 1.0),))
    done = [
        AnsweredPrompt(StagePrompt(question(1)), group(1, 0.0)),
        AnsweredPrompt(StagePrompt(question(1), "hinted"), group(1, 0.0)),
    ]
    assert RelayStage().prompts(given_, done, rng()) == []


def test_a_success_after_a_hint_is_learned_without_it_among_the_failures_before() -> None:
    given_ = material((), (peer(1, 1.0), peer(2, 1.0)))
    done = [
        AnsweredPrompt(StagePrompt(question(1)), group(1, 0.0, 0.0, 0.0, 0.0)),
        AnsweredPrompt(StagePrompt(question(2)), group(2, 1.0, 0.0, 0.0, 0.0)),
        AnsweredPrompt(StagePrompt(question(1), "hinted"), group(1, 0.0, 1.0, 0.0, 0.0)),
    ]
    own, revived = RelayStage().lessons(given_, done)
    assert own == StageLesson(1, (0, 1, 2, 3)), "an unaided group is learned as any local one"
    assert revived == StageLesson(2, (1,), (0.0, 0.0, 0.0), shown=False)
    assert RelayStage().figures(given_, done) == {
        "stage_attempted": 2.0,
        "stage_dead": 1.0,
        "stage_hinted": 1.0,
        "stage_revived": 1.0,
    }


def test_where_everything_succeeded_after_the_hint_one_failure_still_gives_an_advantage() -> None:
    done = [
        AnsweredPrompt(StagePrompt(question(1)), group(1, 0.0, 0.0)),
        AnsweredPrompt(StagePrompt(question(1), "h"), group(1, 1.0, 1.0)),
    ]
    (lesson,) = RelayStage().lessons(material((), (peer(1, 1.0),)), done)
    assert lesson == StageLesson(1, (0, 1), (0.0,))


def test_the_control_of_a_relay_generates_again_with_the_question_alone() -> None:
    given_ = material((group(1, 0.0, 0.0),), (peer(1, 1.0),))
    (again,) = STAGES["retry"].prompts(given_, [], rng())
    assert (again.text, again.start) == (question(1).prompt, "")


def test_a_model_that_follows_no_instructions_begins_its_answer_with_the_hint() -> None:
    (again,) = STAGES["relay_start"].prompts(material((group(1, 0.0, 0.0),), (peer(1, 1.0),)), [], rng())
    assert (again.text, again.start) == (question(1).prompt, "2 + 2 is 4\nso twice that")


# -- critique -------------------------------------------------------------------------------------------------------------


def test_a_critique_shows_a_failed_attempt_and_never_a_right_one() -> None:
    given_ = material((), (peer(1, 1.0, 0.0), peer(2, 1.0, 1.0)))
    (prompt,) = CritiqueStage().prompts(given_, [], rng())
    assert prompt.question == question(1)
    assert "2 + 2 is 5" in prompt.text
    assert "twice that" not in prompt.text


def test_a_critique_alone_takes_own_failures() -> None:
    assert [p.question for p in CritiqueStage().prompts(material((group(1, 0.0, 1.0),)), [], rng())] == [question(1)]


def test_after_a_critique_every_group_with_an_advantage_is_learned_under_the_prompt_that_showed_the_attempt() -> None:
    done = [
        AnsweredPrompt(StagePrompt(question(n), "shown"), group(n, *rewards))
        for n, rewards in ((1, (1.0, 0.0)), (2, (0.0, 0.0)))
    ]
    assert CritiqueStage().lessons(material(), done) == [StageLesson(0, (0, 1), shown=True)]
    assert CritiqueStage().prompts(material((), (peer(1, 0.0),)), done, rng()) == []
    assert CritiqueStage().figures(material(), done) == {"stage_attempted": 2.0, "stage_corrected": 1.0}


# -- by name --------------------------------------------------------------------------------------------------------------


def test_the_setting_names_every_stage_and_the_default_is_none() -> None:
    assert set(get_args(get_type_hints(RunConfig)["stage"])) == {"none", *STAGES}
    assert RunConfig().stage == "none"
