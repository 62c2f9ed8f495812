"""Where an answer stands, in each format, and what is none."""

from __future__ import annotations

import time

import pytest

from sapo_swarm.scoring.prompts import SYSTEM_PROMPTS, after_reasoning, before_answer, build_messages, written_answer
from sapo_swarm.scoring.verify import score_text
from sapo_swarm.tasks.questions import generate_entry
from sapo_swarm.types import AnswerFormat, RewardRule, TaskRef

REF = TaskRef("basic_arithmetic", "starter", 1)


@pytest.mark.parametrize(
    ("answer_format", "text", "answer"),
    [
        ("tags", "I add. <answer> 7 </answer>\n", "7"),
        ("tags", "<answer>7</answer> and more to teach", None),
        ("boxed", r"So $\boxed{7}$.", "7"),
        ("boxed", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("boxed", r"first \boxed{6}, then \boxed{7}", "7"),
        ("boxed", r"\boxed{7} and more to teach", None),
        ("boxed", r"\boxed{7", None),
        ("boxed", r"\boxed{}", None),
        ("last_line", "I add.\n7\n\n", "7"),
        ("last_line", " \n", None),
        ("last_line", "7" + "\n" * 9, None),
        ("last_line", "7\x0b\u2028", None),
        ("json", '{"answer": "7", "note": "and more to teach"}', None),
        ("json", '{"answer": "and more to teach", "answer": "7"}', None),
        ("json", 'I add. {"answer": "7"}', "7"),
        ("json", '```\n{"answer": 7}\n```', "7"),
        ("json", r'{"answer": "\\frac{1}{2}"}', r"\frac{1}{2}"),
        ("json", r'I write {"answer": "6"}, no: { "answer" : "{\"answer\": 7}" }', '{"answer": 7}'),
        ("json", '{"result": 7}', None),
        ("json", '{"answer": true}', None),
        ("json", '{"answer": 7} and more to teach', None),
        ("json", "[7]", None),
    ],
)
def test_an_answer_is_the_end_of_the_text_in_the_format(
    answer_format: AnswerFormat, text: str, answer: str | None
) -> None:
    assert written_answer(answer_format, text) == answer


def test_text_that_begins_within_the_reasoning_is_cut_off_without_its_end() -> None:
    """The prompt of such a model has opened it, so that the text itself does not."""
    dataset, entry = generate_entry(REF)
    right, rule = f"<answer>{entry['answer']}</answer>", RewardRule(in_reasoning=True)
    for text, reward in ((f"Perhaps {right}", 0.0), (f"I add.\n</think>\n{right}", 1.0)):
        assert score_text(text, REF.dataset, dataset, entry, rule) == (reward, bool(reward))
    assert score_text(f"Perhaps {right}", REF.dataset, dataset, entry) == (1.0, True)


@pytest.mark.parametrize("answer_format", list(SYSTEM_PROMPTS))
def test_every_format_is_taught_by_the_prompt_and_earns_the_reward(answer_format: AnswerFormat) -> None:
    """And earns nothing under another format, whose prompt it does not follow."""
    dataset, entry = generate_entry(REF)
    right = str(entry["answer"])
    ends = {
        "tags": f"<answer>{right}</answer>",
        "boxed": f"\\boxed{{{right}}}",
        "last_line": right,
        "json": f'{{"answer": "{right}"}}',
    }
    assert len({build_messages("q", answer_format=each)[0]["content"] for each in SYSTEM_PROMPTS}) == len(
        SYSTEM_PROMPTS
    )
    for other, text in ends.items():
        rule = RewardRule(answer_format=answer_format)
        found = score_text(f"I think so.\n{text}", REF.dataset, dataset, entry, rule)
        assert (found == (1.0, True)) == (other == answer_format)


def test_the_answer_is_looked_for_behind_the_reasoning() -> None:
    """An answer inside it is not one, and reasoning that was cut off gives none."""
    dataset, entry = generate_entry(REF)
    right = f"<answer>{entry['answer']}</answer>"
    cases = {
        f"<think>\nhm\n</think>\n{right}": 1.0,
        f"hm\n</think>\n{right}": 1.0,  # the prompt opened it
        f"<think>{right}</think>": 0.0,
        f"<think>hm {right}": 0.0,
        f"<think>{right}</think>\n<answer>nothing</answer>": 0.0,
    }
    for text, reward in cases.items():
        assert score_text(text, REF.dataset, dataset, entry)[0] == reward, text
    assert after_reasoning("no reasoning") == "no reasoning"


@pytest.mark.parametrize("answer_format", list(SYSTEM_PROMPTS))
def test_a_hostile_text_costs_linear_time(answer_format: AnswerFormat) -> None:
    for piece in ("<answer>", "\\boxed{", "{", "}", '{"answer":', "<think>", "</think>", "\n"):
        began = time.process_time()
        written_answer(answer_format, after_reasoning(piece * (8192 // len(piece))))
        assert time.process_time() - began < 0.5


def test_a_json_answer_with_braces_ends_where_it_began() -> None:
    """What comes before the answer is its own text, not half of the answer."""
    text = r'I reduce {3/6}. {"answer": "\\frac{1}{2}"}'
    assert before_answer("json", text) == "I reduce {3/6}. "
