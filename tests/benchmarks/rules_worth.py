"""Tables without answers, judged by rules: what practice alone teaches a published model, and what that takes.

    python tests/benchmarks/rules_worth.py smollm2 qwen-coder [--tables slogans replies titles] [--seeds 1 2 3] [--rounds 40]
    python tests/benchmarks/rules_worth.py --table          # what was measured so far, as Markdown

For each model, table and seed, in an empty home and with the app's own defaults:

    tasks new FILE.csv --name t --prompt PROMPT --rules RULES --model M.gguf
    new m --base M.gguf --tasks t --seed S
    node m --silo --rounds N
    eval m --json

Nothing is imitated: there is nothing to imitate. A JSON line for each goes to docs/benchmarks/rules-worth.jsonl.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sys
import tempfile
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "packaging")]

from real_models import MODELS  # noqa: E402
from tests.benchmarks.real_task import model_file  # noqa: E402
from tests.support.person import Person, VerbFailed, processor, scores_by_temperature  # noqa: E402
from tests.support.swarm_process import journal  # noqa: E402

from sapo_swarm.events import GroupRecorded  # noqa: E402

LINES = ROOT / "docs" / "benchmarks" / "rules-worth.jsonl"
ROWS = 280
GOODS = (
    "lamp kettle phone chair radio clock knife jacket tent bottle sofa desk bicycle camera pillow blanket mirror ladder drill "
    "hammer toaster oven fridge mixer watch ring scarf umbrella suitcase wallet pen notebook candle soap towel mug teapot "
    "guitar piano drum violin kite puzzle doll scooter helmet"
).split()
WORDS = "morning quiet bright winter home friends travel summer easy strong light warm family dream city".split()
NAMES = "Anna Bilal Chen Dora Emil Fatou Grace Hugo Ines Jonas Kofi Lena Marta Nils Omar Priya Rosa Sven Tara Umut Vera".split()
MATTERS = (
    "invoice delivery refund password contract appointment repair order account discount complaint booking".split()
)
PLACES = "harbour forest museum market castle desert island station library bakery stadium theatre farm bridge".split()
ANIMALS = "fox owl horse rabbit whale sparrow cat tiger turtle goat bee crow mouse wolf heron".split()
TABLES = {
    "slogans": (
        ("product", "word"),
        (GOODS, WORDS),
        "Write a slogan for a {product}.",
        "3 to 8 words; contains {word}; ends with !; exactly 1 line",
    ),
    "replies": (
        ("name", "matter"),
        (NAMES, MATTERS),
        "Answer a customer named {name} who asks about the {matter}.",
        "starts with Dear {name}; contains {matter}; at most 25 words; without sorry; exactly 1 line",
    ),
    "titles": (
        ("animal", "place"),
        (ANIMALS, PLACES),
        "Write the title of a story about the {animal} and the {place}.",
        "4 to 9 words; contains {animal}; contains {place}; exactly 1 line; at most 60 characters",
    ),
}
"""Columns, what stands in them, the question, the rules. In each the rules ask for more than most first answers give."""


def write_table(folder: Path, name: str, seed: int) -> Path:
    """Up to ROWS different pairs of cells, the same for the same seed."""
    heads, cells, _, _ = TABLES[name]
    pairs = list(product(*cells))
    random.Random(f"{name} {seed}").shuffle(pairs)
    path = folder / f"{name}.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([heads, *pairs[:ROWS]])
    return path


def measure(model: str, table: str, seed: int, rounds: int, rate: str, folder: Path) -> dict[str, Any]:
    """The four lines in a home under this folder. Raises VerbFailed."""
    person, base = Person(folder / "home"), model_file(model)
    _, _, prompt, rules = TABLES[table]
    file = write_table(folder, table, seed)
    options = ("--learning-rate", rate) if rate else ()
    ran = [
        person.types("tasks", "new", str(file), "--name", "t", "--prompt", prompt, "--rules", rules, "--model", base),
        person.types("new", "m", "--base", base, "--tasks", "t", "--seed", str(seed), *options),
        person.types("node", "m", "--silo", "--rounds", str(rounds)),
        person.types("eval", "m", "--json"),
    ]
    return {
        "model": Path(model).name,
        "table": table,
        "seed": seed,
        "rounds": rounds,
        "rate": rate,
        "lines": [{**one.line, "line": one.line["line"].replace(str(folder), "…")} for one in ran],
        "training": person.rounds(),
        "temperatures": scores_by_temperature(json.loads(ran[3].output)),
        "written": written(person.home),
        "processor": processor(),
        "day": datetime.now(UTC).date().isoformat(),
    }


def written(home: Path) -> list[str]:
    """What the model writes in the end: the first answer to each question of the last round. Rules can be kept without saying
    anything, and no share shows it."""
    groups = [event for event in journal(home) if isinstance(event, GroupRecorded)]
    return [event.group.rollouts[0].text for event in groups if event.round == groups[-1].round]


def cells(line: dict[str, Any]) -> list[str]:
    """A run as the cells of a row."""
    shares = []
    for temperature in ("0", "1"):
        base, trained = (line["temperatures"][temperature][side]["t"] for side in ("base", "trained"))
        shares.append(f"{base[0]:.0%} -> {trained[0]:.0%} [{trained[1]:.0%}, {trained[2]:.0%}]")
    node = next(one for one in line["lines"] if one["line"].startswith("node"))
    peak = max(one["peak_gb"] for one in line["lines"])
    head = [line["model"], line["table"], str(line["seed"]), str(line["rounds"]), line["rate"] or "default"]
    return [*head, *shares, f"{node['cpu_s']:.0f}", f"{peak:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"{', '.join(MODELS)}, or a path")
    parser.add_argument("--tables", nargs="+", choices=tuple(TABLES), default=tuple(TABLES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--rate", default="", help="run.learning_rate (default: the app's)")
    parser.add_argument("--table", action="store_true", help="print what was measured as Markdown")
    arguments = parser.parse_args()
    if arguments.table:
        head = (
            "model",
            "table",
            "seed",
            "rounds",
            "T = 0: base -> trained",
            "T = 1: base -> trained",
            "node, s",
            "peak, GB",
        )
        print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
        for line in map(json.loads, LINES.read_text("utf-8").splitlines()):
            print(f"| {' | '.join(cells(line))} |")
        return
    if not arguments.models:
        parser.error("name a model, or --table")
    for seed, model, table in product(arguments.seeds, arguments.models, arguments.tables):
        with tempfile.TemporaryDirectory() as folder:
            try:
                line = measure(model, table, seed, arguments.rounds, arguments.rate, Path(folder))
            except VerbFailed as error:
                print(f"{model}, {table}: {error}", flush=True)
                continue
        print(" | ".join(cells(line)), flush=True)
        with LINES.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
