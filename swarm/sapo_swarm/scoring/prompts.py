"""How a question becomes the conversation that a model continues, and where the answer stands in the completion."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from sapo_swarm.tasks.catalogue import CATALOGUE
from sapo_swarm.tasks.own import library
from sapo_swarm.types import AnswerFormat, Question

# How a question becomes the conversation that a model continues.

SYSTEM_PROMPT = (
    "Solve the problem. Think in short steps, then give only the final answer between <answer> and </answer> tags."
)
"""The bundled starter's chat template leaves it out: it was trained on nothing else."""


_THINK = "Solve the problem. Think in short steps, then give only the final answer "
SYSTEM_PROMPTS: Mapping[AnswerFormat, str] = {
    "tags": SYSTEM_PROMPT,
    "boxed": _THINK + "in \\boxed{}, at the very end.",
    "last_line": _THINK + "on a line of its own, the last one.",
    "json": _THINK + 'as JSON, {"answer": "..."}, at the very end.',
}
"""How each answer format is asked for."""


def build_messages(question: str, system: str = "", answer_format: AnswerFormat = "tags") -> list[dict[str, str]]:
    """A question's conversation. system: "" is the app's own prompt for the format."""
    system = system or SYSTEM_PROMPTS[answer_format]
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def build_conversation(question: Question, answer_format: AnswerFormat = "tags") -> list[dict[str, str]]:
    """The conversation of a task's question, under the task's system prompt if it has one. Raises BadTask."""
    return build_messages(question.prompt, library.task_system_prompt(question.ref), answer_format)


def system_prompt(tasks: Sequence[str], answer_format: AnswerFormat = "tags") -> str:
    """The system prompt of a model trained on these tasks: the one that all of them share, else the app's if one of them uses
    that; "" otherwise, or if a task no longer exists or does not load."""
    usual = SYSTEM_PROMPTS[answer_format]
    try:
        prompts = {("" if name in CATALOGUE else library.load_task(name).spec.system) or usual for name in tasks}
    except (ValueError, KeyError):
        return ""
    return prompts.pop() if len(prompts) == 1 else usual if usual in prompts else ""


def extract_answer(text: str) -> str | None:
    """The text of the last `<answer>...</answer>`, stripped, or None. Linear in the length of the text."""
    end = text.rfind("</answer>")
    if end < 0:
        return None
    start = text.rfind("<answer>", 0, end)
    return None if start < 0 else text[start + len("<answer>") : end].strip()


# The answer at the end of a completion, in the format that its prompt asked for. Linear in the length of the text.
#
# Whatever the format, the answer is the end: text behind it would be trained on though nobody judges it.

OPENING, CLOSING, BOX, THOUGHT = "<answer>", "</answer>", "\\boxed{", "</think>"
_OBJECT = re.compile(r'\{\s*"answer"\s*:')
"""Where a JSON answer begins: its quotes cannot stand inside a JSON string."""
_MARKED: tuple[AnswerFormat, ...] = ("tags", "boxed", "json")
TAIL = 8
"""Characters that may follow an answer: spaces and line breaks, with which some models end every answer, and what closes the
formula or sentence around a box."""


def after_reasoning(text: str, in_reasoning: bool = False) -> str:
    """What follows the reasoning of a model that reasons before it answers; nothing if the reasoning never ended. Text
    without reasoning stays whole. in_reasoning: the text begins within it."""
    if THOUGHT in text:
        return text[text.rfind(THOUGHT) + len(THOUGHT) :]
    return "" if in_reasoning or text.lstrip().startswith("<think>") else text


def written_answer(answer_format: AnswerFormat, text: str) -> str | None:
    """The answer, stripped, or None if the text does not end with one."""
    if answer_format == "tags":
        return _tagged(text)
    if answer_format == "boxed":
        return _boxed(text)
    if answer_format == "json":
        return _json(text)
    whole = text.rstrip()
    return whole.splitlines()[-1].strip() if whole and _ends(text[len(whole) :]) else None


def likely_answer(text: str) -> str:
    """The answer of a text in any format: the ending in a format that marks answers, else the content of tags, else the last
    non-empty line; "" if there is none."""
    after = after_reasoning(text) or text
    marked = filter(None, (written_answer(form, after) for form in _MARKED))
    lines = (line.strip() for line in reversed(after.splitlines()) if line.strip())
    return next(marked, None) or extract_answer(after) or next(lines, "")


def before_answer(answer_format: AnswerFormat, text: str) -> str:
    """The text before the judged answer; the whole text if it does not end with one."""
    after = after_reasoning(text)
    if written_answer(answer_format, after) is None:
        return text
    if answer_format == "last_line":
        line = after.rstrip().splitlines()[-1]
        return text.rstrip().removesuffix(line)
    return text[
        : _json_start(text) if answer_format == "json" else text.rfind(OPENING if answer_format == "tags" else BOX)
    ]


def written_once(answer_format: AnswerFormat, text: str) -> bool:
    """The text ends with an answer and holds no other."""
    mark = {"tags": OPENING, "boxed": BOX, "json": '"answer"', "last_line": ""}[answer_format]
    return written_answer(answer_format, text) is not None and (not mark or text.count(mark) == 1)


def _ends(tail: str, also: str = "") -> bool:
    return len(tail) <= TAIL and not tail.strip(" \t\r\n" + also)


def _tagged(text: str) -> str | None:
    answer = extract_answer(text)
    if not answer or CLOSING in answer or not _ends(text[text.rfind(CLOSING) + len(CLOSING) :]):
        return None
    return answer


def _boxed(text: str) -> str | None:
    """Braces inside the last box are balanced."""
    start = text.rfind(BOX)
    depth, place = 1, start + len(BOX)
    while start >= 0 and place < len(text):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            answer = text[start + len(BOX) : place].strip()
            return answer if answer and _ends(text[place + 1 :], "$.)]\\") else None
        place += 1
    return None


def _json_start(text: str) -> int:
    return max((match.start() for match in _OBJECT.finditer(text)), default=-1)


def _json(text: str) -> str | None:
    """The last object, on one line or several, that holds only an "answer", a text or a number."""
    end = text.rfind("}") + 1
    start = _json_start(text)
    if start < 0 or not _ends(text[end:], "`"):
        return None
    try:
        held: list[tuple[str, object]] = json.loads(text[start:end], object_pairs_hook=list)
    except (ValueError, RecursionError):
        return None
    answer = held[0][1] if [name for name, _ in held] == ["answer"] else None
    usable = isinstance(answer, str | int | float) and not isinstance(answer, bool)
    return (str(answer).strip() or None) if usable else None
