"""Draws the rooms in docs/contributing.md from the packages' own docstrings: python packaging/rooms.py

Standard library only. A test runs `tree()` and compares it with the page.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "contributing.md"
FLOORS = (
    "app/sapo_desktop",
    "assets/sapo_lab",
    "swarm/sapo_swarm",
    "backends/sapo_backends",
    "assets/sapo_assets",
)
BEGIN, END = "```text\n", "```\n"
_COLUMN = 34
_WIDTH = 118


def tree() -> str:
    """The floors and the packages right below them, each with the first sentence of its docstring."""
    return "\n".join(line for floor in FLOORS for line in _lines(ROOT / floor, 0)) + "\n"


def drawn(page: str) -> str:
    """The page with the tree of now between the first fence that begins with `text` and its end."""
    start = page.index(BEGIN) + len(BEGIN)
    return page[:start] + tree() + page[page.index(END, start) :]


def _lines(folder: Path, depth: int) -> Iterator[str]:
    name = f"{folder.parent.name}/{folder.name}/" if depth == 0 else f"{folder.name}/"
    yield _line(name, folder / "__init__.py", depth)
    if depth == 0:
        for inner in sorted(path.parent for path in folder.glob("*/__init__.py")):
            yield from _lines(inner, depth + 1)


def _line(name: str, module: Path, depth: int) -> str:
    said = ast.get_docstring(ast.parse(module.read_text("utf-8"))) or ""
    first = re.split(r"(?<=[^.][.?!])\s|\n\n", said, maxsplit=1)[0]
    text = f"{'    ' * depth}{name}".ljust(_COLUMN) + " " + " ".join(first.split()).rstrip(".")
    if len(text) <= _WIDTH:
        return text.rstrip()
    cut = text[:_WIDTH]
    marks = (" (",) if cut.count("(") > cut.count(")") else (": ", "; ", ", ", " (")
    clause = max(cut.rfind(mark) for mark in marks)
    return cut[: clause if clause > _COLUMN else cut.rfind(" ")].rstrip(" ,:;") + " …"


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text("utf-8")), "utf-8")
