"""What a verifier is given."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from sapo_swarm.tasks.own.folder import OwnTask
from sapo_swarm.types import AnswerFormat


@dataclass(frozen=True, slots=True)
class Case:
    """One completion against one row. answer: what was extracted from text; truth: the cell that counts; row: all cells.
    environment: what the task's environment says in the end. answer_format: where a text's answer stands, if it is extracted
    by tags."""

    task: OwnTask
    answer: str
    truth: str
    text: str
    row: Mapping[str, str]
    environment: float = 0.0
    answer_format: AnswerFormat = "tags"


def plain(text: str) -> str:
    """NFKC, white space collapsed, outer white space gone: how all texts are compared."""
    return " ".join(unicodedata.normalize("NFKC", text).split())


def unquoted(text: str) -> str:
    """The text without the quotes around it. One at its end alone is its own: f' is not f."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
