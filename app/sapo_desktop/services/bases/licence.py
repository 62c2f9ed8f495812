"""The licence that a base states for itself."""

from __future__ import annotations

import re
from pathlib import Path

from sapo_backends.checkpoints.locate import BUNDLED

OTHER, UNKNOWN = "other", "unknown"
"""A licence that has no identifier; none that is stated."""
FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "NOTICE")
_STATED = re.compile(r"^license:\s*[\"']?([\w.+-]{1,40})", re.MULTILINE)
_FRONT_MATTER = 8192
"""Characters of a README in which its licence is looked for."""


def licence_of(base: str, folder: Path) -> str:
    """As an SPDX identifier in lower case, "other" or "unknown". base: as it is named; folder: where it lies."""
    if base in BUNDLED:
        return "apache-2.0"
    with_card = folder / "README.md"
    if with_card.is_file():
        with with_card.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_FRONT_MATTER)
        found = _STATED.search(text.split("\n---", 1)[0]) if text.startswith("---") else None
        if found:
            return found[1].lower()
    return OTHER if any((folder / name).is_file() for name in FILES) else UNKNOWN


def in_words(licence: str) -> str:
    """For people; "" is not known."""
    return {"": "licence not told", OTHER: "a licence of its own"}.get(licence, licence)
