"""Completions for bash, zsh and fish, and the manual page, made from the parser of the command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

PROGRAM = "sapo-desktop"


class Option(NamedTuple):
    """names: such as ("--json",) or ("-h", "--help"). values: that may follow; takes: whether one has to."""

    names: tuple[str, ...]
    help: str
    values: tuple[str, ...]
    takes: bool
    metavar: str


class Verb(NamedTuple):
    """words: that may stand in place of its arguments. arguments: their names, for people."""

    name: str
    help: str
    options: tuple[Option, ...]
    words: tuple[str, ...]
    arguments: tuple[tuple[str, str], ...]


def verbs(parser: argparse.ArgumentParser) -> tuple[Verb, ...]:
    """The verbs of a parser, with everything that each takes."""
    (action,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    lines = {choice.dest: choice.help or "" for choice in action._choices_actions}
    return tuple(_verb(name, lines[name], sub) for name, sub in action.choices.items())


def _verb(name: str, line: str, parser: argparse.ArgumentParser) -> Verb:
    options, words, arguments = [], list[str](), []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words += action.choices
            arguments.append((action.metavar if isinstance(action.metavar, str) else action.dest, action.help or ""))
        elif action.option_strings:
            options.append(_option(action))
        elif action.help != argparse.SUPPRESS:
            words += map(str, action.choices or ())
            arguments.append((action.dest, action.help or ", ".join(map(str, action.choices or ()))))
    return Verb(name, line, tuple(options), tuple(words), tuple(arguments))


def _option(action: argparse.Action) -> Option:
    takes = action.nargs != 0
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    text = "" if action.help in (None, argparse.SUPPRESS) else str(action.help).replace("%%", "%")
    return Option(tuple(action.option_strings), text, tuple(map(str, action.choices or ())), takes, metavar)


def bash(parser: argparse.ArgumentParser) -> str:
    """Source it, or put it into a folder of bash-completion."""
    found = verbs(parser)
    cases = "\n".join(f"        {verb.name}) words={_word(' '.join(_offered(verb)))} ;;" for verb in found)
    values = "\n".join(
        f"        {verb.name}:{name}) words={_word(' '.join(option.values))} ;;"
        for verb in found
        for option in verb.options
        if option.values
        for name in option.names
    )
    return f"""\
# bash completion of {PROGRAM}
_sapo_desktop() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" words
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W {_word(" ".join(v.name for v in found))} -- "$current"))
        return
    fi
    case "${{COMP_WORDS[1]}}:$previous" in
{values}
    esac
    if [ -n "$words" ]; then
        COMPREPLY=($(compgen -W "$words" -- "$current"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    [ ${{#COMPREPLY[@]}} -gt 0 ] || COMPREPLY=($(compgen -f -- "$current"))
}}
complete -o filenames -F _sapo_desktop {PROGRAM}
"""


def _offered(verb: Verb) -> Iterator[str]:
    yield from verb.words
    yield from (name for option in verb.options for name in option.names)


def _word(text: str) -> str:
    """In single quotes, for every Bourne shell and fish."""
    return "'" + text.replace("'", "'\\''") + "'"


def zsh(parser: argparse.ArgumentParser) -> str:
    """A file _sapo-desktop in a folder of fpath."""
    found = verbs(parser)
    listed = "\n".join(f"    {_word(f'{verb.name}:{_zsh_text(verb.help)}')}" for verb in found)
    cases = "\n".join(f"    {verb.name}) _arguments {' '.join(_zsh_arguments(verb))} ;;" for verb in found)
    return f"""\
#compdef {PROGRAM}
_sapo_desktop() {{
  local -a verbs
  verbs=(
{listed}
  )
  if (( CURRENT == 2 )); then
    _describe verb verbs
    return
  fi
  local verb=$words[2]
  shift words
  (( CURRENT-- ))
  case $verb in
{cases}
  esac
}}
_sapo_desktop "$@"
"""


def _zsh_arguments(verb: Verb) -> Iterator[str]:
    for option in verb.options:
        value = f":{option.metavar}:({' '.join(option.values)})" if option.values else f":{option.metavar}:_files"
        for name in option.names:
            yield _word(f"{name}[{_zsh_text(option.help)}]{value if option.takes else ''}")
    yield _word(f"*::argument:({' '.join(verb.words)})" if verb.words else "*::argument:_files")


def _zsh_text(text: str) -> str:
    """Without the characters that mean something to _arguments and _describe."""
    return text.translate({ord("["): "(", ord("]"): ")", ord(":"): ";", ord("\\"): "/"})


def fish(parser: argparse.ArgumentParser) -> str:
    """A file sapo-desktop.fish in a folder of fish_complete_path."""
    lines = [f"# fish completion of {PROGRAM}"]
    start = f"complete -c {PROGRAM}"
    for verb in verbs(parser):
        lines.append(f"{start} -n __fish_use_subcommand -x -a {_fish(verb.name)} -d {_fish(verb.help)}")
        seen = f"{start} -n {_fish(f'__fish_seen_subcommand_from {verb.name}')}"
        if verb.words:
            lines.append(f"{seen} -a {_fish(' '.join(verb.words))}")
        for option in verb.options:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            values = f" -x -a {_fish(' '.join(option.values))}" if option.values else " -r" if option.takes else ""
            lines.append(f"{seen} {names}{values} -d {_fish(option.help)}")
    return "\n".join(lines) + "\n"


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def man(parser: argparse.ArgumentParser, version: str) -> str:
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
    for verb in verbs(parser):
        shown = " ".join(name for name, _ in verb.arguments)
        lines += [f".SS {_roff(f'{verb.name} {shown}'.strip())}", _roff(verb.help[:1].upper() + verb.help[1:] + ".")]
        for name, text in verb.arguments:
            lines += [".TP", f".I {_roff(name)}", _roff(text or name)]
        for option in verb.options:
            takes = f" {option.metavar}" if option.takes else ""
            lines += [".TP", f".B {_roff(', '.join(option.names) + takes)}", _roff(option.help or "see above")]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    """Text as roff has it literally: backslashes, hyphens, and no control character at the beginning of a line."""
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    escaped = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in escaped)
    escaped = re.sub(r",(?=\S)", r",\\:", escaped)  # where a long list may be broken
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


KINDS: dict[str, Callable[[argparse.ArgumentParser], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
