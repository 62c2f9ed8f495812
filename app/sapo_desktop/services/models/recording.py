"""A recorded run: JSON lines of events, or a run's journal."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import msgspec

from sapo_desktop.errors import UsageError
from sapo_swarm.events import Event, decode
from sapo_swarm.node.storage.journal import read_only
from sapo_swarm.types import UNREADABLE

TOUR = "tour"
"""Folder of sapo_assets: swarm.jsonl, a recorded swarm, and captions.toml, what there is to see in it."""


class TourCaption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """round: from which round of the recording on. screen: which one is shown then, "" the same."""

    round: int
    text: str
    screen: str = ""


class _Captions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    captions: tuple[TourCaption, ...]


def tour() -> tuple[list[Event], tuple[TourCaption, ...]]:
    """The recorded swarm that ships with the app, and its captions in order."""
    folder = Path(str(resources.files("sapo_assets"))) / TOUR
    captions = msgspec.toml.decode((folder / "captions.toml").read_bytes(), type=_Captions).captions
    return load_recording(folder / "swarm.jsonl"), captions


def load_recording(path: Path) -> list[Event]:
    """The events of a file, oldest first. Raises UsageError with the line that is wrong, JournalError."""
    if path.is_dir():
        path = path / "journal.db"
    if path.suffix == ".db":
        return read_only(path)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"Cannot read {path} ({error.strerror}).") from error
    events: list[Event] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(b'{"kind":"summary"'):
            continue
        try:
            events.append(decode(line))
        except UNREADABLE as error:
            raise UsageError(f"{path}, line {number}: not an event of a recorded run ({error}).") from error
    if not events:
        raise UsageError(f"{path} holds no events.")
    return events
