"""Custom environments: the class with its tools, the tool call in a model's turn, and playing an episode."""

from __future__ import annotations

import inspect
import json
import math
import random
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType, NoneType, UnionType
from typing import Any

import msgspec

from sapo_swarm.scoring.declared_verifiers import execute_file

# The person's own environment, in TRL's shape, found by duck typing: reset(**row), typed public methods, get_reward().
#
# It runs only after the person said yes to exactly this file (library.is_code_allowed), only in the limited worker, and
# never if it came from a swarm.

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
    """environment.py holds no usable environment; the message says what to fix."""


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """A class of environments. schemas: its tools by name, as JSON Schema of a function (as for OpenAI and chat templates).

    reward: the file's function for environments without get_reward(), or None. calls: the environment's own pattern of a tool
    call, or None.
    """

    made: type
    schemas: Mapping[str, dict[str, Any]]
    reward: Callable[..., Any] | None
    calls: re.Pattern[str] | None


@lru_cache(maxsize=4)
def load_environment_spec(code: bytes) -> EnvironmentSpec:
    """The environment in this file. Raises NoEnvironment, whatever the file raises, PermissionError without the person's yes."""
    module = execute_file(code, "environment.py")
    own = [value for value in vars(module).values() if inspect.isclass(value) and value.__module__ == module.__name__]
    fits = [value for value in own if callable(getattr(value, "reset", None)) and not value.__name__.startswith("_")]
    if len(fits) > 1:  # a base class of another does not count
        fits = [value for value in fits if not any(issubclass(o, value) and o is not value for o in fits)]
    if len(fits) != 1:
        raise NoEnvironment(f"environment.py has {len(fits)} classes with a method reset; it needs exactly one.")
    (made,) = fits
    reward = _reward(module, made)
    schemas = {name: tool_schema(name, method) for name, method in _tools(made)}
    pattern = getattr(made, "calls", None)
    if not schemas:
        raise NoEnvironment(
            f"{made.__name__} has no tool: a public method with typed arguments and a docstring is one."
        )
    if pattern is None:
        return EnvironmentSpec(made, schemas, reward, None)
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise NoEnvironment(f"{made.__name__}.calls is no regular expression ({error}).") from error
    if not compiled.groupindex or not set(compiled.groupindex) <= set(schemas):
        raise NoEnvironment(f"{made.__name__}.calls needs groups that are named as tools: {', '.join(schemas)}.")
    return EnvironmentSpec(made, schemas, reward, compiled)


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


def tool_schema(name: str, method: Callable[..., Any]) -> dict[str, Any]:
    """A method as a tool: its description from the docstring, its arguments from their annotations. Raises NoEnvironment."""
    text = inspect.getdoc(method) or ""
    if not text:
        raise NoEnvironment(f"The tool {name} has no docstring: the model would not know what it is for.")
    try:
        hints = typing.get_type_hints(method)
    except Exception as error:  # an annotation names something undefined
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
    """A docstring's descriptions of arguments, under Args: (Google's style)."""
    part = re.split(r"^\s*(?:Args|Arguments):\s*$", text, maxsplit=1, flags=re.MULTILINE)
    if len(part) < 2:
        return {}
    lines = re.split(r"^\s*(?:Returns|Raises|Yields|Examples?):", part[1], maxsplit=1, flags=re.MULTILINE)[
        0
    ].splitlines()
    matches = [match for line in lines if (match := _ARGUMENT.match(line))]
    return {match[1]: match[2].strip() for match in matches}


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


def reward_of(found: EnvironmentSpec, environment: Any, row: Mapping[str, str], prompt: str, text: str) -> float:
    """The final reward from the environment or the file's function, clipped to [0, 1]. Raises NoEnvironment, and what it
    raises."""
    if found.reward is None:
        value = environment.get_reward()
    else:
        columns = {name: [cell] for name, cell in row.items() if name not in ("prompts", "completions", "environments")}
        parameters = inspect.signature(found.reward).parameters
        arguments = {"prompts": [prompt], "completions": [text], "environments": [environment]} | columns
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            arguments = {name: value for name, value in arguments.items() if name in parameters}
        values = found.reward(**arguments)
        if len(values) != 1:
            raise NoEnvironment(f"It gave {str(values)[:80]} for one environment.")
        value = values[0]
    number = float(value)
    if not math.isfinite(number):
        raise NoEnvironment(f"It gave {number} as a reward.")
    return min(1.0, max(0.0, number))


# The first tool call in what a model wrote.
#
# Three forms are understood: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (the chat templates of Qwen,
# Hermes, SmolLM), a turn that is nothing but such a JSON object (Llama 3, with "parameters"), and for small models
# `<NAME>argument</NAME>`. An environment may have its own pattern instead of the last (EnvironmentSpec.calls).

_JSON_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
MAX_ARGUMENTS = 8192


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that can be made, or (error) one that cannot. end: characters of the turn up to the end of the call."""

    name: str
    arguments: Mapping[str, Any]
    end: int
    error: str = ""


def first_call(text: str, found: EnvironmentSpec) -> ToolCall | None:
    """The call that ends first; None if the turn holds none, which makes it the model's last."""
    calls = [call for call in (_json(text, found), _bare(text, found), _simple(text, found)) if call is not None]
    return min(calls, key=lambda call: call.end) if calls else None


def _json(text: str, found: EnvironmentSpec) -> ToolCall | None:
    match = _JSON_CALL.search(text)
    return None if match is None else _parsed(match[1], match.end(), found)


def _bare(text: str, found: EnvironmentSpec) -> ToolCall | None:
    plain = text.strip()
    if not (plain.startswith("{") and plain.endswith("}") and '"name"' in plain):
        return None
    return _parsed(plain, len(text), found)


def _parsed(text: str, end: int, found: EnvironmentSpec) -> ToolCall:
    try:
        value = json.loads(text) if len(text) <= MAX_ARGUMENTS else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return ToolCall("", {}, end, 'a call is {"name": ..., "arguments": {...}}')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # some models write the arguments as JSON in JSON
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    return _checked(value["name"], arguments, end, found)


def _simple(text: str, found: EnvironmentSpec) -> ToolCall | None:
    if found.calls is not None:
        match = found.calls.search(text)
        name = match.lastgroup if match else None
        return None if match is None or name is None else _positional(name, match[name], match.end(), found)
    names = "|".join(map(re.escape, found.schemas))
    match = re.search(rf"<({names})>(.*?)</\1>", text, re.DOTALL)
    return None if match is None else _positional(match[1], match[2], match.end(), found)


def _positional(name: str, text: str, end: int, found: EnvironmentSpec) -> ToolCall:
    """Arguments as text: the whole text for a tool with one argument, else separated by commas, in order."""
    properties = found.schemas[name]["function"]["parameters"]["properties"]
    parts = [text] if len(properties) == 1 else text.split(",") if text.strip() else []
    if len(text) > MAX_ARGUMENTS or len(parts) > len(properties):
        return ToolCall(name, {}, end, f"{name} takes {len(properties)} arguments")
    return _checked(name, dict(zip(properties, (part.strip() for part in parts), strict=False)), end, found)


def _checked(name: str, given: Any, end: int, found: EnvironmentSpec) -> ToolCall:
    if name not in found.schemas:
        return ToolCall(name, {}, end, f"there is no tool {name[:40]}; there are: {', '.join(found.schemas)}")
    parameters = found.schemas[name]["function"]["parameters"]
    if not isinstance(given, dict):
        return ToolCall(name, {}, end, "the arguments of a call are a JSON object")
    unknown = [key for key in given if key not in parameters["properties"]]
    missing = [key for key in parameters["required"] if key not in given]
    if unknown or missing:
        return ToolCall(name, {}, end, f"{name} takes: {', '.join(parameters['properties']) or 'no arguments'}")
    try:
        values = {key: _typed(value, parameters["properties"][key].get("type", "")) for key, value in given.items()}
    except (ValueError, OverflowError, RecursionError):
        kinds = ", ".join(f"{key} is {value.get('type', 'any')}" for key, value in parameters["properties"].items())
        return ToolCall(name, {}, end, f"{name}: {kinds}")
    return ToolCall(name, values, end)


def _typed(value: Any, kind: str) -> Any:
    """Convert text that represents a number or a truth value. Raises ValueError, RecursionError."""
    if not isinstance(value, str) or kind == "string":
        return value
    if kind == "integer":
        return int(value[:40])
    if kind == "number":
        return float(value[:40])
    if kind == "boolean":
        return {"true": True, "false": False}.get(value.lower(), value)
    return json.loads(value) if kind in ("array", "object") else value


# Playing an episode from its beginning: what the environment answers is a pure function of the row and the model's
# turns.
#
# So nothing lives between two turns: a killed worker, a pause or a restart in the middle of an episode loses nothing.

MAX_REPLY = 4000
"""Characters of an environment's reply that the model gets to read."""


class EpisodeStep(msgspec.Struct, frozen=True, array_like=True):
    """The state of an episode after the model's last turn.

    replies: what the environment said to each call, in order. cut: characters of the last turn up to the end of its call, -1
    if it has none (the episode is over). over: no further turn. reward: in [0, 1], if it is over. well_formed: the last turn
    holds an answer.
    """

    replies: tuple[str, ...] = ()
    cut: int = -1
    over: bool = True
    reward: float = 0.0
    well_formed: bool = True


def start_environment(found: EnvironmentSpec, row: Mapping[str, str], prompt: str, seed: str) -> tuple[Any, str]:
    """A new environment, reset with the row; and the prompt followed by what reset() said. Raises what the class raises."""
    random.seed(seed)
    environment = found.made()
    observation = environment.reset(**row)
    return environment, f"{prompt}\n\n{_text(observation)}" if isinstance(observation, str) and observation else prompt


def replay_episode(
    found: EnvironmentSpec, row: Mapping[str, str], prompt: str, seed: str, turns: Sequence[str], most: int, final: bool
) -> EpisodeStep:
    """most: turns of the model, the last of which calls nothing. final: there is no room for another turn.

    The reward is the environment's alone. Raises what the class raises in reset() and get_reward().
    """
    environment, _ = start_environment(found, row, prompt, seed)
    replies: list[str] = []
    cut, over = -1, True
    for number, text in enumerate(turns, 1):
        call = first_call(text, found) if number < most else None
        if call is None:
            cut, over = -1, True
            break
        replies.append(_answer(environment, call))
        cut, over = call.end, bool(getattr(environment, "done", False))
        if over:
            break
    over = over or final or not turns
    reward = reward_of(found, environment, row, prompt, turns[-1] if turns else "") if over else 0.0
    return EpisodeStep(tuple(replies), cut, over, reward)


def _answer(environment: Any, call: ToolCall) -> str:
    """The tool's result as text; an error is given to the model as a result."""
    if call.error:
        return _text(f"error: {call.error}")
    try:
        return _text(getattr(environment, call.name)(**call.arguments))
    except MemoryError:
        raise
    except Exception as error:  # the tool's own error: the model may do better in its next turn
        return _text(f"error: {error}")


def _text(value: object) -> str:
    if isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            text = str(value)
    return text[:MAX_REPLY].encode("utf-8", "replace").decode("utf-8")
