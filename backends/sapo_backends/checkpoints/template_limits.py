"""What a chat template may cost: a sandbox for Jinja in which every step, text and list is counted.

Jinja's own sandbox keeps a template from files and code, not from time and memory: nested loops run for ever, and
`"x".center(3e9)` or `tojson(indent=2e9)` asks for gigabytes in one call. Here a render has a budget. Loop bodies, calls,
filters and operators draw from it, by the size of what they make; a number, text or list beyond any conversation's is refused
before it is made, and so is what takes longer than a second of this thread's time. A render that stays within it gives what
Jinja's own sandbox gives.
"""

from __future__ import annotations

import contextvars
import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from sapo_backends.errors import TemplateRefused

MAX_SOURCE = 512 * 1024
"""Characters of a template."""
MAX_TEXT = 4_000_000
"""Characters of a text in a render, and of what it writes."""
MAX_ITEMS = 200_000
"""Items of a list or an object, those of the ones within it included."""
MAX_NUMBER = 1_000_000
"""An argument of a call or a filter: widths, indents, counts."""
MAX_BITS = 256
"""Of a number that an operator makes."""
STEPS = 2_000_000
"""Steps of a render: a loop's pass, a call, a filter or an operator, and one more for every CHARS_A_STEP of its result. A
conversation of 1,001 messages takes 2,260 in SmolLM2's template."""
CHARS_A_STEP = 256
SECONDS = 1.0
"""Of this thread's processor time, looked at every LOOK steps."""
LOOK = 16
_WIDE = re.compile(r"\d{6,}")
_UNBOUNDED = ("random", "urlize")
"""Filters that are left out: one is no function of its input, the other searches in more than linear time."""
_TICK = "__step__"


@dataclass(slots=True)
class _Budget:
    steps: int = STEPS
    calls: int = 0
    until: float = field(default_factory=lambda: time.thread_time() + SECONDS)

    def spend(self, steps: int) -> None:
        self.steps -= steps
        self.calls += 1
        if self.steps < 0:
            refuse_size("it takes too many steps")
        if self.calls % LOOK == 0 and time.thread_time() > self.until:
            refuse_size("it takes too long")


_BUDGET: contextvars.ContextVar[_Budget | None] = contextvars.ContextVar("budget of a render", default=None)


def refuse_size(reason: str) -> NoReturn:
    """Raise TemplateRefused for a template that asks for more than a conversation needs."""
    raise TemplateRefused(
        f"The model's chat template is refused: {reason}. Use another model, or a chat_template.jinja that you trust."
    )


@contextmanager
def render_budget() -> Iterator[None]:
    """Within it a template has one budget, in this thread."""
    token = _BUDGET.set(_Budget())
    try:
        yield
    finally:
        _BUDGET.reset(token)


def _spend(steps: int = 1) -> str:
    if (budget := _BUDGET.get()) is not None:
        budget.spend(steps)
    return ""


def _items(value: object, left: int) -> int:
    """What is left of so many items after all those of the value and of what is within it; below 0: too many. A list that stands
    in it twice counts twice, as it would be written."""
    waiting = [value]
    while waiting and left >= 0:
        part = waiting.pop()
        if isinstance(part, Namespace):
            refuse_size("it puts a namespace into a list or another namespace")
        if isinstance(part, Mapping):
            left -= len(part)
            waiting += (
                [v for v in part.values() if isinstance(v, (list, tuple, Mapping, Namespace))] if left >= 0 else []
            )
        elif isinstance(part, (list, tuple)):
            left -= len(part)
            waiting += [v for v in part if isinstance(v, (list, tuple, Mapping, Namespace))] if left >= 0 else []
    return left


def _bounded(value: Any) -> Any:
    """The value, its size drawn from the budget. Raises TemplateRefused."""
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            refuse_size(f"it makes a text of {len(value):,} characters")
        _spend(1 + len(value) // CHARS_A_STEP)
    elif isinstance(value, (list, tuple, Mapping)):
        left = _items(value, MAX_ITEMS)
        if left < 0:
            refuse_size(f"it makes a list of more than {MAX_ITEMS:,} items")
        _spend(1 + (MAX_ITEMS - left) // 16)
    else:
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            refuse_size(f"it makes a number of {value.bit_length():,} bits")
        _spend()
    return value


def _require_small(values: Iterable[object]) -> None:
    """Arguments: widths, indents and counts are small, and so is what is written in full."""
    for value in values:
        if isinstance(value, (int, float)) and not -MAX_NUMBER <= value <= MAX_NUMBER:
            refuse_size(f"it asks for a width or a count of {value:,}")
        if isinstance(value, (list, tuple, Mapping)) and _items(value, MAX_ITEMS) < 0:
            refuse_size(f"it hands on a list of more than {MAX_ITEMS:,} items")


def _require_narrow(text: object) -> None:
    """A format's widths are small."""
    if isinstance(text, str) and _WIDE.search(text):
        refuse_size("it formats to a width of six digits or more")


def _require_replaced(text: str, old: object, new: object) -> None:
    """`replace` multiplies lengths: what it makes is counted before it is made."""
    if isinstance(old, str) and isinstance(new, str) and len(new) > len(old):
        places = text.count(old) if old else len(text) + 1
        if len(text) + places * (len(new) - len(old)) > MAX_TEXT:
            refuse_size("it makes a text longer than any conversation by replacing")


def _require_joined(separator: object, parts: object) -> None:
    if isinstance(separator, str) and isinstance(parts, (list, tuple)) and len(separator) * len(parts) > MAX_TEXT:
        refuse_size("it makes a text longer than any conversation by joining")
    if isinstance(parts, (list, tuple)) and sum(len(p) for p in parts if isinstance(p, str)) > MAX_TEXT:
        refuse_size("it makes a text longer than any conversation by joining")


def _padded(arguments: Iterable[object]) -> int:
    """The largest number among them: so much longer may the result be a line."""
    return max((int(abs(a)) for a in arguments if isinstance(a, (int, float)) and a == a), default=0)


def _require_method(called: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """A method of a text, by what it may make of it."""
    called = getattr(called, "__wrapped__", called)  # Jinja wraps `format`
    text = getattr(called, "__self__", None)
    if not isinstance(text, str):
        return
    name = getattr(called, "__name__", "")
    given = (*arguments, *named.values())
    if name in ("format", "format_map"):
        _require_narrow(text)
    elif name == "replace" and len(arguments) >= 2:
        _require_replaced(text, arguments[0], arguments[1])
    elif name == "join" and given:
        _require_joined(text, given[0])
    elif name == "expandtabs" and text.count("\t") * _padded(given) > MAX_TEXT:
        refuse_size("it makes a text longer than any conversation of tabs")
    elif name == "translate":
        refuse_size("it translates characters by a table")


def to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """As transformers has it; of the options of json.dumps those that templates use."""
    if isinstance(indent, str) or (indent is not None and not 0 <= indent <= 16):
        refuse_size(f"it writes JSON with an indent of {indent!s:.20}")
    known = {key: options[key] for key in ("ensure_ascii", "separators", "sort_keys") if key in options}
    if sum(map(len, known.get("separators") or ())) > 16:
        refuse_size("it writes JSON with long separators")
    return json.dumps(value, indent=indent, **{"ensure_ascii": False, **known})


_COSTLY: dict[str, Callable[..., None]] = {
    "replace": lambda text, old="", new="", *_a, **_k: _require_replaced(str(text), old, new),
    "join": lambda parts, d="", *_a, **_k: _require_joined(d, parts),
    "format": lambda text, *_a, **_k: _require_narrow(str(text)),
    "indent": lambda text, width=4, *_a, **_k: _require_indent(str(text), width),
}
"""Filter -> what refuses its input."""


def _require_indent(text: str, width: object) -> None:
    wide = len(width) if isinstance(width, str) else _padded((width,))
    if (text.count("\n") + 1) * wide > MAX_TEXT:
        refuse_size("it makes a text longer than any conversation by indenting")


def _filter(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A filter of Jinja that draws from the budget. Those that are handed Jinja's context first keep the mark that says so."""
    handed = int(getattr(original, "jinja_pass_arg", None) is not None)

    @functools.wraps(original)
    def counted(*arguments: Any, **named: Any) -> Any:
        given = arguments[handed:]
        if name != "int":  # its own numbers are no sizes
            _require_small((*given[1:], *named.values()))
        if given and isinstance(given[0], (list, tuple, Mapping)):
            _bounded(given[0])
        if name in _COSTLY:
            _COSTLY[name](*given, **named)
        return _bounded(original(*arguments, **named))

    return counted


def _joined(parts: Iterable[Any]) -> str:
    """What `concat` of Jinja does, within the budget."""
    pieces, length = [], 0
    for part in parts:
        pieces.append(part)
        length += len(part)
        if length > MAX_TEXT:
            refuse_size(f"it writes more than {MAX_TEXT:,} characters")
    _spend(1 + length // CHARS_A_STEP)
    return "".join(pieces)


def _shown(value: Any) -> Any:
    """What an expression writes: lists are counted before they are spelled."""
    return value if isinstance(value, (str, bool, type(None), jinja2.Undefined)) else _bounded(value)


class _Namespace(Namespace):
    """A namespace holds texts, numbers and lists that stay small."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, _held(value))


def _held(value: Any) -> Any:
    if isinstance(value, Namespace):
        refuse_size("it puts a namespace into a list or another namespace")
    return _bounded(value)


def _namespace(*arguments: Any, **named: Any) -> Namespace:
    made = _Namespace()
    for key, value in dict(*arguments, **named).items():
        made[key] = value
    return made


class _Counting(Extension):
    """Makes every loop body, concatenation and literal list draw from the budget, before Jinja compiles the template."""

    def counted(self, template: nodes.Template) -> nodes.Template:
        """The same template with the counting in it."""
        for loop in template.find_all(nodes.For):
            loop.body.insert(0, nodes.Output([nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None)]))
        self._rewrite(template)
        return template

    def _rewrite(self, node: nodes.Node) -> None:
        for name, value in node.iter_fields():
            if isinstance(value, list):
                setattr(node, name, [self._counted(v) if isinstance(v, nodes.Node) else v for v in value])
            elif isinstance(value, nodes.Node):
                setattr(node, name, self._counted(value))

    def _counted(self, node: nodes.Node) -> nodes.Node:
        self._rewrite(node)
        if isinstance(node, nodes.Concat):
            return nodes.Filter(nodes.Tuple(node.nodes, "load"), "__joined__", [], [], None, None, lineno=node.lineno)
        literal = isinstance(node, (nodes.List, nodes.Dict)) or (isinstance(node, nodes.Tuple) and node.ctx == "load")
        if literal:
            return nodes.Filter(node, "__counted__", [], [], None, None, lineno=node.lineno)
        return node


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with a budget for each render; use it within render_budget()."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols],
            finalize=_shown,
            optimized=False,
            cache_size=0,
        )
        self._counting = _Counting(self)
        self.concat = _joined  # type: ignore[method-assign]
        self.filters["tojson"] = to_json
        self.filters = {
            name: _filter(name, original) for name, original in self.filters.items() if name not in _UNBOUNDED
        }
        self.filters["__joined__"] = lambda parts: _joined(map(str, map(_shown, parts)))
        self.filters["__counted__"] = _bounded
        self.globals["namespace"] = _namespace
        self.globals[_TICK] = _spend
        self.globals.pop("lipsum", None)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_SOURCE:
            refuse_size(f"it has {len(source):,} characters, and {MAX_SOURCE:,} are read")
        return self._counting.counted(super()._parse(source, name, filename))

    def call(self, context: Any, called: Any, /, *arguments: Any, **named: Any) -> Any:
        """A call that a template makes."""
        if called is _spend:
            return _spend()
        _require_small((*arguments, *named.values()))
        _require_method(called, arguments, named)
        return _bounded(super().call(context, called, *arguments, **named))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An operator between two values."""
        sizes = [len(side) for side in (left, right) if isinstance(side, (str, list, tuple))]
        if operator == "*" and sizes and sizes[0] * _padded((left, right)) > MAX_TEXT:
            refuse_size("it repeats a text or a list too often")
        if operator == "+" and len(sizes) == 2 and sum(sizes) > MAX_TEXT:
            refuse_size(f"it makes a text of {sum(sizes):,} characters")
        if operator == "%" and isinstance(left, str):
            _require_narrow(left)
            _require_small(right if isinstance(right, tuple) else (right,))
        if operator == "**" and not (abs(left) <= MAX_NUMBER and 0 <= right <= 12):
            refuse_size("it raises a number to a power beyond 12")
        return _bounded(super().call_binop(context, operator, left, right))
