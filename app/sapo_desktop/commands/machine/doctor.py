"""`sapo-desktop doctor`: what works here, what does not, and the command that fixes it."""

from __future__ import annotations

import argparse
import itertools
import sys

from sapo_desktop.services.bases import question_tokens
from sapo_desktop.services.machine import self_test
from sapo_desktop.services.machine.doctor import run_all_checks
from sapo_desktop.services.machine.self_test import COLUMN, Verdict
from sapo_desktop.streams import json_line

_MARKS: dict[Verdict, str] = {"ok": "✓", "note": "·", "fail": "✗"}
_PLAIN: dict[Verdict, str] = {"ok": "+", "note": "-", "fail": "!"}


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The verb's own arguments."""
    parser.add_argument("--json", action="store_true", help="as JSON lines")
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="also start a node of its own, train three rounds with it and stop it: a text to paste into an issue",
    )


def main(args: argparse.Namespace) -> int:
    """The exit code: 1 if something necessary does not work."""
    marks = _MARKS if (sys.stdout.encoding or "").lower().startswith("utf") else _PLAIN
    failed = False
    for finding in itertools.chain(
        run_all_checks(question_tokens.mean_prompt), self_test.run() if args.self_test else ()
    ):
        failed |= finding.verdict == "fail"
        if args.self_test:
            finding = finding._replace(text=self_test.without_names(finding.text))
        line = f"{marks[finding.verdict]} {finding.what:<{COLUMN}} {finding.text}"
        print(json_line(finding._asdict()) if args.json else line, flush=True)
    return 1 if failed else 0
