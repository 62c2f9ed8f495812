"""The node's log stays small whatever is written into it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sapo_desktop.commands.nodes import node


def test_a_log_is_rotated_by_size_and_only_the_newest_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "LARGEST", 2000)
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        node.node_logging(tmp_path / "node.log")
        for number in range(400):
            logging.getLogger("test").info("line %d %s", number, "x" * 50)
        logging.getLogger("test").warning("said \x1b]52;c;x\x07 \x9b2J \u202e")
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers, root.level = before, level
        logging.captureWarnings(False)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 1 + node.KEPT
    assert all(file.stat().st_size <= 2000 for file in files)
    newest = (tmp_path / "node.log").read_text("utf-8")
    assert "line 399" in newest
    assert not set(newest) & set("\x1b\x07\x9b\u202e"), "`cat node.log` obeys nobody"
