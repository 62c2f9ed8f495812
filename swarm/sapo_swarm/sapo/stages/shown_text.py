"""Text of others as a part of a prompt: short, and (as a hint) without the answer.

It is hostile. That it has gone through safe_text is for the caller, and that no part of it becomes a control token for the
tokenizer (Tokenizer.encode_chat).
"""

from __future__ import annotations

import re

from sapo_swarm.scoring.answer_format import written_answer
from sapo_swarm.types import AnswerFormat

SHOWN_CHARACTERS = 600
"""Characters of somebody's text in a prompt, at most."""
MASK = "_"
"""What stands in a hint where the answer stood."""
_MARKERS: dict[AnswerFormat, str] = {"tags": "<answer>", "boxed": "\\boxed", "json": "{"}


def shortened(text: str) -> str:
    """Whole lines as far as they fit; of one long line its beginning."""
    whole = text.strip()
    if len(whole) <= SHOWN_CHARACTERS:
        return whole
    cut = whole[:SHOWN_CHARACTERS]
    return cut[: cut.rfind("\n")].rstrip() if "\n" in cut else cut


def reasoning(text: str, answer_format: AnswerFormat) -> str:
    """What stands before the first answer of a completion."""
    if answer_format == "last_line":
        lines = text.rstrip().splitlines()
        return "\n".join(lines[:-1])
    at = text.find(_MARKERS[answer_format])
    return text if at < 0 else text[:at]


def _squeezed(text: str) -> str:
    return "".join(text.split()).casefold()


def holds(text: str, answer: str) -> bool:
    """The answer stands in the text, whatever the case and the spaces."""
    return _squeezed(answer) in _squeezed(text)


def _pattern(answer: str) -> re.Pattern[str]:
    """Its characters with any spaces between them; linear, for no literal is a space."""
    return re.compile(r"\s*".join(re.escape(character) for character in "".join(answer.split())), re.IGNORECASE)


def hint(text: str, answer_format: AnswerFormat) -> str:
    """The reasoning of a verified completion without its answer: every occurrence is masked, whatever case and spaces.

    "" where there is no reasoning, no answer, or the answer cannot be taken out.
    """
    answer = written_answer(answer_format, text)
    if not answer or not _squeezed(answer):
        return ""
    masked = _pattern(answer).sub(MASK, shortened(reasoning(text, answer_format)))
    return "" if holds(masked, answer) or not masked.strip(f"{MASK} \n.,:;=") else masked


def beginning(text: str, answer_format: AnswerFormat) -> str:
    """The reasoning of a verified completion up to where its answer first stands, for another one to begin with.

    "" where nothing stands before it, or there is no answer.
    """
    answer = written_answer(answer_format, text)
    if not answer or not _squeezed(answer):
        return ""
    whole = shortened(reasoning(text, answer_format))
    found = _pattern(answer).search(whole)
    start = whole[: found.start()] if found else whole
    return "" if holds(start, answer) else start.rstrip()
