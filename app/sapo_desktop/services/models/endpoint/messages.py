"""The part of OpenAI's chat completions that is served: https://platform.openai.com/docs/api-reference/chat

Fields that are not here are accepted and have no effect, as clients send many of them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Short = Annotated[str, Meta(max_length=200)]


class TextPart(msgspec.Struct, frozen=True):
    """One part of a message; only text is understood."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct, frozen=True):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    def plain(self) -> dict[str, str]:
        """As a chat template takes it. developer is OpenAI's newer word for system."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class StreamOptions(msgspec.Struct, frozen=True):
    """include_usage: the last chunk counts the tokens."""

    include_usage: bool = False


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST /v1/chat/completions. n: completions; max_tokens is the older name of max_completion_tokens."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=256)]
    model: Short = ""
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=8)] | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    seed: int | None = None
    stop: Short | Annotated[list[Short], Meta(max_length=4)] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts at which an answer ends; they are not part of it."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in given if text)

    @property
    def limit(self) -> int | None:
        """Longest answer in tokens, None where the client leaves it open."""
        return self.max_completion_tokens or self.max_tokens


class Usage(msgspec.Struct, frozen=True):
    """Tokens of the prompt and of all completions."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Reply(msgspec.Struct, frozen=True):
    """One whole answer. finish_reason: "stop" at its end or at a stop text, "length" at the limit."""

    role: Literal["assistant"]
    content: str


class Choice(msgspec.Struct, frozen=True):
    """One of n answers."""

    index: int
    message: Reply
    finish_reason: str
    logprobs: None = None


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer of POST /v1/chat/completions."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds."""

    role: str = ""
    content: str = ""


class ChunkChoice(msgspec.Struct, frozen=True):
    """The one answer of a stream."""

    delta: Delta
    finish_reason: str | None = None
    index: int = 0


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One server-sent event of a stream. usage: in the last one, if it was asked for."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
