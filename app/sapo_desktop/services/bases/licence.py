"""The licence that a base states for itself."""

from __future__ import annotations

import re
from pathlib import Path

from sapo_backends.checkpoints.hub_download import CARD, CARD_LIMIT, is_licence
from sapo_backends.checkpoints.locate import BUNDLED

OTHER, UNKNOWN = "other", "unknown"
"""A licence without an identifier; no licence stated."""
_STATED = r"^%s:[ \t]*(?:\n[ \t]*-[ \t]*)?[\"']?([\w.+-]{1,40})"


def licence_of(base: str, folder: Path) -> str:
    """As an SPDX identifier in lower case, "other" or "unknown". base: its name; folder: where it is on the disk."""
    if base in BUNDLED:
        return "apache-2.0"
    return _stated(folder, "license") or (OTHER if licence_files(folder) else UNKNOWN)


def name_of(base: str, folder: Path) -> str:
    """For people: a licence without an identifier goes by the name on its card."""
    licence = licence_of(base, folder)
    return (_stated(folder, "license_name") if licence == OTHER else "") or licence


def licence_files(folder: Path) -> list[Path]:
    """The files with the licence text."""
    return sorted(file for file in folder.iterdir() if is_licence(file.name) and file.is_file())


def _stated(folder: Path, key: str) -> str:
    """What the card's front matter says for the key, in lower case; "" where it has none."""
    card = folder / CARD
    if not card.is_file():
        return ""
    with card.open(encoding="utf-8-sig", errors="replace") as file:
        text = file.read(CARD_LIMIT)
    match = re.search(_STATED % key, text.split("\n---", 1)[0], re.MULTILINE) if text.startswith("---") else None
    return match[1].lower() if match else ""


def in_words(licence: str) -> str:
    """For people; "" is not known."""
    return {"": "no licence stated", OTHER: "a licence of its own"}.get(licence, licence)
