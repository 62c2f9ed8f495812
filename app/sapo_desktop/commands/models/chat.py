"""`sapo-desktop chat`: one question, two answers: from the base and from the trained model.

At a terminal it starts with a held-out question of the model's tasks, and an empty line brings the next; verdicts show which
answer is correct. A line NEXT on stdin always brings the next one; with --json the output is JSON lines, and a line STOP ends
the answer being written.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.chatting import PairedChat, too_early, without_marks, wording_note
from sapo_desktop.services.models.pieces import (
    ALL_ASKED,
    CUT,
    NEXT,
    STOP,
    ChatChunk,
    HeldOut,
    Marks,
    format_reward,
    format_tally,
    to_message,
)
from sapo_desktop.services.models.shelf import store
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
    parser.add_argument(
        "--questions",
        type=int,
        default=None,
        metavar="N",
        help="answer N held-out questions of its tasks, mark them, and exit",
    )
    parser.add_argument("--checkpoint", default="latest", help="latest or a checkpoint's number (default: latest)")
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="0 gives each model's likeliest answer (default)"
    )
    parser.add_argument(
        "--json", action="store_true", help="every piece of an answer as one JSON line, as it is written"
    )


def main(args: argparse.Namespace) -> int:
    """See the module's docstring; the exit code."""
    home = Home.find()
    home.prepare()
    name, question = _meant(args.words)
    question = args.ask or question
    _check(args, question)
    model = store.find_model(home, name, trained=True)
    early = too_early(model) if args.checkpoint == "latest" else ""
    without, wording = without_marks(model.config), wording_note(model.config)
    if args.questions and without:
        raise UsageError(without)
    with PairedChat(model, args.checkpoint) as chat:
        if early and not args.json:
            print(early, file=sys.stderr)
        if args.questions:
            _ask_questions(chat, args.questions, args.json)
        elif question:
            (_pieces if args.json else _whole)(chat, question, args.temperature)
        elif args.json:
            print(
                json_line({"ready": chat.labels, "early": early, "without_marks": without, "wording": wording}),
                flush=True,
            )
            _serve(chat, args.temperature)
        else:
            if wording:
                print(wording, file=sys.stderr)
            _converse(chat, args.temperature, not sys.stdin.isatty(), without)
    return 0


def _check(args: argparse.Namespace, question: str) -> None:
    """Raises UsageError."""
    if not 0 <= args.temperature <= 4:
        raise UsageError("--temperature is a number from 0 to 4.")
    if args.questions is None:
        return
    if args.questions < 1 or question:
        raise UsageError("--questions is a number from 1 on, and asks instead of a question of yours.")
    if args.temperature:
        raise UsageError("Held-out questions are answered greedily in a chat: leave out --temperature, or use eval.")


def _ask_questions(chat: PairedChat, count: int, as_json: bool) -> None:
    """Ask `count` held-out questions; if there are fewer, say so at the end."""
    for number in range(count):
        if not _next(chat, as_json):
            print(f"A chat has no more than {number} held-out questions of its tasks; eval asks more.", file=sys.stderr)
            return


def _serve(chat: PairedChat, temperature: float) -> None:
    """Answer each input line in JSON lines, until an empty line or the end of the input."""
    typed = _TypedLines()
    while question := typed.take():
        if question == NEXT:
            _next(chat, as_json=True, stopped=typed.stopped)
        else:
            _pieces(chat, question, temperature, typed.stopped)


class _TypedLines:
    """The lines of the input, read in a thread: STOP is noticed while an answer is being written."""

    def __init__(self) -> None:
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._read = self._taken = 0
        """How many STOP were read, and taken from the queue."""
        threading.Thread(target=self._follow, name="typed", daemon=True).start()

    def _follow(self) -> None:
        # unbuffered: a thread that waits in sys.stdin holds its lock, and Python cannot exit then
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as file:
            while line := file.readline().decode(sys.stdin.encoding, "replace").strip():
                self._read += line == STOP
                self._lines.put(line)
        self._lines.put("")

    def take(self) -> str:
        """The next question; "" after an empty line, or at the end of the input."""
        while (line := self._lines.get()) == STOP:
            self._taken += 1
        return line

    def stopped(self) -> bool:
        """Whether the answer being written is to end."""
        return self._read > self._taken


def _converse(chat: PairedChat, temperature: float, piped: bool, without: str) -> None:
    """Answer questions line by line until the input ends; from a pipe, an empty line ends it too."""
    if piped:
        print("Ask a question of the kind the model was trained on; an empty line ends it.", file=sys.stderr)
    else:
        print(
            without
            or "Held-out questions of its tasks, answered greedily. Enter: the next one. Or ask your own. Ctrl+D ends."
        )
        if not without:
            _next(chat, as_json=False)
    while line := sys.stdin.readline():
        question = line.strip()
        if piped and not question:
            return
        if question and question != NEXT:
            _whole(chat, question, temperature)
        elif without or not _next(chat, as_json=False):
            print(without or ALL_ASKED)


def _never() -> bool:
    return False


def _next(chat: PairedChat, as_json: bool, stopped: Callable[[], bool] = _never) -> bool:
    """Print the next held-out question, its answers and verdicts, until stopped; False if there is none left."""
    width, any_left = max(map(len, chat.labels)), False
    last: dict[int, ChatChunk] = {}
    for part in chat.next_held_out():
        any_left = True
        if as_json:
            print(json_line(to_message(part)), flush=True)
        elif isinstance(part, HeldOut):
            right = f"   (right: {part.right})" if part.right else ""
            print(f"\nHeld-out question {part.number}, {part.task}: {part.text}{right}", flush=True)
        elif isinstance(part, ChatChunk):
            last[part.of] = part
        elif isinstance(part, Marks):
            for of, label in enumerate(chat.labels):
                answer = last.get(of, ChatChunk(of, ""))
                verdict = format_reward(part.rewards[of]) if part.rewards else "not marked"
                text = "\n".join(line for line in answer.text.splitlines() if line.strip())
                text = text.replace("\n", f"\n{'':{width}} | {'':8} | ")
                print(f"{label:<{width}} | {verdict:<8} | {text}{f' {CUT}' if answer.cut else ''}", flush=True)
            print(part.problem or format_tally(chat.labels, part), flush=True)
        if stopped():
            break
    if as_json:
        print(json_line({"done": True}), flush=True)
    return any_left


def _meant(words: Sequence[str]) -> tuple[str, str]:
    """Split the words into the model's name and the question; names contain no spaces. Raises UsageError."""
    if len(words) > 2:
        raise UsageError('Put the question in quotes: sapo-desktop chat NAME "What is 17 + 25?"')
    name, question = (*words, "", "")[:2]
    return ("", name) if " " in name.strip() and not question else (name, question)


def _whole(chat: PairedChat, question: str, temperature: float) -> None:
    last = {answer.of: answer for answer in chat.answer(question, temperature)}
    width = max(map(len, chat.labels))
    for of, label in enumerate(chat.labels):
        answer = last.get(of, ChatChunk(of, ""))
        print(f"{label:<{width}} | {answer.text}{f' {CUT}' if answer.cut else ''}", flush=True)


def _pieces(chat: PairedChat, question: str, temperature: float, stopped: Callable[[], bool] = _never) -> None:
    for chunk in chat.answer(question, temperature):
        print(json_line(to_message(chunk)), flush=True)
        if stopped():
            break
    print(json_line({"done": True}), flush=True)
