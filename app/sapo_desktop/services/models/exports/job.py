"""A child process's job and its replies: JSON on its standard streams."""

from __future__ import annotations

import msgspec

from sapo_swarm.config import RunConfig


class ReferenceAnswer(msgspec.Struct, frozen=True):
    """One held-out question: the conversation, its ids, and the greedy answer of the engine that trained the model."""

    chat: list[dict[str, str]]
    prompt: list[int]
    answer: list[int]


class AskedQuestion(msgspec.Struct, frozen=True):
    """How a task asks. wording: the text of every question, with the table's columns in braces, "" where a task has none.
    example: the whole message of one training question."""

    task: str
    wording: str
    example: str


class WriteJob(msgspec.Struct, frozen=True, tag="write", kw_only=True):
    """Load a checkpoint and write it. checkpoint: "" is the base model. file: name of a GGUF file. questions: number of
    held-out ones from the config's tasks to answer for the check afterwards, each in at most `tokens` tokens. own_tasks:
    folder of the person's tasks, "" without one."""

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
    """Load an export with the library it is for, and answer. path: a folder, or a GGUF file. base: of an adapter. adapter: a
    GGUF adapter file, applied to the GGUF file `path`. thinking: setting of the chat template's switch for reasoning, where
    it has one."""

    library: str
    path: str
    base: str
    chats: list[list[dict[str, str]]]
    tokens: int
    thinking: bool = False
    adapter: str = ""


class JobProgress(msgspec.Struct, frozen=True, tag="progress"):
    """fraction of this job in [0, 1], and the current step."""

    fraction: float
    phrase: str


class WriteResult(msgspec.Struct, frozen=True, tag="written"):
    """method: how the model was trained. base: folder of its base model. exact: the weights in the file are the trained ones
    in float32, and the answers were computed with them. gone: tasks of the config that no longer exist or do not load.
    system: the system prompt that the model was trained with, "" where there is none. switch: its chat template has a switch
    for reasoning. gguf: the GGUF file that an adapter was written for, "" where it is for a folder. asked: one per task."""

    method: str
    base: str
    exact: bool
    answers: list[ReferenceAnswer]
    gone: tuple[str, ...] = ()
    system: str = ""
    switch: bool = False
    gguf: str = ""
    asked: tuple[AskedQuestion, ...] = ()


class ReadResult(msgspec.Struct, frozen=True, tag="answered"):
    """(prompt ids, answer ids) of each chat."""

    version: str
    answers: list[tuple[list[int], list[int]]]


class LibraryMissing(msgspec.Struct, frozen=True, tag="missing"):
    """The library is not installed."""


class JobFailure(msgspec.Struct, frozen=True, tag="failed"):
    """The message is for people. bug: the error was not foreseen. code: the exit code for the shell."""

    message: str
    bug: bool = False
    code: int = 1


Job = WriteJob | ReadJob
Reply = JobProgress | WriteResult | ReadResult | LibraryMissing | JobFailure
