"""A recorded run: JSON lines of events, or a run's journal."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import msgspec

from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import store
from sapo_swarm.events import Event, decode_event
from sapo_swarm.node.journal import read_only
from sapo_swarm.types import UNREADABLE

TOUR = "tour"
"""Folder of sapo_assets: swarm.jsonl, a recorded swarm, and captions.toml, what to look at in it."""


class TourCaption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """round: the recording's round from which it applies. screen: the screen shown then, "" the same."""

    round: int
    text: str
    screen: str = ""


class _Captions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    captions: tuple[TourCaption, ...]


def load_tour() -> tuple[list[Event], tuple[TourCaption, ...]]:
    """The recorded swarm that ships with the app, and its captions in order."""
    folder = Path(str(resources.files("sapo_assets"))) / TOUR
    captions = msgspec.toml.decode((folder / "captions.toml").read_bytes(), type=_Captions).captions
    return load_recording(folder / "swarm.jsonl"), captions


def find_recording(home: Home, text: str = "") -> tuple[str, Path]:
    """Name and file of a recording, or of a model's journal, which need not exist; "" is the model used last.

    Where a file without a suffix, or a folder without a journal, has the same name as a model, the model is meant. Raises
    UsageError that names the nearest model, AppError where it cannot be read.
    """
    path = Path(text)
    if text and (path / "journal.db").is_file():
        return path.name, path / "journal.db"
    if path.suffix and path.is_file():
        return path.stem, path
    try:
        model = store.find_model(home, text)
    except UsageError as error:
        if path.is_file():
            return path.name, path
        raise UsageError(f"There is no file {text[:60]!r}. {error}" if text else str(error)) from error
    return model.name, model.folder / "journal.db"


def load_recording(path: Path, kinds: Sequence[str] = ()) -> list[Event]:
    """The events in a file, oldest first. kinds: only these are needed. Raises UsageError with the line that is wrong,
    JournalError."""
    if path.suffix == ".db":
        return read_only(path, kinds)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"Cannot read {path} ({error.strerror}).") from error
    events: list[Event] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(b'{"kind":"summary"'):
            continue
        try:
            events.append(decode_event(line))
        except UNREADABLE as error:
            raise UsageError(f"{path}, line {number}: not an event of a recorded run ({error}).") from error
    if not events:
        raise UsageError(f"{path} holds no events.")
    return events
