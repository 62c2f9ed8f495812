"""The node's log file: rotated by size, so that it never fills the disk. Libraries log there, never to the terminal."""

from __future__ import annotations

import logging
import os
import warnings
from logging.handlers import RotatingFileHandler
from pathlib import Path

from sapo_swarm.protocol.safe_text import SafeFormatter

LARGEST = 4 * 2**20
"""Bytes of one file; with its KEPT predecessors a log takes 20 MiB at most."""
KEPT = 4


def node_logging(path: Path) -> None:
    """Send all logging and warnings of this process to the file."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    handler = RotatingFileHandler(path, maxBytes=LARGEST, backupCount=KEPT, encoding="utf-8", delay=True)
    handler.setFormatter(SafeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    warnings.simplefilter("default")
