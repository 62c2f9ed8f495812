"""The licence that a base states for itself."""

from __future__ import annotations

import re
from pathlib import Path

from sapo_backends.checkpoints.hub_download import CARD, CARD_LIMIT, is_licence
from sapo_backends.checkpoints.locate import BUNDLED

OTHER, UNKNOWN = "other", "unknown"
"""A licence that has no identifier; none that is stated."""
_STATED = r"^%s:[ \t]*(?:\n[ \t]*-[ \t]*)?[\"']?([\w.+-]{1,40})"


def licence_of(base: str, folder: Path) -> str:
    """As an SPDX identifier in lower case, "other" or "unknown". base: as it is named; folder: where it lies."""
    if base in BUNDLED:
        return "apache-2.0"
    return _stated(folder, "license") or (OTHER if licence_files(folder) else UNKNOWN)


def name_of(base: str, folder: Path) -> str:
    """For people: one without an identifier by the name that its card gives it."""
    found = licence_of(base, folder)
    return (_stated(folder, "license_name") if found == OTHER else "") or found


def licence_files(folder: Path) -> list[Path]:
    """The texts of the licence."""
    return sorted(file for file in folder.iterdir() if is_licence(file.name) and file.is_file())


def _stated(folder: Path, key: str) -> str:
    """What the front matter of the card says, in lower case; "" where it says nothing."""
    card = folder / CARD
    if not card.is_file():
        return ""
    with card.open(encoding="utf-8-sig", errors="replace") as file:
        text = file.read(CARD_LIMIT)
    found = re.search(_STATED % key, text.split("\n---", 1)[0], re.MULTILINE) if text.startswith("---") else None
    return found[1].lower() if found else ""


def in_words(licence: str) -> str:
    """For people; "" is not known."""
    return {"": "no licence stated", OTHER: "a licence of its own"}.get(licence, licence)
