"""A model's chat template, rendered in a sandbox, with the message text kept apart from the template's own text."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sapo_backends.base import BackendError

Messages = Sequence[Mapping[str, str]]
PLAIN = "{% for m in messages %}{{ m['content'] }}\n\n{% endfor %}"
"""For base models without a template: the texts, one after another."""
_GENERATION_TAGS = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")


class TemplateRefused(BackendError):
    """The template raised or cannot be rendered."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """text: the whole chat. parts: (text, written by the template itself) in order; joined they are `text` too."""

    text: str
    parts: list[tuple[str, bool]]


def _refuse(message: str) -> NoReturn:
    raise TemplateRefused(f"The model's chat template refused the conversation: {message}")


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = _refuse
    return environment


def _source(folder: Path, settings: Mapping[str, Any]) -> str:
    """chat_template.jinja, else the entry of tokenizer_config.json (a string or a list with a "default")."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    value = settings.get("chat_template")
    if isinstance(value, list):
        value = {entry.get("name"): entry.get("template") for entry in value}.get("default")
    return value if isinstance(value, str) else PLAIN


class ChatTemplate:
    """Renders conversations. No clock is passed in, so that a prompt is the same every day."""

    def __init__(self, source: str, bos: str = "", eos: str = "") -> None:
        self._variables = {"bos_token": bos, "eos_token": eos, "add_generation_prompt": True, "enable_thinking": False}
        try:
            self._template = _environment().from_string(_GENERATION_TAGS.sub("", source))
        except jinja2.TemplateError as error:
            raise TemplateRefused(f"The model's chat template cannot be read: {error}") from error

    @classmethod
    def read(cls, folder: Path, settings: Mapping[str, Any], bos: str, eos: str) -> ChatTemplate:
        """The template of a Hugging Face folder. Raises TemplateRefused."""
        return cls(_source(folder, settings), bos, eos)

    def _text(self, messages: Messages) -> str:
        try:
            return self._template.render(messages=[dict(m) for m in messages], **self._variables)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, OverflowError) as error:
            raise TemplateRefused(f"The model's chat template failed: {error}") from error

    def _accepted(self, messages: Messages) -> tuple[Messages, str]:
        """The messages as the template takes them, and their text. Where it refuses a system message, as Gemma's does,
        that becomes the beginning of the user's."""
        try:
            return messages, self._text(messages)
        except TemplateRefused:
            if len(messages) < 2 or (messages[0]["role"], messages[1]["role"]) != ("system", "user"):
                raise
            content = f"{messages[0]['content']}\n\n{messages[1]['content']}"
            folded = [{**messages[1], "content": content}, *messages[2:]]
            return folded, self._text(folded)

    def render(self, messages: Messages) -> Rendered:
        """Render once as it is and once with marks in place of the message texts, which shows whose text is whose.

        Templates that trim the message text are followed: the parts then hold the trimmed text.
        """
        messages, text = self._accepted(messages)
        mark = secrets.token_hex(8)
        marked = self._text([{**m, "content": f"{mark}{i}{mark}"} for i, m in enumerate(messages)])
        pieces = re.split(f"{mark}(\\d+){mark}", marked)
        contents = [m["content"] for m in messages]
        candidates = [self._fill(pieces, chosen) for chosen in (contents, [c.strip() for c in contents])]
        for parts in candidates:
            if "".join(piece for piece, _ in parts) == text:
                return Rendered(text, parts)
        return Rendered(text, candidates[0])

    @staticmethod
    def _fill(pieces: Sequence[str], contents: Sequence[str]) -> list[tuple[str, bool]]:
        """Even pieces are the template's, odd ones the index of a message."""
        return [(contents[int(p)], False) if i % 2 else (p, True) for i, p in enumerate(pieces)]
