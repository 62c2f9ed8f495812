"""A model's chat template: rendered in a sandbox, with the message text kept apart from the template's own text."""

from __future__ import annotations

import contextlib
import datetime
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import jinja2

from sapo_backends.base import TemplateRefused, Thinking
from sapo_backends.checkpoints.template_limits import LimitedEnvironment, render_budget

Messages = Sequence[Mapping[str, str]]
Tools = Sequence[Mapping[str, Any]]
PLAIN = "{% for m in messages %}{{ m['content'] }}\n\n{% endfor %}"
"""For base models without a template: the texts, one after another. An export writes the first token before it, for other
programs."""
TODAY = datetime.date(2025, 1, 1)
"""What a template that asks for the date is told, so that a prompt is the same every day and on every node."""
_GENERATION_TAGS = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")


_FAILURES = (
    jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, AssertionError, RecursionError,
    MemoryError,
)  # fmt: skip
"""What a template can raise by its own doing."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """text: the whole chat. parts: (text, written by the template itself) in order; joined they are `text` too."""

    text: str
    parts: list[tuple[str, bool]]


def _refuse(message: str) -> NoReturn:
    raise TemplateRefused(f"The model's chat template refused the conversation: {message}")


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
    """The system prompt with the tools and how to call them, for templates that have no place for tools."""
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
    """Tokenizer.opens_reasoning of a Hugging Face folder, without its tokenizer. Raises TemplateRefused."""
    source = source_of(folder, settings)
    return "<think>" in source and ChatTemplate(source, thinking=thinking).opens_reasoning


class ChatTemplate:
    """Renders conversations. No clock is passed in, so that a prompt is the same every day. is_plain: the model has no
    template of its own, and its first token is not part of the text."""

    def __init__(self, source: str, bos: str = "", eos: str = "", thinking: Thinking = "auto") -> None:
        """thinking: "auto" is off where the template has a switch for it: most of it would be cut off."""
        self.is_plain = source.endswith(PLAIN) and "{" not in source.removesuffix(PLAIN)
        source = PLAIN if self.is_plain else source
        self._variables: dict[str, Any] = {
            "bos_token": bos,
            "eos_token": eos,
            "add_generation_prompt": True,
            "enable_thinking": thinking == "on",
        }
        if "strftime_now is defined" not in source:  # such a template has a date of its own
            self._variables["strftime_now"] = TODAY.strftime
        self._takes_tools = "tools" in source
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
        except TemplateRefused:  # it wants another conversation, and says so there
            return False

    def _text(self, messages: Messages, tools: Tools = ()) -> str:
        given = {"tools": [dict(tool) for tool in tools]} if tools else {}
        try:
            with render_budget():
                return self._template.render(messages=[dict(m) for m in messages], **self._variables, **given)
        except _FAILURES as error:
            raise TemplateRefused(f"The model's chat template failed: {error}") from error

    def _accepted(self, messages: Messages, tools: Tools) -> tuple[Messages, str]:
        """The messages as the template takes them, and their text. Where it refuses a system message, as Gemma's does,
        that becomes the beginning of the user's."""
        try:
            return messages, self._text(messages, tools)
        except TemplateRefused:
            if len(messages) < 2 or (messages[0]["role"], messages[1]["role"]) != ("system", "user"):
                raise
            content = f"{messages[0]['content']}\n\n{messages[1]['content']}"
            folded = [{**messages[1], "content": content}, *messages[2:]]
            return folded, self._text(folded, tools)

    def render(self, messages: Messages, tools: Tools = ()) -> Rendered:
        """Render once as it is and once with marks in place of the message texts, which shows whose text is whose.

        Templates that trim the message text are followed: the parts then hold the trimmed text. tools go where the template
        has a place for them, else into the system prompt.
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
                return Rendered(text, parts)
        return Rendered(text, candidates[0])

    def reply(self, text: str, roles: Sequence[str] = ("tool", "user")) -> list[tuple[str, bool]]:
        """What stands between two turns of the model when `text` was said, by the first of the roles that the template
        knows, in parts as of Rendered. Raises TemplateRefused."""
        before, said = secrets.token_hex(8), secrets.token_hex(8)
        for role in roles:
            chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": before}]
            with contextlib.suppress(TemplateRefused):
                rendered = self._text([*chat, {"role": role, "content": said}]).rpartition(before)[2]
                opening, found, closing = rendered.partition(said)
                if found:
                    return [(opening, True), (text, False), (closing, True)]
        raise TemplateRefused("The model's chat template takes no conversation of several turns. Choose a chat model.")

    @staticmethod
    def _fill(pieces: Sequence[str], contents: Sequence[str]) -> list[tuple[str, bool]]:
        """Even pieces are the template's, odd ones the index of a message."""
        return [(contents[int(p)], False) if i % 2 else (p, True) for i, p in enumerate(pieces)]
