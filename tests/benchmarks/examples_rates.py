"""Which learning rate and batch a model learns examples best with: its own rows as completions with advantage 1, no practice.

    python tests/benchmarks/examples_rates.py MODEL [--tables diary trades] [--rates 1e-3 2e-3] [--batches 8 32] [--passes 2]
    python tests/benchmarks/examples_rates.py --table          # what was measured so far, as Markdown

MODEL is what the engine loads. Of each table of own_tables.py a fifth of the rows is held out by content, as the app does it;
after each pass over the others the held-out ones are answered greedily and once at temperature 1, and count where the text
between the tags is equal. Each line goes to docs/benchmarks/examples-rates.jsonl.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.own_tables import TABLES, TRADES, Made, rows  # noqa: E402

from sapo_backends.base import Engine, LoadRequest, PolicyUpdate, Sampling, TrainSample  # noqa: E402
from sapo_backends.torch_backend import TorchBackend  # noqa: E402
from sapo_swarm.scoring.prompts import extract_answer  # noqa: E402

LINES = ROOT / "docs" / "benchmarks" / "examples-rates.jsonl"
SYSTEM = "Give only the final answer between <answer> and </answer> tags."
PROMPTS = {
    "trades": f"Who must be sent? One of: {', '.join(TRADES)}.\n{{}}",
    "orders": "Write the order as JSON with the keys name, quantity, city.\n{}",
    "amounts": "Which amount is it, as a whole number with its unit: m, mm, g or ml?\n{}",
    "diary": "Write the appointment as: HH:MM Surname, Title.\n{}",
}
"""What the app would ask where the prompt says what the verifier wants."""
LONGEST = 48
"""Tokens of an answer with its tags, at most."""


def split(made: Sequence[Made]) -> tuple[list[Made], list[Made]]:
    """Rows to train on and held-out ones, a fifth, by content."""
    ordered = sorted(made, key=lambda row: hashlib.sha256(row[0].encode()).hexdigest())
    return ordered[len(ordered) // 5 :], ordered[: len(ordered) // 5]


class Pupil:
    """A model that learns one table: its prompts, its passes over the rows, its held-out answers."""

    def __init__(self, engine: Engine, table: str, held_out: int, seed: int) -> None:
        self.engine, self.table, self.rng = engine, table, random.Random(seed)
        self.train, held = split(rows(table))
        self.held, self.seed = held[:held_out], seed

    def prompt(self, text: str) -> tuple[int, ...]:
        """The ids of a row's conversation."""
        turns = [("system", SYSTEM), ("user", PROMPTS[self.table].format(text))]
        return tuple(self.engine.tokenizer.encode_chat([{"role": role, "content": content} for role, content in turns]))

    def sample(self, row: Made) -> TrainSample:
        """A row as a verified completion."""
        tokenizer = self.engine.tokenizer
        answer = tuple(tokenizer.encode_text(f"<answer>{row[1]}</answer>"))
        return TrainSample(self.prompt(row[0]), (*answer, tokenizer.eos_ids[0]), 1.0)

    def learn(self, rate: float, batch: int) -> float:
        """One pass over the rows in another order; gives the mean log-probability of their tokens, taken before each update."""
        self.rng.shuffle(self.train)
        weighted = tokens = 0.0
        for start in range(0, len(self.train), batch):
            samples = [self.sample(row) for row in self.train[start : start + batch]]
            done = self.engine.update(samples, PolicyUpdate(learning_rate=rate), self.rng.getrandbits(31))
            weighted, tokens = weighted + done.logprob_local * done.tokens_local, tokens + done.tokens_local
        return weighted / tokens

    def right(self, temperature: float) -> tuple[float, str]:
        """The share of held-out rows answered right, and the first answer."""
        prompts = [self.prompt(text) for text, _ in self.held]
        groups = self.engine.generate(prompts, 1, Sampling(temperature, 1.0, LONGEST), self.seed)
        texts = [self.engine.tokenizer.decode(group[0].tokens) for group in groups]
        answers = [(extract_answer(text) or "").casefold() for text in texts]
        hits = [answer == truth.casefold() for answer, (_, truth) in zip(answers, self.held, strict=True)]
        return sum(hits) / len(hits), texts[0]


def measure(
    model: str, table: str, rate: float, batch: int, untrained: bool, arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """One line after each pass, where asked for one before the first."""
    engine = TorchBackend().load(
        LoadRequest(model=model, method="lora", threads=arguments.threads, precision=arguments.precision)
    )
    try:
        pupil = Pupil(engine, table, arguments.held_out, arguments.seed)
        seconds = processor_seconds = 0.0
        for count in range(0 if untrained else 1, arguments.passes + 1):
            logprob, began, spent = None, time.monotonic(), time.process_time()
            if count:
                logprob = round(pupil.learn(rate, batch), 4)
                seconds += time.monotonic() - began
                processor_seconds += time.process_time() - spent
            began = time.monotonic()
            (greedy, example), (sampled, _) = pupil.right(0.0), pupil.right(1.0)
            yield {
                "model": Path(model).name,
                "table": table,
                "rate": rate if count else None,
                "batch": batch if count else None,
                "passes": count,
                "greedy": round(greedy, 3),
                "sampled": round(sampled, 3),
                "held_out": len(pupil.held),
                "logprob": logprob,
                "learning_s": round(seconds),
                "learning_cpu_s": round(processor_seconds),
                "answering_s": round(time.monotonic() - began),
                "threads": arguments.threads,
                "precision": arguments.precision,
                "seed": arguments.seed,
                "example": example,
                "day": datetime.now(UTC).date().isoformat(),
            }
    finally:
        engine.close()


def markdown() -> str:
    """What was measured, a row for each model, table, rate and batch; a cell for each pass: greedy / temperature 1."""
    table: dict[tuple[object, ...], dict[int, dict[str, Any]]] = {}
    for line in map(json.loads, LINES.read_text("utf-8").splitlines()):
        key = (line["model"], line["table"], line["rate"], line["batch"], line["precision"], line["seed"])
        table.setdefault(key, {})[line["passes"]] = line
    most = max(count for cells in table.values() for count in cells) if table else 0
    head = ["model", "table", "rate", "batch", *(f"pass {count}" for count in range(1, most + 1)), "processor s a pass"]
    text = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for (model, name, rate, batch, _, _), cells in table.items():
        if rate is None:
            shown = [f"untrained: {cells[0]['greedy']:.2f} / {cells[0]['sampled']:.2f}"] + [""] * most
        else:
            passes = (cells.get(count) for count in range(1, most + 1))
            shown = [f"{cell['greedy']:.2f} / {cell['sampled']:.2f}" if cell else "" for cell in passes]
            last = cells[max(cells)]
            shown.append(f"{last.get('learning_cpu_s', last['learning_s']) / last['passes']:.0f}")
        left = [str(model), str(name), "-" if rate is None else f"{rate:g}", "-" if batch is None else str(batch)]
        text.append("| " + " | ".join((*left, *shown)) + " |")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--tables", nargs="+", choices=tuple(TABLES), default=tuple(TABLES))
    parser.add_argument("--rates", nargs="+", type=float, default=(3e-4, 1e-3, 2e-3))
    parser.add_argument("--batches", nargs="+", type=int, default=(8, 16, 32))
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--base", action="store_true", help="measure the untrained model too")
    parser.add_argument("--held-out", type=int, default=56, help="held-out rows to answer (default: all 56)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print what was measured as Markdown")
    arguments = parser.parse_args()
    if arguments.table:
        print(markdown())
        return
    if not arguments.model:
        parser.error("name a model, or --table")
    for table in arguments.tables:
        for number, (rate, batch) in enumerate(product(arguments.rates, arguments.batches)):
            untrained = arguments.base and number == 0
            for line in measure(arguments.model, table, rate, batch, untrained, arguments):
                print(json.dumps(line), flush=True)
                with LINES.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
