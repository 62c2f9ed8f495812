"""How a question becomes the conversation that a model continues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sapo_swarm.tasks.catalogue import CATALOGUE
from sapo_swarm.tasks.own import library
from sapo_swarm.types import AnswerFormat, Question

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


def messages(question: str, system: str = "", answer_format: AnswerFormat = "tags") -> list[dict[str, str]]:
    """A question's conversation. system: "" is the app's own prompt for the format."""
    system = system or SYSTEM_PROMPTS[answer_format]
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def conversation(question: Question, answer_format: AnswerFormat = "tags") -> list[dict[str, str]]:
    """The conversation of a task's question, under the task's system prompt where it has one. Raises BadTask."""
    return messages(question.prompt, library.system(question.ref), answer_format)


def system_prompt(tasks: Sequence[str], answer_format: AnswerFormat = "tags") -> str:
    """The system prompt of a model trained on these tasks: the one that all of them have, else the app's where one of them has
    that; "" where neither is, or a task is not here any more or does not load."""
    usual = SYSTEM_PROMPTS[answer_format]
    try:
        found = {("" if name in CATALOGUE else library.find(name).spec.system) or usual for name in tasks}
    except (ValueError, KeyError):
        return ""
    return found.pop() if len(found) == 1 else usual if usual in found else ""


def extract_answer(text: str) -> str | None:
    """The text of the last `<answer>...</answer>`, stripped, or None. Linear in the length of the text."""
    end = text.rfind("</answer>")
    if end < 0:
        return None
    start = text.rfind("<answer>", 0, end)
    return None if start < 0 else text[start + len("<answer>") : end].strip()
