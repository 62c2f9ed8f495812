"""One line of the doctor."""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["ok", "note", "fail"]
COLUMN = 16
"""Columns of the longest name: thermal pressure."""


class Finding(NamedTuple):
    """One line of the doctor. text says what to do when it is not ok."""

    verdict: Verdict
    what: str
    text: str
