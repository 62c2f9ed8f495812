"""A model's chat template: rendered in a sandbox that limits every step and text, with the message text kept separate."""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import functools
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from sapo_backends.base import Thinking
from sapo_backends.errors import TemplateRefused

# Limits on what a chat template may cost: a Jinja sandbox that counts every step, text and list.
#
# Jinja's own sandbox keeps a template from files and code, but does not limit time or memory: nested loops run for
# ever, and `"x".center(3e9)` or `tojson(indent=2e9)` asks for gigabytes in one call. Here each render has a budget.
# Loop bodies, calls, filters and operators draw from it according to the size of their result. A number, text or list
# beyond any conversation's size is refused before it is made, and so is a render that takes more than a second of this
# thread's time. A render within budget gives the same result as Jinja's own sandbox.

MAX_SOURCE = 512 * 1024
"""Maximum characters of a template."""
MAX_TEXT = 4_000_000
"""Maximum characters of any text in a render, and of its output."""
MAX_ITEMS = 200_000
"""Maximum items of a list or object, nested ones included."""
MAX_NUMBER = 1_000_000
"""Maximum number passed to a call or filter: widths, indents, counts."""
MAX_BITS = 256
"""Maximum bits of a number that an operator makes."""
STEPS = 2_000_000
"""Steps of a render: one for each loop pass, call, filter or operator, plus one for every CHARS_A_STEP of its result. A
conversation of 1,001 messages takes 2,260 in SmolLM2's template."""
CHARS_A_STEP = 256
SECONDS = 1.0
"""Maximum processor time of this thread, checked every LOOK steps."""
WASTED_S = 2.0
"""Time that one template may waste on consecutive refused renders; after that it is refused at once. Every question of
a task is rendered, and a template that exhausted its budget each time took a minute before the card appeared."""
LOOK = 16
_WIDE = re.compile(r"\d{6,}")
_UNBOUNDED = ("random", "urlize")
"""Filters that are left out: random does not depend on its input alone, urlize searches in more than linear time."""
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
    """A context in which a template has one budget, in this thread."""
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
    """What is left of `left` items after counting all items of the value, nested ones included; below 0: too many. A
    list that occurs twice counts twice, as it would be written."""
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
    """The value, after its size is drawn from the budget. Raises TemplateRefused."""
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
    """Refuse arguments that are too large: widths, indents and counts, and values that are written in full."""
    for value in values:
        if isinstance(value, (int, float)) and not -MAX_NUMBER <= value <= MAX_NUMBER:
            refuse_size(f"it asks for a width or a count of {value:,}")
        if isinstance(value, (list, tuple, Mapping)) and _items(value, MAX_ITEMS) < 0:
            refuse_size(f"it hands on a list of more than {MAX_ITEMS:,} items")


def _require_narrow(text: object) -> None:
    """Refuse wide widths in a format string."""
    if isinstance(text, str) and _WIDE.search(text):
        refuse_size("it formats to a width of six digits or more")


def _require_replaced(text: str, old: object, new: object) -> None:
    """`replace` multiplies lengths, so the size of its result is counted before it is made."""
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
    """The largest number among the arguments, which is how much a line of the result may grow."""
    return max((int(abs(a)) for a in arguments if isinstance(a, (int, float)) and a == a), default=0)


def _require_method(called: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Check a call of a text method by the size of what it may make."""
    called = getattr(called, "__wrapped__", called)  # Jinja wraps `format`
    text = getattr(called, "__self__", None)
    if not isinstance(text, str):
        return
    name = getattr(called, "__name__", "")
    values = (*arguments, *named.values())
    if name in ("format", "format_map"):
        _require_narrow(text)
    elif name == "replace" and len(arguments) >= 2:
        _require_replaced(text, arguments[0], arguments[1])
    elif name == "join" and values:
        _require_joined(text, values[0])
    elif name == "expandtabs" and text.count("\t") * _padded(values) > MAX_TEXT:
        refuse_size("it makes a text longer than any conversation of tabs")
    elif name == "translate":
        refuse_size("it translates characters by a table")


def to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """tojson as in transformers; supports the json.dumps options that templates use."""
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
"""Filter -> the check that may refuse its input."""


def _require_indent(text: str, width: object) -> None:
    wide = len(width) if isinstance(width, str) else _padded((width,))
    if (text.count("\n") + 1) * wide > MAX_TEXT:
        refuse_size("it makes a text longer than any conversation by indenting")


def _filter(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A Jinja filter that draws from the budget. The mark on filters that take Jinja's context first is preserved."""
    handed = int(getattr(original, "jinja_pass_arg", None) is not None)

    @functools.wraps(original)
    def counted(*arguments: Any, **named: Any) -> Any:
        operands = arguments[handed:]
        if name != "int":  # the numbers of `int` are not sizes
            _require_small((*operands[1:], *named.values()))
        if operands and isinstance(operands[0], (list, tuple, Mapping)):
            _bounded(operands[0])
        if name in _COSTLY:
            _COSTLY[name](*operands, **named)
        return _bounded(original(*arguments, **named))

    return counted


def _joined(parts: Iterable[Any]) -> str:
    """Does what Jinja's `concat` does, within the budget."""
    pieces, length = [], 0
    for part in parts:
        pieces.append(part)
        length += len(part)
        if length > MAX_TEXT:
            refuse_size(f"it writes more than {MAX_TEXT:,} characters")
    _spend(1 + length // CHARS_A_STEP)
    return "".join(pieces)


def _shown(value: Any) -> Any:
    """The value of an expression that is written out: lists are counted before they become text."""
    return value if isinstance(value, (str, bool, type(None), jinja2.Undefined)) else _bounded(value)


class _Namespace(Namespace):
    """A namespace whose texts, numbers and lists stay small."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, _held(value))


def _held(value: Any) -> Any:
    if isinstance(value, Namespace):
        refuse_size("it puts a namespace into a list or another namespace")
    return _bounded(value)


def _namespace(*arguments: Any, **named: Any) -> Namespace:
    namespace = _Namespace()
    for key, value in dict(*arguments, **named).items():
        namespace[key] = value
    return namespace


class _Counting(Extension):
    """Makes every loop body, concatenation and literal list draw from the budget, before Jinja compiles the template."""

    def counted(self, template: nodes.Template) -> nodes.Template:
        """The same template with counting added."""
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
        """A call made by a template."""
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


# A model's chat template: rendered in a sandbox, with the message text kept separate from the template's own text.

Messages = Sequence[Mapping[str, str]]
Tools = Sequence[Mapping[str, Any]]
PLAIN = "{% for m in messages %}{{ m['content'] }}\n\n{% endfor %}"
"""For base models without a template: the texts, one after another. An export prepends the opening token, for other
programs."""
MOST_QUOTED = 300
"""Maximum characters of a template's own words in an error."""
TODAY = datetime.date(2025, 1, 1)
"""The date given to templates that ask for one, so that a prompt is the same every day and on every node."""
_GENERATION_TAGS = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")


_FAILURES = (
    jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, AssertionError, RecursionError,
    MemoryError,
)  # fmt: skip
"""Exceptions that a template can cause."""


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """text: the whole chat. parts: (text, whether the template itself wrote it) in order; joined they equal `text`."""

    text: str
    parts: list[tuple[str, bool]]


def _refuse(message: str) -> NoReturn:
    reason = " ".join(str(message).split())[:MOST_QUOTED]  # the file's own words: a line, not a page
    raise TemplateRefused(f"The model's chat template refused the conversation: {reason}")


def _environment() -> LimitedEnvironment:
    environment = LimitedEnvironment()
    environment.globals["raise_exception"] = _refuse
    return environment


def source_of(folder: Path, settings: Mapping[str, Any], otherwise: str = PLAIN) -> str:
    """chat_template.jinja, else the entry of tokenizer_config.json (a string or a list with a "default")."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    value = settings.get("chat_template")
    if isinstance(value, list):
        value = {entry.get("name"): entry.get("template") for entry in value}.get("default")
    return value if isinstance(value, str) else otherwise


def _with_tools(messages: Messages, tools: Tools) -> Messages:
    """The messages with the tools and how to call them in the system prompt, for templates without support for tools."""
    lines = ["You have tools. To use one, write <NAME>argument</NAME> and end your turn; its result comes next."]
    for tool in tools:
        function = tool["function"]
        arguments = (
            f"{name}: {kind.get('type', 'any')}" for name, kind in function["parameters"]["properties"].items()
        )
        lines.append(f"{function['name']}({', '.join(arguments)}): {function['description']}")
    text = "\n".join(lines)
    if messages and messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def switches_reasoning(folder: Path, settings: Mapping[str, Any]) -> bool:
    """Whether the template of a Hugging Face folder has a switch for reasoning."""
    return "enable_thinking" in source_of(folder, settings)


def opens_reasoning(folder: Path, settings: Mapping[str, Any], thinking: Thinking) -> bool:
    """Tokenizer.opens_reasoning for a Hugging Face folder, without loading its tokenizer. Raises TemplateRefused."""
    source = source_of(folder, settings)
    return "<think>" in source and ChatTemplate(source, thinking=thinking).opens_reasoning


class ChatTemplate:
    """Renders conversations. No clock is passed in, so that a prompt is the same every day. is_plain: the model has no
    template of its own, and its first token is not part of the text."""

    def __init__(self, source: str, bos: str = "", eos: str = "", thinking: Thinking = "auto") -> None:
        """thinking: "auto" is off if the template has a switch for it: most of the reasoning would be cut off."""
        self.is_plain = source.endswith(PLAIN) and "{" not in source.removesuffix(PLAIN)
        source = PLAIN if self.is_plain else source
        self._variables: dict[str, Any] = {
            "bos_token": bos,
            "eos_token": eos,
            "add_generation_prompt": True,
            "enable_thinking": thinking == "on",
        }
        if "strftime_now is defined" not in source:  # such a template has its own default date
            self._variables["strftime_now"] = TODAY.strftime
        self._takes_tools = "tools" in source
        self._wasted = 0.0
        try:
            self._template = _environment().from_string(_GENERATION_TAGS.sub("", source))
        except TemplateRefused:
            raise
        except (
            jinja2.TemplateError,
            SyntaxError,
            RecursionError,
            MemoryError,
        ) as error:  # the last three: nested too deep
            raise TemplateRefused(f"The model's chat template cannot be read: {error}") from error

    @classmethod
    def read(
        cls, folder: Path, settings: Mapping[str, Any], bos: str, eos: str, thinking: Thinking = "auto"
    ) -> ChatTemplate:
        """The template of a Hugging Face folder. Raises TemplateRefused."""
        return cls(source_of(folder, settings), bos, eos, thinking)

    @cached_property
    def opens_reasoning(self) -> bool:
        """See Tokenizer.opens_reasoning."""
        try:
            return self._text([{"role": "user", "content": "?"}]).rstrip().endswith("<think>")
        except TemplateRefused:  # it needs another conversation, and rendering that reports problems
            return False

    def _text(self, messages: Messages, tools: Tools = ()) -> str:
        if self._wasted > WASTED_S:
            raise TemplateRefused(
                "The model's chat template was refused before, each time after long work. Choose another model."
            )
        variables = {"tools": [dict(tool) for tool in tools]} if tools else {}
        began = time.thread_time()
        try:
            with render_budget():
                text = self._template.render(messages=[dict(m) for m in messages], **self._variables, **variables)
        except (TemplateRefused, *_FAILURES) as error:
            took = time.thread_time() - began
            self._wasted += took if took > SECONDS / 8 else 0.0
            if isinstance(error, TemplateRefused):
                raise
            raise TemplateRefused(f"The model's chat template failed: {error}") from error
        self._wasted = 0.0
        return text

    def _accepted(self, messages: Messages, tools: Tools) -> tuple[Messages, str]:
        """The messages in the form that the template accepts, and their text. If it refuses a system message, as
        Gemma's does, that is put at the beginning of the user message."""
        try:
            return messages, self._text(messages, tools)
        except TemplateRefused:
            if len(messages) < 2 or (messages[0]["role"], messages[1]["role"]) != ("system", "user"):
                raise
            content = f"{messages[0]['content']}\n\n{messages[1]['content']}"
            folded = [{**messages[1], "content": content}, *messages[2:]]
            return folded, self._text(folded, tools)

    def render(self, messages: Messages, tools: Tools = ()) -> RenderedChat:
        """Render once as is and once with markers in place of the message texts, which shows which text comes from
        where.

        Templates that trim the message text are handled: the parts then hold the trimmed text. tools go where the
        template has a place for them, else into the system prompt.
        """
        if tools and not self._takes_tools:
            messages, tools = _with_tools(messages, tools), ()
        messages, text = self._accepted(messages, tools)
        mark = secrets.token_hex(8)
        marked = self._text([{**m, "content": f"{mark}{i}{mark}"} for i, m in enumerate(messages)], tools)
        pieces = re.split(f"{mark}(\\d+){mark}", marked)
        contents = [m["content"] for m in messages]
        candidates = [self._fill(pieces, chosen) for chosen in (contents, [c.strip() for c in contents])]
        for parts in candidates:
            if "".join(piece for piece, _ in parts) == text:
                return RenderedChat(text, parts)
        return RenderedChat(text, candidates[0])

    def reply(self, text: str, roles: Sequence[str] = ("tool", "user")) -> list[tuple[str, bool]]:
        """What stands between two model turns when `text` comes from the first of the roles that the template knows; in
        parts as in RenderedChat. Raises TemplateRefused."""
        before, mark = secrets.token_hex(8), secrets.token_hex(8)
        for role in roles:
            chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": before}]
            with contextlib.suppress(TemplateRefused):
                rendered = self._text([*chat, {"role": role, "content": mark}]).rpartition(before)[2]
                opening, separator, closing = rendered.partition(mark)
                if separator:
                    return [(opening, True), (text, False), (closing, True)]
        raise TemplateRefused("The model's chat template takes no conversation of several turns. Choose a chat model.")

    @staticmethod
    def _fill(pieces: Sequence[str], contents: Sequence[str]) -> list[tuple[str, bool]]:
        """(text, whether the template wrote it): even pieces are the template's, odd ones are indices of messages."""
        return [(contents[int(p)], False) if i % 2 else (p, True) for i, p in enumerate(pieces)]
