"""An environment of the person's own, in TRL's shape, found by duck typing: reset(**row), typed public methods, get_reward().

Run only after the person's yes to exactly this file (library.allowed), only in the limited worker, never from a swarm.
"""

from __future__ import annotations

import inspect
import math
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType, NoneType, UnionType
from typing import Any

from sapo_swarm.scoring.declared.function import execute

_NO_TOOLS = frozenset({"reset", "get_reward"})
_KINDS = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
    tuple: "array",
}
_ARGUMENT = re.compile(r"^\s*(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


class NoEnvironment(ValueError):
    """environment.py holds no usable environment; the message says what to mend."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A class of environments. schemas: its tools by name, as JSON Schema of a function (OpenAI's, and chat templates').

    reward: the file's function for environments without get_reward(), or None. calls: the environment's own pattern of a tool
    call, or None.
    """

    made: type
    schemas: Mapping[str, dict[str, Any]]
    reward: Callable[..., Any] | None
    calls: re.Pattern[str] | None


@lru_cache(maxsize=4)
def blueprint(code: bytes) -> Blueprint:
    """The environment in this file. Raises NoEnvironment, what the file raises, PermissionError without the person's yes."""
    module = execute(code, "environment.py")
    own = [value for value in vars(module).values() if inspect.isclass(value) and value.__module__ == module.__name__]
    fits = [value for value in own if callable(getattr(value, "reset", None)) and not value.__name__.startswith("_")]
    if len(fits) > 1:  # a base class of another is not the one
        fits = [value for value in fits if not any(issubclass(o, value) and o is not value for o in fits)]
    if len(fits) != 1:
        raise NoEnvironment(f"environment.py has {len(fits)} classes with a method reset; it needs exactly one.")
    (made,) = fits
    reward = _reward(module, made)
    schemas = {name: schema(name, method) for name, method in _tools(made)}
    pattern = getattr(made, "calls", None)
    if not schemas:
        raise NoEnvironment(
            f"{made.__name__} has no tool: a public method with typed arguments and a docstring is one."
        )
    if pattern is None:
        return Blueprint(made, schemas, reward, None)
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise NoEnvironment(f"{made.__name__}.calls is no regular expression ({error}).") from error
    if not compiled.groupindex or not set(compiled.groupindex) <= set(schemas):
        raise NoEnvironment(f"{made.__name__}.calls needs groups that are named as tools: {', '.join(schemas)}.")
    return Blueprint(made, schemas, reward, compiled)


def _reward(module: ModuleType, made: type) -> Callable[..., Any] | None:
    if callable(getattr(made, "get_reward", None)):
        return None
    fits = [
        value
        for value in vars(module).values()
        if inspect.isfunction(value) and "environments" in inspect.signature(value).parameters
    ]
    if len(fits) != 1:
        raise NoEnvironment(
            f"{made.__name__} has no get_reward(), and environment.py has {len(fits)} functions that take environments."
        )
    return fits[0]


def _tools(made: type) -> list[tuple[str, Callable[..., Any]]]:
    return [
        (name, value)
        for name, value in inspect.getmembers(made, inspect.isroutine)
        if not name.startswith("_") and name not in _NO_TOOLS
    ]


def schema(name: str, method: Callable[..., Any]) -> dict[str, Any]:
    """A method as a tool: what it does from its docstring, its arguments from their annotations. Raises NoEnvironment."""
    text = inspect.getdoc(method) or ""
    if not text:
        raise NoEnvironment(f"The tool {name} has no docstring: the model would not know what it is for.")
    try:
        hints = typing.get_type_hints(method)
    except Exception as error:  # a name in an annotation that does not exist
        raise NoEnvironment(f"The annotations of the tool {name} cannot be read ({error}).") from error
    described = _described(text)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in list(inspect.signature(method).parameters.values()):
        if parameter.name == "self" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name not in hints:
            raise NoEnvironment(f"The argument {parameter.name} of the tool {name} has no type.")
        about = described.get(parameter.name, "")
        properties[parameter.name] = _kind(hints[parameter.name]) | ({"description": about} if about else {})
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    summary = " ".join(re.split(r"\n\s*(?:Args|Arguments|Returns|Raises):", text)[0].split())
    arguments = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": summary, "parameters": arguments}}


def _described(text: str) -> dict[str, str]:
    """What a docstring says about arguments, under Args: (Google's style)."""
    part = re.split(r"^\s*(?:Args|Arguments):\s*$", text, maxsplit=1, flags=re.MULTILINE)
    if len(part) < 2:
        return {}
    lines = re.split(r"^\s*(?:Returns|Raises|Yields|Examples?):", part[1], maxsplit=1, flags=re.MULTILINE)[
        0
    ].splitlines()
    found = [match for line in lines if (match := _ARGUMENT.match(line))]
    return {match[1]: match[2].strip() for match in found}


def _kind(hint: Any) -> dict[str, Any]:
    """The JSON Schema of an annotation."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"type": _KINDS.get(type(inside[0]), "string"), "enum": list(inside)}
    if origin in (typing.Union, UnionType):
        kinds = [kind for kind in inside if kind is not NoneType]
        return _kind(kinds[0]) if len(kinds) == 1 else {"anyOf": [_kind(kind) for kind in kinds]}
    if origin in (list, tuple) and inside:
        return {"type": "array", "items": _kind(inside[0])}
    return {"type": _KINDS.get(origin or hint, "string")}


def reward_of(found: Blueprint, environment: Any, row: Mapping[str, str], prompt: str, text: str) -> float:
    """What the environment, or the file's function, says in the end, cut to [0, 1]. Raises NoEnvironment, and what it raises."""
    if found.reward is None:
        value = environment.get_reward()
    else:
        columns = {name: [cell] for name, cell in row.items() if name not in ("prompts", "completions", "environments")}
        wanted = inspect.signature(found.reward).parameters
        given = {"prompts": [prompt], "completions": [text], "environments": [environment]} | columns
        if not any(p.kind is p.VAR_KEYWORD for p in wanted.values()):
            given = {name: value for name, value in given.items() if name in wanted}
        values = found.reward(**given)
        if len(values) != 1:
            raise NoEnvironment(f"It gave {str(values)[:80]} for one environment.")
        value = values[0]
    number = float(value)
    if not math.isfinite(number):
        raise NoEnvironment(f"It gave {number} as a reward.")
    return min(1.0, max(0.0, number))
