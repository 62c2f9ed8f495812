"""An invite as a command gets it: a secret, which must not be in the process list for every account to read."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

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
