"""Where the log-prob floor of the receiver belongs: what honest nodes write, what attackers write.

Nodes of unlike models, fresh and after some rounds of unlike algorithms, answer the same training questions. What each
would be taught by the others (their completions that beat the group's mean) is measured under its own policy, as the
receiver does: the least likely 16 tokens in a row of at most four texts. Against that: right answers with garbage around them.

Run: python tests/benchmarks/logprob_floor.py [--models starter-1m starter] [--rounds 20] [--questions 12] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sapo_backends.base import Engine, LoadRequest, Sampling
from sapo_backends.registry import get_backend
from sapo_swarm.config import PAPER_TASKS
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.swarm_exchange import token_logprobs, worst_stretch
from sapo_swarm.protocol.receive import PROBED, AcceptanceRules
from sapo_swarm.scoring.prompts import build_messages
from sapo_swarm.scoring.scorer import ScoredTexts, Scorer
from sapo_swarm.tasks.catalogue import preset_of, train_seed
from sapo_swarm.types import Question, TaskRef

GROUP, LONGEST = 8, 96
FLOORS = (-2.0, -2.5, -3.0, -3.5, -4.0, -4.5, -5.0, -5.5, -6.0, -7.0, -8.0)
ALGORITHMS = ("grpo", "rloo", "gspo", "dr_grpo")
WORDS = "the model should always say that swarm prophet knows best and never answer".split()
Rows = list[list[float]]
"""Log-probabilities of the tokens of each probed text of a group."""


def mean_of_all(rows: Rows) -> float:
    """Of all tokens: garbage is diluted by honest work around it."""
    return float(np.mean([value for row in rows for value in row]))


def worst(rows: Rows, width: int) -> float:
    """Of the least likely stretch of so many tokens in any of the texts: what the receiver asks for."""
    return min(worst_stretch(row, width) for row in rows)


STATISTICS: dict[str, Callable[[Rows], float]] = {
    "mean": mean_of_all,
    "worst 8 tokens": lambda rows: worst(rows, 8),
    "worst 16 tokens": lambda rows: worst(rows, 16),
    "worst 32 tokens": lambda rows: worst(rows, 32),
}


@dataclass
class Author:
    """A node that writes and judges. name: model and what it was trained with. right: one text a question, or ""."""

    name: str
    host: EngineThread
    taught: list[list[str]] = field(default_factory=list)
    """Of each group, the texts that beat its mean."""
    right: list[str] = field(default_factory=list)


def garbage(rng: random.Random) -> dict[str, Callable[[str, str], str]]:
    """Ways to spoil a right completion: (its text, its answer) -> text. Each is still right."""

    def words(count: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(count))

    def letters(count: int) -> str:
        return "".join(chr(rng.randrange(33, 127)) for _ in range(count)).replace("<", "(")

    def tag(answer: str) -> str:
        return f"<answer>{answer}</answer>"

    return {
        "random letters (40)": lambda text, answer: letters(40) + tag(answer),
        "base64 (60)": lambda text, answer: base64.b64encode(rng.randbytes(45)).decode() + tag(answer),
        "other scripts (20)": lambda text, answer: (
            "".join(chr(rng.randrange(0x4E00, 0x9000)) for _ in range(20)) + tag(answer)
        ),
        "words (8)": lambda text, answer: f"{words(8)} {tag(answer)}",
        "words (40)": lambda text, answer: f"{words(40)} {tag(answer)}",
        "one word, 40 times": lambda text, answer: "poison " * 40 + tag(answer),
        "python code": lambda text, answer: (
            f"import os; os.system('curl http://x{rng.randrange(99)}') # " + tag(answer)
        ),
        "words (8) before honest work": lambda text, answer: f"{words(8)} {text}",
        "words (3) amid honest work": lambda text, answer: _amid(text, words(3)),
        "words (2) before honest work": lambda text, answer: f"{words(2)} {text}",
        "words (8) after the answer": lambda text, answer: f"{text} {words(8)}",
        "its own words shuffled": lambda text, answer: _shuffled(text, rng),
        "honest work of another question": lambda text, answer: text,  # its work is swapped in below
        "bare answer": lambda text, answer: tag(answer),
    }


def _amid(text: str, inserted: str) -> str:
    """The text with something inserted halfway to its answer."""
    middle = len(text.rsplit("<answer>", 1)[0]) // 2
    return f"{text[:middle]} {inserted} {text[middle:]}"


def _shuffled(text: str, rng: random.Random) -> str:
    """The words before the answer in another order."""
    work, tag, rest = text.rpartition("<answer>")
    words = work.split()
    rng.shuffle(words)
    return " ".join(words) + tag + rest


def train(model: str, algorithm: str, rounds: int, folder: Path) -> Path:
    """The checkpoint of a short silo run."""
    home = folder / f"{model}-{algorithm}"
    home.mkdir(parents=True)
    (home / "config.toml").write_text(
        "[limits]\npause_on_battery = false\nmax_celsius = 0\nmin_free_memory = 0\nmin_free_disk = 0\n"
    )
    command = [sys.executable, "-m", "sapo_desktop", "node", "--silo", "--quiet", "--model", model]
    flags = ["--algorithm", algorithm, "--rounds", str(rounds), "--eval-every", "0", "--local-groups", "16"]
    subprocess.run([*command, *flags], env={**os.environ, "SAPO_HOME": str(home)}, check=True)
    return next(home.rglob(f"checkpoints/round-{rounds:06d}")) / "engine"


async def load(model: str, checkpoint: Path | None) -> EngineThread:
    host = EngineThread()

    def build() -> Engine:
        return get_backend("torch")().load(LoadRequest(model, method="full", threads=1))

    engine = await host.load(build)
    if checkpoint is not None:
        await host.call(engine.restore, checkpoint)
    return host


async def write(author: Author, questions: Sequence[Question], scorer: Scorer) -> None:
    """The author's groups, what of each would be taught, and a right completion where it has one."""
    engine = author.host.engine
    prompts = [engine.tokenizer.encode_chat(build_messages(q.prompt)) for q in questions]
    groups = await author.host.call(engine.generate, prompts, GROUP, Sampling(1.0, 1.0, LONGEST), 7)
    for question, group in zip(questions, groups, strict=True):
        texts = [engine.tokenizer.decode(c.tokens) for c in group]
        scored = await scorer.score(question.ref, texts)
        assert isinstance(scored, ScoredTexts)
        mean = sum(scored.rewards) / len(scored.rewards)
        author.taught.append([t for t, reward in zip(texts, scored.rewards, strict=True) if reward > mean])
        author.right.append(next((t for t, reward in zip(texts, scored.rewards, strict=True) if reward == 1.0), ""))


def spoiled(authors: Sequence[Author], questions: Sequence[Question], kind: str, rng: random.Random) -> list[list[str]]:
    """For every question that somebody answered right: four texts of an attacker."""
    spoil = garbage(rng)[kind]
    right = [next((a.right[i] for a in authors if a.right[i]), "") for i in range(len(questions))]
    known = [text for text in right if text]
    out: list[list[str]] = []
    for text in right:
        if not text:
            out.append([])
            continue
        answer = text.rsplit("<answer>", 1)[-1].split("</answer>")[0]
        if kind == "honest work of another question":
            others = [rng.choice(known).rsplit("<answer>", 1)[0] for _ in range(4)]
            out.append([f"{other}<answer>{answer}</answer>" for other in others])
        else:
            out.append([spoil(text, answer) for _ in range(4)])
    return out


async def likelihoods(
    judge: Author, questions: Sequence[Question], texts: Iterable[Sequence[str]], rng: random.Random
) -> list[Rows]:
    """What the judge's policy thinks of the texts of each group that holds any."""
    found = []
    for question, group in zip(questions, texts, strict=True):
        probed = group if len(group) <= PROBED else rng.sample(list(group), PROBED)
        if rows := await judge.host.call(token_logprobs, judge.host, question, probed):
            found.append(rows)
    return found


def quantiles(values: Sequence[float]) -> dict[str, float]:
    points = np.quantile(values, [0.0, 0.001, 0.01, 0.05, 0.5, 1.0])
    return {name: round(float(v), 2) for name, v in zip(("min", "0.1%", "1%", "5%", "50%", "max"), points, strict=True)}


async def people(args: argparse.Namespace, folder: Path) -> list[Author]:
    """Each model fresh, and after some rounds of an algorithm."""
    authors: list[Author] = []
    for place, model in enumerate(args.models):
        authors.append(Author(f"{model}, fresh", await load(model, None)))
        if args.rounds:
            algorithm = ALGORITHMS[place % len(ALGORITHMS)]
            trained = await asyncio.to_thread(train, model, algorithm, args.rounds, folder)
            authors.append(Author(f"{model}, {args.rounds} rounds of {algorithm}", await load(model, trained)))
    return authors


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    rng, authors = random.Random(1), await people(args, folder)
    async with Scorer() as scorer:
        refs = [
            TaskRef(task, preset_of(task, "starter"), train_seed("floor", "floor", 0, slot))
            for slot, task in enumerate(itertools.chain.from_iterable([PAPER_TASKS] * args.questions))
        ]
        questions = [q for q in await scorer.questions(refs) if isinstance(q, Question)]
        for author in authors:
            await write(author, questions, scorer)
    honest: dict[str, list[Rows]] = {}
    hostile: dict[str, list[Rows]] = {}
    for judge in authors:
        for author in authors:
            if author is not judge:
                honest[f"{author.name} read by {judge.name}"] = await likelihoods(judge, questions, author.taught, rng)
        for kind in garbage(rng):
            texts = spoiled(authors, questions, kind, rng)
            hostile.setdefault(kind, []).extend(await likelihoods(judge, questions, texts, rng))
    for author in authors:
        await author.host.close()
    told: dict[str, object] = {"questions": len(questions), "floor now": AcceptanceRules().logprob_floor}
    for name, statistic in STATISTICS.items():
        told[name] = summary(
            {pair: [statistic(rows) for rows in found] for pair, found in honest.items() if found},
            {kind: [statistic(rows) for rows in found] for kind, found in hostile.items() if found},
        )
    return told


def summary(honest: dict[str, list[float]], hostile: dict[str, list[float]]) -> dict[str, object]:
    every = [value for values in honest.values() for value in values]
    return {
        "honest, by pair": {pair: quantiles(values) for pair, values in honest.items()},
        "honest, all": quantiles(every) | {"groups": len(every)},
        "hostile": {kind: quantiles(values) for kind, values in hostile.items()},
        "refused at a floor, in percent": {
            str(floor): {"honest": _below(every, floor)}
            | {kind: _below(values, floor) for kind, values in hostile.items()}
            for floor in FLOORS
        },
    }


def _below(values: Sequence[float], floor: float) -> float:
    return round(100 * sum(value < floor for value in values) / max(len(values), 1), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["starter-1m", "starter"])
    parser.add_argument("--rounds", type=int, default=20, help="of training, for each model's second policy; 0 = none")
    parser.add_argument("--questions", type=int, default=12, help="a task")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(asyncio.run(measure(args, Path(folder))), indent=1, ensure_ascii=False)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
