"""The exceptions that engines raise on purpose, and helpers for their messages (sizes, name hints).

Error tree::

    BackendError
    ├── BackendUnavailable   the package or device is missing; carries the command that fixes it
    ├── OutOfMemory          needed / available bytes and a smaller suggestion
    ├── ModelNotFound        no such starter, folder or hub id
    │   └── DownloadFailed   it exists but could not be downloaded; partial files are kept
    ├── TemplateRefused      the model's chat template rejects the conversation
    ├── CheckpointCorrupt    a saved folder that cannot be restored
    └── Cancelled            the caller's CancelToken was set
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, ClassVar


class BackendError(Exception):
    """Base of everything an engine raises on purpose. The message tells the person what to do; exit_code is the exit
    status of a command that fails with it."""

    exit_code: ClassVar[int] = 1


class BackendUnavailable(BackendError):
    """The engine cannot run here."""

    exit_code: ClassVar[int] = 4

    def __init__(self, reason: str, fix_command: str = "") -> None:
        super().__init__(f"{reason} Fix: {fix_command}" if fix_command else reason)
        self.reason = reason
        self.fix_command = fix_command


class OutOfMemory(BackendError):
    """The work does not fit; sizes in bytes. needed: 0 if unknown."""

    def __init__(self, needed: int, available: int, suggestion: str) -> None:
        shortage = f"Needs about {size_text(needed)} of memory" if needed else "There is not enough memory"
        super().__init__(f"{shortage}, {size_text(available)} is free. {suggestion}".rstrip())
        self.needed = needed
        self.available = available
        self.suggestion = suggestion


class ModelNotFound(BackendError):
    """No model under that name, folder or hub id."""


class DownloadFailed(ModelNotFound):
    """A hub model could not be fetched now: no network, no disk space, or bytes that differ from those published."""


class TemplateRefused(BackendError):
    """The chat template raised or cannot be rendered; the same conversation would be refused every time."""


class CheckpointCorrupt(BackendError):
    """A saved folder is incomplete or does not match its digest."""


class Cancelled(BackendError):
    """The work was stopped on request; the engine is as it was before the call.

    partial: the completions that generate had sampled so far, partial[i][j] for completion j of prompts[i]. A
    completion that neither ended with an end-of-sequence token nor reached the requested length can be continued (see
    RowSeed). Empty from other calls.
    """

    def __init__(self, message: str, partial: list[list[Any]] | None = None) -> None:
        super().__init__(message)
        self.partial = partial or []


def size_text(size: float) -> str:
    """A size in bytes for people, in powers of ten: "3 kB", "2.2 MB", "62 MB", "1.26 GB"."""
    if size >= 999.5e6:
        return f"{size / 1e9:,.2f} GB"
    return f"{size / 1e6:.{0 if size >= 9.95e6 else 1}f} MB" if size >= 999_500 else f"{size / 1e3:.0f} kB"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ " Did you mean ...?" with the known name closest to this one; empty if none is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
