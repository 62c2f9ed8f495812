"""An invite as a command gets it (a secret that must not be in the process list), and as a QR code for a terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

# An invite as a command gets it: a secret, which must not be in the process list for every account to read.

VARIABLE = "SAPO_INVITE"
_INVITE = re.compile(r"(--[a-z-]+=)?(sapo://.*)", re.DOTALL)


def extract_invite(arguments: Sequence[str]) -> tuple[list[str], str]:
    """The arguments with "-" in place of an invite, and the invite ("" where there is none)."""
    out, invite = [], ""
    for argument in arguments:
        match = _INVITE.fullmatch(argument)
        if match:
            invite = match[2]
            argument = f"{match[1] or ''}-"
        out.append(argument)
    return out, invite


def hide_typed_invite() -> None:
    """Where an invite was typed as an argument: re-execute this process with it in the environment, which only the same
    account can read. Windows shows arguments to their owner alone, so nothing changes there."""
    arguments, invite = extract_invite(sys.orig_argv[1:])
    if not invite or os.name != "posix":
        return
    os.environ[VARIABLE] = invite
    os.execv(sys.executable, [sys.executable, *arguments])


def read_invite(given: str) -> str:
    """The invite given to `--join`: the text itself, or for "-" the variable's value, else a line of standard input."""
    if given != "-":
        return given
    return os.environ.pop(VARIABLE, "") or sys.stdin.readline(1024)


# A QR code as lines of half blocks: two modules per character, dark on light, with the quiet zone that scanners need.

QUIET = 2
"""Modules around the code; the standard asks for 4, but 2 are enough for phones."""


def qr_code_lines(text: str) -> list[str]:
    """The code for `text`; "█" is a dark module above and below. Show it dark on a light background."""
    import segno

    code = segno.make(text, error="l", micro=False, boost_error=False)
    rows = [list(map(bool, row)) for row in code.matrix_iter(border=QUIET)]
    if len(rows) % 2:
        rows.append([False] * len(rows[0]))
    glyphs = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}
    return ["".join(glyphs[pair] for pair in zip(*rows[i : i + 2], strict=True)) for i in range(0, len(rows), 2)]


def for_terminal(text: str) -> str:
    """The code with its colours: black on white, whatever the terminal's own colours are."""
    return "\n".join(f"\x1b[30;107m{line}\x1b[0m" for line in qr_code_lines(text))
