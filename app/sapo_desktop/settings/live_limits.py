"""The current limits from the settings file: a change takes effect within a second, whoever made it."""

from __future__ import annotations

import logging
from pathlib import Path

from sapo_desktop import settings
from sapo_desktop.errors import AppError
from sapo_swarm.node.governor.rules import ResourceLimits


class LiveLimits:
    """Reads the file only when it changed. An unreadable file leaves the limits unchanged."""

    def __init__(self, path: Path, limits: ResourceLimits) -> None:
        """limits: as the file has them now."""
        self._path, self._limits = path, limits
        self._seen = self._stamp()

    def __call__(self) -> ResourceLimits:
        """The limits as they are now."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._limits = settings.load_settings(self._path).limits
            except AppError as error:
                logging.getLogger(__name__).warning("The limits stay as they were. %s", error)
        return self._limits

    def _stamp(self) -> tuple[int, int]:
        """A stamp that changes with every write (each replaces the file); (0, 0) without a file."""
        try:
            facts = self._path.stat()
        except OSError:
            return 0, 0
        return facts.st_mtime_ns, facts.st_ino
