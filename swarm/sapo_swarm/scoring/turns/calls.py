"""The first tool call in what a model wrote.

Three forms are understood: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (the chat templates of Qwen, Hermes,
SmolLM), a turn that is nothing but such a JSON object (Llama 3, with "parameters"), and for small models `<NAME>argument</NAME>`.
An environment may have a pattern of its own instead of the last (Blueprint.calls).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sapo_swarm.scoring.turns.environment import Blueprint

_JSON_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
MAX_ARGUMENTS = 8192


@dataclass(frozen=True, slots=True)
class Call:
    """A call that can be made, or (error) one that cannot. end: characters of the turn up to the end of the call."""

    name: str
    arguments: Mapping[str, Any]
    end: int
    error: str = ""


def first_call(text: str, found: Blueprint) -> Call | None:
    """The call that ends first; None where the turn holds none, so that it is the model's last."""
    calls = [call for call in (_json(text, found), _bare(text, found), _simple(text, found)) if call is not None]
    return min(calls, key=lambda call: call.end) if calls else None


def _json(text: str, found: Blueprint) -> Call | None:
    match = _JSON_CALL.search(text)
    return None if match is None else _parsed(match[1], match.end(), found)


def _bare(text: str, found: Blueprint) -> Call | None:
    plain = text.strip()
    if not (plain.startswith("{") and plain.endswith("}") and '"name"' in plain):
        return None
    return _parsed(plain, len(text), found)


def _parsed(text: str, end: int, found: Blueprint) -> Call:
    try:
        value = json.loads(text) if len(text) <= MAX_ARGUMENTS else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return Call("", {}, end, 'a call is {"name": ..., "arguments": {...}}')
    given = value.get("arguments", value.get("parameters", {}))
    if isinstance(given, str):  # some models write the arguments as JSON in JSON
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            given = None
    return _checked(value["name"], given, end, found)


def _simple(text: str, found: Blueprint) -> Call | None:
    if found.calls is not None:
        match = found.calls.search(text)
        name = match.lastgroup if match else None
        return None if match is None or name is None else _positional(name, match[name], match.end(), found)
    names = "|".join(map(re.escape, found.schemas))
    match = re.search(rf"<({names})>(.*?)</\1>", text, re.DOTALL)
    return None if match is None else _positional(match[1], match[2], match.end(), found)


def _positional(name: str, text: str, end: int, found: Blueprint) -> Call:
    """Arguments as text: the whole of it for a tool with one, else separated by commas, in order."""
    properties = found.schemas[name]["function"]["parameters"]["properties"]
    parts = [text] if len(properties) == 1 else text.split(",") if text.strip() else []
    if len(text) > MAX_ARGUMENTS or len(parts) > len(properties):
        return Call(name, {}, end, f"{name} takes {len(properties)} arguments")
    return _checked(name, dict(zip(properties, (part.strip() for part in parts), strict=False)), end, found)


def _checked(name: str, given: Any, end: int, found: Blueprint) -> Call:
    if name not in found.schemas:
        return Call(name, {}, end, f"there is no tool {name[:40]}; there are: {', '.join(found.schemas)}")
    parameters = found.schemas[name]["function"]["parameters"]
    if not isinstance(given, dict):
        return Call(name, {}, end, "the arguments of a call are a JSON object")
    unknown = [key for key in given if key not in parameters["properties"]]
    missing = [key for key in parameters["required"] if key not in given]
    if unknown or missing:
        return Call(name, {}, end, f"{name} takes: {', '.join(parameters['properties']) or 'no arguments'}")
    try:
        values = {key: _typed(value, parameters["properties"][key].get("type", "")) for key, value in given.items()}
    except (ValueError, OverflowError, RecursionError):
        kinds = ", ".join(f"{key} is {value.get('type', 'any')}" for key, value in parameters["properties"].items())
        return Call(name, {}, end, f"{name}: {kinds}")
    return Call(name, values, end)


def _typed(value: Any, kind: str) -> Any:
    """Text that stands for a number or a truth value becomes one. Raises ValueError, RecursionError."""
    if not isinstance(value, str) or kind == "string":
        return value
    if kind == "integer":
        return int(value[:40])
    if kind == "number":
        return float(value[:40])
    if kind == "boolean":
        return {"true": True, "false": False}.get(value.lower(), value)
    return json.loads(value) if kind in ("array", "object") else value
