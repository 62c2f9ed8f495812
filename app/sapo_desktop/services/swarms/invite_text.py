"""An invite as a verb gets it, a secret that must not stand in the list of processes, and as a QR code for a terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

# An invite as a verb gets it: a secret, which must not stand in the list of processes for every account to read.

VARIABLE = "SAPO_INVITE"
_INVITE = re.compile(r"(--[a-z-]+=)?(sapo://.*)", re.DOTALL)


def extract_invite(arguments: Sequence[str]) -> tuple[list[str], str]:
    """The arguments with "-" in the place of an invite, and the invite ("" where there is none)."""
    out, invite = [], ""
    for argument in arguments:
        found = _INVITE.fullmatch(argument)
        if found:
            invite = found[2]
            argument = f"{found[1] or ''}-"
        out.append(argument)
    return out, invite


def hide_typed_invite() -> None:
    """Where an invite was typed as an argument: become the same process with it in the environment, which only the own account
    can read. Windows shows arguments to their owner alone and stays as it is."""
    arguments, invite = extract_invite(sys.orig_argv[1:])
    if not invite or os.name != "posix":
        return
    os.environ[VARIABLE] = invite
    os.execv(sys.executable, [sys.executable, *arguments])


def read_invite(given: str) -> str:
    """The invite that `--join` names: itself, or for "-" the variable's, else a line of standard input."""
    if given != "-":
        return given
    return os.environ.pop(VARIABLE, "") or sys.stdin.readline(1024)


# A QR code as lines of half blocks: two modules a character, dark on light, with the quiet zone that scanners need.

QUIET = 2
"""Modules around the code; the standard asks for 4, phones are content with 2."""


def qr_code_lines(text: str) -> list[str]:
    """The code of `text`; "█" is a dark module above and below. Show it dark on a light ground."""
    import segno

    code = segno.make(text, error="l", micro=False, boost_error=False)
    rows = [list(map(bool, row)) for row in code.matrix_iter(border=QUIET)]
    if len(rows) % 2:
        rows.append([False] * len(rows[0]))
    glyphs = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}
    return ["".join(glyphs[pair] for pair in zip(*rows[i : i + 2], strict=True)) for i in range(0, len(rows), 2)]


def for_terminal(text: str) -> str:
    """The code with its colours: black on white, whatever the terminal's own are."""
    return "\n".join(f"\x1b[30;107m{line}\x1b[0m" for line in qr_code_lines(text))
