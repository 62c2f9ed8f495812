"""The options that one cell of a file lists."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

from sapo_swarm.tasks.own.import_rows import cell

_LABEL = re.compile(r"\(?([A-Z])[).:]\s+", re.IGNORECASE)
_LABELS = re.compile(r"(?:^|(?<=\s))\(?[A-Z][).:]\s+")
Entry = tuple[str, str]
"""What the file calls an option, "" where it has no name, and its text, "" where the row has none in that place."""


def bare_text(text: str, letter: str) -> str:
    """The text without this letter before it, as in A) or (A)."""
    found = _LABEL.match(text)
    return text[found.end() :] if found and found[1].casefold() == letter.casefold() else text


def listed(text: str) -> Iterator[Entry]:
    """The options of a cell that lists them."""
    value = _value(text)
    if isinstance(value, dict) and isinstance(texts := value.get("text"), list):
        labels = value.get("label")
        value = dict(zip(labels, texts, strict=False)) if isinstance(labels, list) else texts
    if isinstance(value, dict):
        value = [{"label": label, "text": one} for label, one in value.items()]
    for one in value if isinstance(value, list) else []:
        label, said = (one.get("label"), one.get("text")) if isinstance(one, dict) else ("", one)
        yield cell(label), cell(said)


def _value(text: str) -> object:
    """JSON or what Python prints of a list, else the pieces between letters, lines, bars or semicolons."""
    plain = text.strip()
    if plain[:1] in ("[", "{"):
        for read in (json.loads, ast.literal_eval):
            try:
                return read(plain)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
        return None
    if len(_LABELS.findall(plain)) > 1:
        return _LABELS.split(plain)[1:]
    return next((plain.split(mark) for mark in ("\n", "|", ";") if mark in plain), None)
