"""The standard streams, made safe when they are closed, use an old encoding, or have no reader."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys

from sapo_desktop.wrapping import WrappedStream


def prepare_streams() -> None:
    """Call once at the start: no stream is missing afterwards, none fails on a character that it cannot encode or decode,
    and what is written to a terminal is wrapped at words."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - stays open for the life of the process
    elif isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as above
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
            if stream.isatty():
                setattr(sys, name, WrappedStream(stream))


def json_line(value: object) -> str:
    """The value as one line of JSON in plain ASCII. Parsers read the same value, and untrusted text in it (C1, bidi,
    invisible characters) cannot affect a terminal."""
    import msgspec

    try:
        return json.dumps(msgspec.json.decode(msgspec.json.encode(value)))
    except UnicodeEncodeError:  # a lone surrogate, as in a file name that is not valid text
        return json.dumps(msgspec.to_builtins(value))


def ask_yes_no(question: str) -> bool:
    """Ask; True if y or yes was typed. Ctrl+D counts as no."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def confirm_action(yes: bool, question: str) -> bool:
    """True if `yes` was given beforehand or is typed now. Raises AppError if nobody can answer."""
    if not yes and not sys.stdin.isatty():
        from sapo_desktop.errors import AppError

        raise AppError(f"{question} Nobody can answer here: add --yes.")
    return yes or ask_yes_no(question)


_last_step = ""


def print_progress(fraction: float, phrase: str) -> None:
    """How far it is, on the error stream: see overwrite_line. Where that is no terminal, each step is a line, and none twice in
    a row."""
    global _last_step
    line = f"{100 * fraction:.0f} % {phrase}"
    if sys.stderr.isatty():
        overwrite_line(line if fraction < 1 else "")
    elif line != _last_step:
        print(line, file=sys.stderr, flush=True)
    _last_step = line


def overwrite_line(text: str) -> None:
    """Show a status line on stderr that the next one overwrites; "" erases it. Does nothing if stderr is not a terminal."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)


def to_nowhere(*descriptors: int) -> None:
    """Redirect the descriptors to the null device, so that later writes (at least the flush at exit) do not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
