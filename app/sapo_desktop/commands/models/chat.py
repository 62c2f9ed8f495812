"""`sapo-desktop chat`: one question, two answers: the base model's and the trained one's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sapo_backends.base import Engine, Sampling
from sapo_desktop.paths import Home
from sapo_desktop.services.models.checkpoints import choose
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.tasks import catalogue
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.prompts import messages


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument("question", nargs="*", help="ask this and exit; without it, questions are read line by line")
    parser.add_argument("--run", default="", metavar="ID", help="which run (default: the latest)")
    parser.add_argument("--checkpoint", default="latest", help="latest or a round number (default: latest)")
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="0 gives each model's likeliest answer (default)"
    )


def main(args: argparse.Namespace) -> int:
    home = Home.find()
    chosen = [choose(home, args.run, "base"), choose(home, args.run, args.checkpoint)]
    engines = [c.load(lambda fraction, phrase: None) for c in chosen]
    system = _system(chosen[1].config.tasks)
    try:
        if args.question:
            _answer(engines, " ".join(args.question), args.temperature, system)
            return 0
        print("Ask a question of the kind the model was trained on; an empty line ends it.", file=sys.stderr)
        while question := sys.stdin.readline().strip():
            _answer(engines, question, args.temperature, system)
        return 0
    finally:
        for engine in engines:
            engine.close()


def _system(tasks: Sequence[str]) -> str:
    """The system prompt that the run was trained under: its own task's where it has one task only, else the app's."""
    if len(tasks) != 1 or not catalogue.is_own(tasks[0]):
        return ""
    return library.find(tasks[0]).spec.system


def _answer(engines: list[Engine], question: str, temperature: float, system: str) -> None:
    for label, engine in zip(("base   ", "trained"), engines, strict=True):
        prompt = engine.tokenizer.encode_chat(messages(question, system))
        drawn = engine.generate([prompt], 1, Sampling(temperature, 1.0, 256), seed=0)[0][0]
        print(f"{label} | {safe_text(engine.tokenizer.decode(drawn.tokens)).strip()}", flush=True)
