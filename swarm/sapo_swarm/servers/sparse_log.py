"""What strangers can make a server write is little, however often they ask."""

from __future__ import annotations

import logging
import time
from typing import Any

from aiohttp import web

EVERY_S = 10.0


class Sparse(logging.Filter):
    """At most one record in ten seconds: a line for every malformed request would let anybody fill the disk."""

    def __init__(self) -> None:
        super().__init__()
        self._last = -EVERY_S

    def filter(self, _record: logging.LogRecord) -> bool:
        """True for the records that pass."""
        now = time.monotonic()
        if now - self._last < EVERY_S:
            return False
        self._last = now
        return True


def sparse(log: logging.Logger) -> logging.Logger:
    """The same log, with lines ten seconds apart at least: for aiohttp's, and for whatever a request can bring about."""
    if not any(isinstance(one, Sparse) for one in log.filters):
        log.addFilter(Sparse())
    return log


def server_runner(application: web.Application, log: str, **options: Any) -> web.AppRunner:
    """What every server here runs on: no line for a request that was answered, few for others. options: aiohttp's."""
    return web.AppRunner(application, access_log=None, logger=sparse(logging.getLogger(log)), **options)
