"""What a person types: a parser that suggests the nearest names for an unknown verb or flag, and invites, which are secrets."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from sapo_swarm.errors import suggest_names


class VerbParser(argparse.ArgumentParser):
    """Suggests the nearest words for an unknown one instead of listing all. Flags cannot be abbreviated and may come between the
    words of its verb (`tasks new --no-model FILE`)."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})
        self._mixing = False
        self._everyday: frozenset[str] | None = None

    def shorten_help(self, *everyday: str) -> None:
        """--help explains the flags of these names only (without the dashes), --help-all every one. Call after all are added."""
        self._everyday = frozenset(everyday) | {"help", "help-all"}
        self.add_argument("--help-all", action=_PrintWholeHelp, nargs=0, help="explain every flag, and exit")

    def format_whole_help(self) -> str:
        """The help with every flag."""
        kept, self._everyday = self._everyday, None
        self.usage = None  # parse_known_intermixed_args sets it to the short usage
        try:
            return self.format_help()
        finally:
            self._everyday = kept

    def format_usage(self) -> str:
        """The usage, without the flags that shorten_help() leaves to --help-all."""
        with self._without_rarer():
            return super().format_usage()

    def format_help(self) -> str:
        """The help, without the flags that shorten_help() leaves to --help-all."""
        with self._without_rarer() as count:
            text = super().format_help()
        head, mark, examples = text.partition("\nexamples:")
        more = f"\n{count} more flags, for experts: {self.prog} --help-all\n" if count else ""
        return f"{head}{more}{mark}{examples}"

    @contextlib.contextmanager
    def _without_rarer(self) -> Iterator[int]:
        """Context manager that hides rarer flags; yields how many they are."""
        rarer = [] if self._everyday is None else [a for a in self._actions if not self._is_everyday(a)]
        helps = [action.help for action in rarer]
        for action in rarer:
            action.help = argparse.SUPPRESS
        try:
            yield len(rarer)
        finally:
            for action, line in zip(rarer, helps, strict=True):
                action.help = line

    def _is_everyday(self, action: argparse.Action) -> bool:
        names = self._everyday or ()
        return not action.option_strings or any(flag.removeprefix("--") in names for flag in action.option_strings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse intermixed flags: plain argparse treats an optional word as missing once a flag follows the word before it."""
        if self._mixing or any(action.nargs == argparse.PARSER for action in self._actions):
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            verb, flag = isinstance(action, argparse._SubParsersAction), next(iter(action.option_strings[-1:]), "")
            wrong = f"There is no verb {value!r}" if verb else f"{value!r} cannot follow {flag or self.prog}"
            near = suggest_names(str(value), map(str, action.choices))
            raise argparse.ArgumentError(None, f"{wrong}. {near}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """Exit with one sentence about the wrong word, as every other error is reported, without the usage."""
        sentence = f"{message[:1].upper()}{message[1:]}"
        end = "" if sentence.endswith((".", "?")) else "."
        self.exit(2, f"sapo-desktop: {sentence}{end} See {self.prog} --help\n")


class _PrintWholeHelp(argparse.Action):
    """The --help-all flag of a verb whose --help is short."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        assert isinstance(parser, VerbParser)
        print(parser.format_whole_help(), end="")
        parser.exit()


def reject_arguments(top: argparse.ArgumentParser, verb: str, extra: Sequence[str]) -> NoReturn:
    """Exit with an error about unknown arguments; for a flag, suggest the verb's nearest flags."""
    subs = next(action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    parser = subs.choices[verb] if verb else top
    flag = next((word.partition("=")[0] for word in extra if word.startswith("-")), "")
    if not flag:
        parser.error(f"unrecognized arguments: {' '.join(extra)}")
    top.exit(
        2,
        f"sapo-desktop: There is no flag {flag!r}. {suggest_names(flag, set(_flags(parser)))} See {parser.prog} --help\n",
    )


def no_text(arguments: Sequence[str]) -> str:
    """The first word with bytes that are not UTF-8, which cannot be stored or shown to a model; "" if there is none. File names
    may contain them: a word that is an existing path passes."""
    for word in arguments:
        path = word.partition("=")[2] if word.startswith("--") else word
        if any("\ud800" <= char <= "\udfff" for char in word) and not (
            os.path.lexists(path) or os.path.isdir(os.path.dirname(path))
        ):
            return word
    return ""


def _flags(asked: argparse.ArgumentParser) -> Iterator[str]:
    """Every flag in the parser's help, including those of its subcommands."""
    for action in asked._actions:
        if isinstance(action, argparse._SubParsersAction):
            if asked.prog != "sapo-desktop":
                yield from (flag for inner in action.choices.values() for flag in _flags(inner))
        elif action.help != argparse.SUPPRESS:
            yield from (flag for flag in action.option_strings if flag.startswith("--"))


# An invite as a command gets it: a secret, which must not be in the process list for every account to read.

VARIABLE = "SAPO_INVITE"
_INVITE = re.compile(r"(--[a-z-]+=)?(sapo://.*)", re.DOTALL)


def extract_invite(arguments: Sequence[str]) -> tuple[list[str], str]:
    """The arguments with "-" in place of an invite, and the invite ("" where there is none)."""
    out, invite = [], ""
    for argument in arguments:
        match = _INVITE.fullmatch(argument)
        if match:
            invite = match[2]
            argument = f"{match[1] or ''}-"
        out.append(argument)
    return out, invite


def hide_typed_invite() -> None:
    """Where an invite was typed as an argument: re-execute this process with it in the environment, which only the same
    account can read. Windows shows arguments to their owner alone, so nothing changes there."""
    arguments, invite = extract_invite(sys.orig_argv[1:])
    if not invite or os.name != "posix":
        return
    os.environ[VARIABLE] = invite
    os.execv(sys.executable, [sys.executable, *arguments])


def read_invite(given: str) -> str:
    """The invite given to `--join`: the text itself, or for "-" the variable's value, else a line of standard input."""
    if given != "-":
        return given
    return os.environ.pop(VARIABLE, "") or sys.stdin.readline(1024)
