"""Wraps the paragraphs of Markdown pages that have a line too wide for a screen: python packaging/wrap_docs.py [PAGE ...]

Standard library only. Tables, headings, pictures and fenced blocks stay as they are. Without pages: all of docs but the lab's.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 118
_AS_IS = re.compile(r"\||#|!\[|\s*$")
_BULLET = re.compile(r"(\s*)((?:[-*]|\d{1,2}\.) )?")


def wrapped(page: str) -> str:
    """The page with every paragraph and list item wrapped to WIDTH columns."""
    out: list[str] = []
    paragraph: list[str] = []
    fenced = False
    for line in [*page.split("\n"), "\n"]:
        if line.startswith("```"):
            fenced = not fenced
            out += [*_lines(paragraph), line]
            paragraph = []
        elif fenced or _AS_IS.match(line):
            out += [*_lines(paragraph), line]
            paragraph = []
        elif re.match(r"\s*([-*]|\d{1,2}\.) ", line):
            out += _lines(paragraph)
            paragraph = [line]
        else:
            paragraph.append(line)
    return "\n".join(out[:-1])


def _lines(paragraph: list[str]) -> list[str]:
    if not paragraph:
        return []
    found = _BULLET.match(paragraph[0])
    indent, bullet = (found[1], found[2] or "") if found else ("", "")
    text = " ".join(line.strip() for line in paragraph).removeprefix(bullet)
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent + bullet,
        subsequent_indent=indent + " " * len(bullet),
        break_long_words=False,
        break_on_hyphens=False,
    )


def main() -> None:
    pages = [Path(page) for page in sys.argv[1:]] or [
        *ROOT.glob("*.md"),
        *(page for page in (ROOT / "docs").rglob("*.md") if "lab" not in page.parts and page.name != "manual.md"),
    ]
    for page in pages:
        text = page.read_text("utf-8")
        if any(len(line) > 120 and not line.startswith(("|", "![")) for line in text.splitlines()):
            page.write_text(wrapped(text), "utf-8")
            print(page)


if __name__ == "__main__":
    main()
