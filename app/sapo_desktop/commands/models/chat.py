"""`sapo-desktop chat`: one question, two answers: the base model's and the trained one's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.chatting import Chat, too_early
from sapo_desktop.services.models.pieces import CUT, Said
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.models.shelf.adopt import adopt
from sapo_desktop.streams import json_line


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """See the module's docstring."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NAME",
        help="the model (default: the one trained last); a question may stand behind it, or alone where it has a space",
    )
    parser.add_argument("--ask", default="", metavar="QUESTION", help="ask this and exit; else questions line by line")
    parser.add_argument("--checkpoint", default="latest", help="latest or a round number (default: latest)")
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="0 gives each model's likeliest answer (default)"
    )
    parser.add_argument(
        "--json", action="store_true", help="every piece of an answer as one JSON line, as it is written"
    )


def main(args: argparse.Namespace) -> int:
    """See the module's docstring; the exit code."""
    if not 0 <= args.temperature <= 4:
        raise UsageError("--temperature is a number from 0 to 4.")
    home = Home.find()
    home.prepare()
    for sentence in adopt(home):
        print(sentence, file=sys.stderr)
    name, question = _meant(args.words)
    question = args.ask or question
    model = store.find(home, name, trained=True)
    early = too_early(model) if args.checkpoint == "latest" else ""
    with Chat(model, args.checkpoint) as chat:
        if early and not args.json:
            print(early, file=sys.stderr)
        tell = _pieces if args.json else _whole
        if question:
            tell(chat, question, args.temperature)
            return 0
        if args.json:
            print(json_line({"ready": chat.labels, "early": early}), flush=True)
        else:
            print("Ask a question of the kind the model was trained on; an empty line ends it.", file=sys.stderr)
        while question := sys.stdin.readline().strip():
            tell(chat, question, args.temperature)
    return 0


def _meant(words: Sequence[str]) -> tuple[str, str]:
    """The model's name and the question; names hold no space. Raises UsageError."""
    if len(words) > 2:
        raise UsageError('Put the question in quotes: sapo-desktop chat NAME "What is 17 + 25?"')
    name, question = (*words, "", "")[:2]
    return ("", name) if " " in name.strip() and not question else (name, question)


def _whole(chat: Chat, question: str, temperature: float) -> None:
    last = {said.of: said for said in chat.answer(question, temperature)}
    width = max(map(len, chat.labels))
    for of, label in enumerate(chat.labels):
        said = last.get(of, Said(of, ""))
        print(f"{label:<{width}} | {said.text}{f' {CUT}' if said.cut else ''}", flush=True)


def _pieces(chat: Chat, question: str, temperature: float) -> None:
    for said in chat.answer(question, temperature):
        print(json_line(said._asdict()), flush=True)
    print(json_line({"done": True}), flush=True)
