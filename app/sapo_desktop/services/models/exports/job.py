"""What a child process is asked to do and what it answers: JSON on its standard streams."""

from __future__ import annotations

import msgspec

from sapo_swarm.config import RunConfig


class ReferenceAnswer(msgspec.Struct, frozen=True):
    """One held-out question: the conversation, its ids, and the greedy answer of the engine that trained the model."""

    chat: list[dict[str, str]]
    prompt: list[int]
    answer: list[int]


class WriteJob(msgspec.Struct, frozen=True, tag="write", kw_only=True):
    """Load a checkpoint and write it. checkpoint: "" is the base model. file: name of a GGUF file.
    questions: held-out ones of the config's tasks to answer for the check afterwards, each in at most `tokens` tokens.
    own_tasks: folder of the person's tasks, "" without one."""

    config: RunConfig
    checkpoint: str
    format: str
    quant: str
    folder: str
    file: str
    questions: int
    tokens: int
    own_tasks: str = ""


class ReadJob(msgspec.Struct, frozen=True, tag="read", kw_only=True):
    """Load an export with the library it is for, and answer. path: a folder, or a GGUF file. base: of an adapter.
    adapter: a GGUF file of one, put on the GGUF file `path`.
    thinking: what the chat template's switch for reasoning is set to, where it has one."""

    library: str
    path: str
    base: str
    chats: list[list[dict[str, str]]]
    tokens: int
    thinking: bool = False
    adapter: str = ""


class JobProgress(msgspec.Struct, frozen=True, tag="progress"):
    """fraction in [0, 1] of this job, and what it does now."""

    fraction: float
    phrase: str


class WriteResult(msgspec.Struct, frozen=True, tag="written"):
    """method: how the model was trained. base: folder of its base model. exact: the weights in the file are the trained
    ones in float32, and the answers were computed with them. gone: tasks of the config that are not here any more, or do not
    load. system: the prompt that the model was trained under, "" where there is none. switch: its chat template has one for
    reasoning. gguf: the file that an adapter was written for as GGUF, "" where it is for a folder."""

    method: str
    base: str
    exact: bool
    answers: list[ReferenceAnswer]
    gone: tuple[str, ...] = ()
    system: str = ""
    switch: bool = False
    gguf: str = ""


class ReadResult(msgspec.Struct, frozen=True, tag="answered"):
    """(prompt ids, answer ids) of each chat."""

    version: str
    answers: list[tuple[list[int], list[int]]]


class LibraryMissing(msgspec.Struct, frozen=True, tag="missing"):
    """The library is not installed."""


class JobFailure(msgspec.Struct, frozen=True, tag="failed"):
    """The message is for people. bug: it was not foreseen. code: the exit code that the shell gets."""

    message: str
    bug: bool = False
    code: int = 1


Job = WriteJob | ReadJob
Reply = JobProgress | WriteResult | ReadResult | LibraryMissing | JobFailure
