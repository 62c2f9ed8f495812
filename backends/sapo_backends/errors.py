"""The exceptions that engines raise on purpose, helpers for their messages (sizes, name hints), and the CancelToken.

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
import threading
import time
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


class CancelToken:
    """A flag that one thread sets and an engine polls between decode steps and micro-batches."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        """Ask the engine to stop; from any thread."""
        self._event.set()

    def reset(self) -> None:
        """Forget an earlier cancel."""
        self._event.clear()

    @property
    def cancelled(self) -> bool:
        """Whether cancel was called."""
        return self._event.is_set()

    def wait(self, seconds: float) -> None:
        """Sleep for this many seconds, or until cancel is called."""
        self._event.wait(seconds)

    def raise_if_cancelled(self) -> None:
        """Raise Cancelled if cancel was called."""
        if self._event.is_set():
            raise Cancelled("Stopped on request.")


class TimeLimit(CancelToken):
    """Cancelled when its parent is, or after `seconds`."""

    def __init__(self, parent: CancelToken, seconds: float) -> None:
        super().__init__()
        self._parent, self._until = parent, time.monotonic() + seconds

    @property
    def passed(self) -> bool:
        """Whether the seconds have passed."""
        return time.monotonic() >= self._until

    @property
    def cancelled(self) -> bool:
        """See CancelToken.cancelled."""
        return self._parent.cancelled or self.passed

    def cancel(self) -> None:
        """See CancelToken.cancel; cancels the parent."""
        self._parent.cancel()

    def reset(self) -> None:
        """Reset the parent; time goes on."""
        self._parent.reset()

    def wait(self, seconds: float) -> None:
        """See CancelToken.wait; at most until the seconds have passed."""
        self._parent.wait(max(0.0, min(seconds, self._until - time.monotonic())))

    def raise_if_cancelled(self) -> None:
        """See CancelToken.raise_if_cancelled."""
        if self.cancelled:
            raise Cancelled("Stopped on request, or out of time.")


def size_text(size: float) -> str:
    """A size in bytes for people, in powers of ten: "3 kB", "2.2 MB", "62 MB", "1.26 GB"."""
    if size >= 999.5e6:
        return f"{size / 1e9:,.2f} GB"
    return f"{size / 1e6:.{0 if size >= 9.95e6 else 1}f} MB" if size >= 999_500 else f"{size / 1e3:.0f} kB"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ " Did you mean ...?" with the known name closest to this one; empty if none is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
