"""The node's log file: rotated daily, 14 kept. Libraries log there, never to the terminal."""

from __future__ import annotations

import logging
import os
import warnings
from logging.handlers import TimedRotatingFileHandler
from pathlib import Path


def node_logging(path: Path) -> None:
    """Send all logging and warnings of this process to the file."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    handler = TimedRotatingFileHandler(path, when="midnight", backupCount=14, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    warnings.simplefilter("default")
