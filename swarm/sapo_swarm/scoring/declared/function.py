"""A reward function of the person's own, in TRL's shape: def reward(prompts, completions, **columns) -> list[float].

The one verifier that runs code. It is the person's: found in their task's reward.py, run only after they said yes to exactly this
file (library.allowed), only in the limited worker, and never anything that came from a swarm.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any

from sapo_swarm.scoring.declared.case import Case
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.verifiers import Function

Reward = Callable[..., Any]


class NoReward(ValueError):
    """reward.py gives no reward: no such function, an error in it, or something else than a number."""


def own_function(_part: Function, case: Case) -> float:
    """What the function says of one completion, cut to [0, 1]. Raises NoReward, and whatever the function raises."""
    found = load(case.task.code)(
        prompts=[case.task.spec.fill(dict(case.row))],
        completions=[case.text],
        **{name: [cell] for name, cell in case.row.items() if name not in ("prompts", "completions")},
    )
    if len(found) != 1 or not math.isfinite(float(found[0])):
        raise NoReward(f"It gave {str(found)[:80]} for one completion.")
    return min(1.0, max(0.0, float(found[0])))


@lru_cache(maxsize=4)
def load(code: bytes) -> Reward:
    """The function in this file. Raises NoReward, and whatever the file raises; PermissionError without the person's yes."""
    return find(vars(execute(code, "reward.py")))


@lru_cache(maxsize=4)
def execute(code: bytes, name: str) -> ModuleType:
    """The file as a module. Raises whatever it raises; PermissionError without the person's yes."""
    if not library.allowed(code):
        raise PermissionError(f"Nobody said yes to this {name}.")
    module = sys.modules[f"own_{name}"] = ModuleType(f"own_{name}")  # dataclasses look their module up
    exec(compile(code, name, "exec", dont_inherit=True), module.__dict__)  # noqa: S102  (the person's own file, after their yes, in the worker)
    return module


def find(names: Mapping[str, Any]) -> Reward:
    """`reward`, or the only function of the file that takes prompts and completions. Raises NoReward."""
    if callable(names.get("reward")):
        return names["reward"]  # type: ignore[no-any-return]
    fits = [
        value
        for name, value in names.items()
        if inspect.isfunction(value) and not name.startswith("_") and _fits(value)
    ]
    if len(fits) != 1:
        raise NoReward(
            f"reward.py has {len(fits)} functions that take prompts and completions; name one of them reward."
        )
    return fits[0]


def _fits(function: Any) -> bool:
    parameters = inspect.signature(function).parameters
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return "completions" in parameters and open_ended
