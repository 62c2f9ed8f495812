"""Whether practice after the examples is worth its time: one run, held-out pass@1 where its examples ended and where it ended.

    python tests/benchmarks/practice_worth.py smollm2 --tables amounts diary --seeds 1 2 3 [--rounds 40]
    python tests/benchmarks/practice_worth.py smollm2 --longer                # the control: examples for the same seconds
    python tests/benchmarks/practice_worth.py --table          # what was measured so far, as Markdown

For each table of own_tables.py and each seed: half as many training rows as usual (112) and 200 held-out ones, the app's own
defaults, so many rounds of practice after the examples have ended by their own rule ("more passes bring nothing more"). Both
checkpoints then answer the same questions at temperatures 0 and 1.

--longer: the same run without that rule, all examples with the whole step, stopped after the seconds that the node with practice
took with that table and seed.

A JSON line for each run goes to docs/benchmarks/practice-worth.jsonl; the table adds the mean over seeds with an interval that
resamples seeds and questions.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "packaging")]

from tests.benchmarks.own_tables import TABLES, rows  # noqa: E402
from tests.benchmarks.real_task import model_file  # noqa: E402
from tests.support.person import Person, VerbFailed, processor, scores_by_temperature  # noqa: E402
from tests.support.swarm_process import journal  # noqa: E402

from sapo_swarm.events import ExamplesRead, RoundFinished  # noqa: E402

LINES = ROOT / "docs" / "benchmarks" / "practice-worth.jsonl"
TRAINING_ROWS, HELD_OUT_ROWS = 112, 200
RULE = 2
"""How the examples end. 1: a reading after every pass, the end after one without a gain from 90 % on. 2: readings at least twelve
steps apart, two without a gain."""


def write_parts(folder: Path, table: str, seed: int) -> tuple[Path, Path]:
    """Training and held-out rows of a table as two CSV files. No text stands in both."""
    made = rows(table, TRAINING_ROWS + HELD_OUT_ROWS, seed)
    random.Random(seed).shuffle(made)
    paths = folder / f"{table}.csv", folder / "heldout.csv"
    for path, part in zip(paths, (made[:TRAINING_ROWS], made[TRAINING_ROWS:]), strict=True):
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([TABLES[table][0], *part])
    return paths


def make(person: Person, model: str, table: str, seed: int, folder: Path) -> None:
    """The task and the model. Raises VerbFailed."""
    base, (file, held_out) = model_file(model), write_parts(folder, table, seed)
    person.types("tasks", "new", str(file), "--name", "t", "--model", base, "--heldout", str(held_out))
    person.types("new", "m", "--base", base, "--tasks", "t", "--seed", str(seed), "--keep-checkpoints", "50")


def measure(model: str, table: str, seed: int, rounds: int, folder: Path) -> dict[str, Any]:
    """One run with practice, and its two checkpoints. Raises VerbFailed."""
    person = Person(folder / "home")
    make(person, model, table, seed, folder)
    node = person.types("node", "m", "--silo", "--rounds", str(rounds))
    events = journal(person.home)
    over = next(event for event in events if isinstance(event, ExamplesRead) and event.over)
    practised = [event for event in events if isinstance(event, RoundFinished) and not event.examples]
    compared = person.types("eval", "m", "--before", str(over.round), "--items", str(HELD_OUT_ROWS), "--json")
    return {
        "rule": RULE,
        "arm": "practice",
        "model": Path(model).name,
        "table": table,
        "seed": seed,
        "rounds": sum(event.covers for event in practised),
        "rounds_with_unequal_groups": sum(event.nonzero_groups > 0 for event in practised),
        "examples_s": round(over.seconds, 1),
        "practice_s": round(sum(sum(event.seconds.values()) for event in practised), 1),
        "node_cpu_s": round(node.cpu_s, 1),
        "node_s": round(node.seconds, 1),
        "apart": [over.right, over.items],
        "temperatures": scores_by_temperature(json.loads(compared.output), "first", "second"),
        "processor": processor(),
        "day": datetime.now(UTC).date().isoformat(),
    }


WITHOUT_END = (
    "import sapo_swarm.node.examples_phase as phase\n"
    "phase.ENOUGH_RIGHT, phase.PATIENCE, phase.PATIENCE_HIGH = 2.0, 10**6, 10**6\n"
    "phase.MOST_PASSES, phase.SMALLER = 10**6, 1.0"
)
"""The examples phase neither ends nor halves its step."""


def measure_longer(model: str, table: str, seed: int, folder: Path) -> dict[str, Any]:
    """Examples for the seconds that the node with practice took. Raises VerbFailed, and StopIteration where that has not run."""
    known = next(
        line for line in read_lines() if (line["arm"], line["table"], line["seed"]) == ("practice", table, seed)
    )
    person = Person(folder / "home")
    make(person, model, table, seed, folder)
    words = ("node", "m", "--silo", "--examples", "only")
    node = person.types(*words, stop_after=known["node_s"], first=WITHOUT_END)
    compared = person.types("eval", "m", "--items", str(HELD_OUT_ROWS), "--json")
    return {
        "rule": RULE,
        "arm": "longer",
        "model": Path(model).name,
        "table": table,
        "seed": seed,
        "rounds": person.rounds()["rounds_of_examples"],
        "node_cpu_s": round(node.cpu_s, 1),
        "node_s": round(node.seconds, 1),
        "temperatures": scores_by_temperature(json.loads(compared.output)),
        "processor": processor(),
        "day": datetime.now(UTC).date().isoformat(),
    }


def read_lines() -> list[dict[str, Any]]:
    """What was measured so far."""
    return [json.loads(text) for text in LINES.read_text("utf-8").splitlines()] if LINES.exists() else []


def gain_with_interval(lines: list[dict[str, Any]], temperature: str) -> tuple[float, float, float]:
    """Mean gain in points over the runs of one table, with its 95 % interval: runs are resampled, and within each its own gain
    is drawn from the normal distribution that the interval of its paired questions describes."""
    gains = []
    for line in lines:
        delta = line["temperatures"][temperature]["delta"]
        mean, low, high = (100 * delta[part] for part in ("value", "low", "high"))
        gains.append((mean, (high - low) / (2 * 1.96)))
    rng, means = random.Random(7), []
    for _ in range(4000):
        drawn = rng.choices(gains, k=len(gains))
        means.append(statistics.fmean(rng.gauss(mean, spread) for mean, spread in drawn))
    means.sort()
    return statistics.fmean(mean for mean, _ in gains), means[100], means[-101]


def markdown() -> str:
    """A row for each table and temperature: after examples, after practice, the gain, and examples for the same seconds."""
    lines = read_lines()
    head = ("model", "table", "rule", "runs", "T", "after examples", "after practice", "gain, points", "practice, s")
    head += ("examples for the same seconds",)
    text = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for model, table, rule in sorted({(line["model"], line["table"], line["rule"]) for line in lines}):
        runs, longer = (
            [
                line
                for line in lines
                if (line["model"], line["table"], line["rule"], line["arm"]) == (model, table, rule, arm)
            ]
            for arm in ("practice", "longer")
        )
        for temperature in ("0", "1"):
            before, after = (mean_score(runs, temperature, side) for side in ("base", "trained"))
            mean, low, high = gain_with_interval(runs, temperature)
            seconds = statistics.fmean(run["practice_s"] for run in runs)
            control = f"{mean_score(longer, temperature, 'trained'):.1%}, {len(longer)} runs" if longer else "not run"
            text.append(
                f"| {model} | {table} | {rule} | {len(runs)} | {temperature} | {before:.1%} | {after:.1%} "
                f"| {mean:+.1f} [{low:+.1f}, {high:+.1f}] | {seconds:.0f} | {control} |"
            )
    return "\n".join(text)


def mean_score(lines: list[dict[str, Any]], temperature: str, side: str) -> float:
    """Mean held-out pass@1 of a side over runs."""
    return statistics.fmean(line["temperatures"][temperature][side]["t"][0] for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--tables", nargs="+", choices=tuple(TABLES), default=("amounts", "diary"))
    parser.add_argument("--seeds", nargs="+", type=int, default=(1, 2, 3))
    parser.add_argument("--rounds", type=int, default=40, help="of practice (default: 40)")
    parser.add_argument("--longer", action="store_true", help="the control: examples for the same seconds, no practice")
    parser.add_argument("--table", action="store_true", help="print what was measured as Markdown")
    arguments = parser.parse_args()
    if arguments.table:
        print(markdown())
        return
    for model in arguments.models:
        for seed in arguments.seeds:
            for table in arguments.tables:
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        if arguments.longer:
                            line = measure_longer(model, table, seed, Path(folder))
                        else:
                            line = measure(model, table, seed, arguments.rounds, Path(folder))
                    except VerbFailed as error:
                        print(f"{model}, {table}: {error}", flush=True)
                        continue
                print(json.dumps(line), flush=True)
                with LINES.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
