"""Shell completions for bash, zsh and fish, and the manual page, generated from the command line parser."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import shtab

PROGRAM = "sapo-desktop"


def walk_verbs(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Every verb of a parser, with its line of help and its own parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            lines = {choice.dest: choice.help or "" for choice in action._choices_actions}
            yield from ((word, lines[word], verb) for word, verb in action.choices.items())


def shell_completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion script for `shell` to source, or to find in its completions folder. A value without choices may be a
    file."""
    for _, _, verb in walk_verbs(parser):
        for action in verb._actions:
            if action.nargs != 0 and not action.choices:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell) + "\n"


def man_page(parser: argparse.ArgumentParser, version: str) -> str:
    """The manual page, section 1, as roff."""
    lines = [
        f'.TH SAPO\\-DESKTOP 1 "" "{PROGRAM} {version}" "User Commands"',
        ".ad l",
        ".nh",
        ".SH NAME",
        f"{_roff(PROGRAM)} \\- post\\-train a small language model on this machine, alone or in a swarm",
        ".SH SYNOPSIS",
        f".B {_roff(PROGRAM)}",
        "[VERB] [OPTIONS]",
        ".SH DESCRIPTION",
        *(_roff(line) if line else ".PP" for line in (parser.description or "").splitlines()),
        ".SH VERBS",
    ]
    for name, line, verb in walk_verbs(parser):
        actions = [action for action in verb._actions if action.help != argparse.SUPPRESS]
        arguments = [action for action in actions if not action.option_strings]
        shown = " ".join(_metavar(action, action.dest) for action in arguments)
        lines += [f".SS {_roff(f'{name} {shown}'.strip())}", _roff(line[:1].upper() + line[1:] + ".")]
        for action in arguments:
            choices = ", ".join(map(str, action.choices or ()))
            name = _metavar(action, action.dest)
            lines += [".TP", f".I {_roff(name)}", _roff(action.help or choices or name)]
        for action in actions:
            if action.option_strings:
                takes = f" {_metavar(action, action.dest.upper())}" if action.nargs != 0 else ""
                text = (action.help or "see above").replace("%%", "%")
                lines += [".TP", f".B {_roff(', '.join(action.option_strings) + takes)}", _roff(text)]
    return "\n".join(lines) + "\n"


def _metavar(action: argparse.Action, other: str) -> str:
    return action.metavar if isinstance(action.metavar, str) else other


def _roff(text: str) -> str:
    """Text escaped so that roff prints it literally: backslashes, hyphens, and no control character at the start of a line."""
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    escaped = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in escaped)
    escaped = re.sub(r",(?=\S)", r",\\:", escaped)  # a long list may be broken here
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped
