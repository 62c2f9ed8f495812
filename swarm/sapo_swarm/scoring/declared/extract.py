"""Where the answer stands in a completion. Linear in the length of the text."""

from __future__ import annotations

import json
import re

from sapo_swarm.scoring.answer_format import written_answer
from sapo_swarm.scoring.declared.numbers import MINUS
from sapo_swarm.tasks.own.spec import Extract
from sapo_swarm.types import AnswerFormat

_NUMBER = re.compile(r"[-+]?(?:\d[\d.,]*|(?<![\w.])\.\d+)(?:[eE][-+]?\d{1,3})?")


def extract(how: Extract, text: str, answer_format: AnswerFormat = "tags") -> str | None:
    """The answer, stripped, or None where the completion has none. answer_format: of the run, where `how` is "tags"."""
    if how == "tags":
        return written_answer(answer_format, text)
    if how == "whole":
        return text.strip() or None
    if how == "last_line":
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), None)
    if how == "last_number":
        found = _NUMBER.findall(text.translate(MINUS))
        return found[-1].rstrip(".,") if found else None
    return _last_json(text)


def enclose(how: Extract, answer: str, answer_format: AnswerFormat = "tags") -> str:
    """A completion from which this answer is extracted, for those that the form allows at all. answer_format: of the run."""
    if how != "tags" or answer_format == "last_line":
        return answer
    if answer_format == "json":
        return json.dumps({"answer": answer}, ensure_ascii=False)
    return f"\\boxed{{{answer}}}" if answer_format == "boxed" else f"<answer>{answer}</answer>"


def _last_json(text: str) -> str | None:
    """The last object or list: from the end back to the bracket that opens it. Brackets in strings count too, so an answer
    with odd ones in a string is none."""
    end = max(text.rfind("}"), text.rfind("]"))
    depth = 0
    for place in range(end, -1, -1):
        if text[place] in "}]":
            depth += 1
        elif text[place] in "{[":
            depth -= 1
            if depth == 0:
                return text[place : end + 1]
    return None
