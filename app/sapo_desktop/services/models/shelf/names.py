"""What a model may be called: a name that is easy to type, and one that no verb and no system takes for something else."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection

from sapo_backends.checkpoints.locate import BUNDLED
from sapo_desktop.errors import UsageError

LONGEST = 40
FIRST = "my-model"
"""The name of the first model, where nobody gave one."""
_PATTERN = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST - 1}}}")
_WORDS = frozenset(
    {"base", "latest", "best", "new", "all", "none", "show", "rename", "duplicate", "delete", "prune", "check"}
).union(BUNDLED)
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))})


def check(name: str, taken: Collection[str] = ()) -> str:
    """The name. taken: names that there are already; capital and small letters are not told apart.

    Raises UsageError that says what a name looks like, or which model has this one.
    """
    if not _PATTERN.fullmatch(name) or name.endswith("."):
        raise UsageError(
            f"{name[:60]!r} is no name for a model. Use 1 to {LONGEST} letters, digits, dots, dashes or underscores, "
            f"a letter or digit first: {free(suggested(name), taken)}"
        )
    if _has_meaning(name):
        other = free(suggested(name), taken)
        raise UsageError(f"A model cannot be called {name!r}: that word has a meaning already. Try {other}.")
    for other in taken:
        if other.lower() == name.lower():
            raise UsageError(f"There is a model {other!r} already. Choose another name, such as {free(name, taken)}.")
    return name


def _has_meaning(name: str) -> bool:
    return name.lower() in _WORDS or name.lower().partition(".")[0] in _DEVICES


def suggested(text: str) -> str:
    """The nearest name to any text."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:LONGEST].rstrip(".-_") or FIRST
    return f"my-{name}"[:LONGEST].rstrip(".-_") if _has_meaning(name) else name


def train_on(task: str, base: str = "", taken: Collection[str] = ()) -> str:
    """The commands that train a new model on a task. base: that it was tried on, "" for the one of the settings; taken: names of
    models that there are."""
    name = free(suggested(task), taken)
    start = f" --base {shlex.quote(base)}" if base else ""
    return f"sapo-desktop new {name}{start} --tasks {task}, then: sapo-desktop node {name}"


def free(name: str, taken: Collection[str]) -> str:
    """The name, or the name with the first number that makes it new: my-model-2."""
    used = {other.lower() for other in taken}
    found, number = name, 1
    while found.lower() in used:
        number += 1
        ending = f"-{number}"
        found = name[: LONGEST - len(ending)] + ending
    return found
