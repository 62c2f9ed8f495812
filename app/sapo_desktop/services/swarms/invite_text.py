"""An invite as a verb gets it: a secret, which must not stand in the list of processes for every account to read."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

VARIABLE = "SAPO_INVITE"
_INVITE = re.compile(r"(--[a-z-]+=)?(sapo://.*)", re.DOTALL)


def hidden(arguments: Sequence[str]) -> tuple[list[str], str]:
    """The arguments with "-" in the place of an invite, and the invite ("" where there is none)."""
    out, invite = [], ""
    for argument in arguments:
        found = _INVITE.fullmatch(argument)
        if found:
            invite = found[2]
            argument = f"{found[1] or ''}-"
        out.append(argument)
    return out, invite


def hide() -> None:
    """Where an invite was typed as an argument: become the same process with it in the environment, which only the own account
    can read. Windows shows arguments to their owner alone and stays as it is."""
    arguments, invite = hidden(sys.orig_argv[1:])
    if not invite or os.name != "posix":
        return
    os.environ[VARIABLE] = invite
    os.execv(sys.executable, [sys.executable, *arguments])


def read(given: str) -> str:
    """The invite that `--join` names: itself, or for "-" the variable's, else a line of standard input."""
    if given != "-":
        return given
    return os.environ.pop(VARIABLE, "") or sys.stdin.readline(1024)
