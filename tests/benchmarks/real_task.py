"""A person's table, a person's model, four lines: how much better the model is at the task afterwards, and what that took.

    python tests/benchmarks/real_task.py smollm2 gemma-270m [--tables trades diary] [--examples off|only] [--seed 2]
    python tests/benchmarks/real_task.py --table          # what was measured so far, as Markdown

For each model (a name of packaging/real_models.py, or a path) and each table of own_tables.py, in an empty home and with the
app's own defaults:

    tasks new FILE.csv --name t --model M.gguf
    new m --base M.gguf --tasks t
    node m --silo --rounds 10
    eval m --json

Arms: --examples off|only; --half trains on half of the training rows with the same held-out rows; --seconds N asks the node to
stop after so long, so that two arms have had the same time. A JSON line for each pair goes to docs/benchmarks/real-tasks.jsonl.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "packaging")]

from real_models import MODELS, path_of  # noqa: E402
from tests.benchmarks.examples_rates import split  # noqa: E402
from tests.benchmarks.own_tables import ROWS, TABLES, rows, write_table  # noqa: E402
from tests.support.person import Person, VerbFailed, processor, scores_by_temperature  # noqa: E402

LINES = ROOT / "docs" / "benchmarks" / "real-tasks.jsonl"


def model_file(name: str) -> str:
    """What is typed behind --base: a published model's file by its name, else what was given."""
    if name not in MODELS:
        return name
    if not (path := path_of(name)).is_file():
        raise SystemExit(f"{path} is not there. Fix: python packaging/real_models.py {name}")
    return str(path)


def write_halves(folder: Path, table: str, seed: int) -> tuple[Path, Path]:
    """Half of a table's training rows, and all of its held-out rows, as two CSV files."""
    train, held_out = split(rows(table, ROWS, seed))
    paths = folder / f"{table}.csv", folder / "heldout.csv"
    for path, part in zip(paths, (train[: len(train) // 2], held_out), strict=True):
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([TABLES[table][0], *part])
    return paths


def measure(model: str, table: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The four lines in a home under this folder. Raises VerbFailed."""
    person, base = Person(folder / "home"), model_file(model)
    if arguments.half:
        file, held_out = write_halves(folder, table, arguments.table_seed)
        more = ("--heldout", str(held_out))
    else:
        file, more = write_table(folder, table, ROWS, arguments.table_seed), ()
    options = ("--examples", arguments.examples) if arguments.examples != "auto" else ()
    options += ("--seed", str(arguments.seed)) if arguments.seed else ()
    ran = [
        person.types("tasks", "new", str(file), "--name", "t", "--model", base, *more),
        person.types("new", "m", "--base", base, "--tasks", "t", *options),
        person.types("node", "m", "--silo", "--rounds", str(arguments.rounds), stop_after=arguments.seconds),
        person.types("eval", "m", "--json"),
    ]
    scores = scores_by_temperature(json.loads(ran[3].output))
    return {
        "model": Path(model).name,
        "table": table,
        "examples": arguments.examples,
        "half": arguments.half,
        "seed": arguments.seed,
        "table_seed": arguments.table_seed,
        "lines": [{**one.line, "line": one.line["line"].replace(str(folder), "…")} for one in ran],
        "training": person.rounds(),
        "temperatures": scores,
        "processor": processor(),
        "day": datetime.now(UTC).date().isoformat(),
    }


def sentence(line: dict[str, Any]) -> str:
    """A measured pair in a few words."""
    shares = [
        f"T={temperature} {scores['base']['t'][0]:.0%} -> {scores['trained']['t'][0]:.0%} "
        f"[{scores['trained']['t'][1]:.0%}, {scores['trained']['t'][2]:.0%}]"
        for temperature, scores in sorted(line["temperatures"].items())
    ]
    seconds = ", ".join(f"{one['line'].split()[0]} {one['seconds']:.0f} s" for one in line["lines"])
    peak = max(one["peak_gb"] for one in line["lines"])
    return f"{line['model']}, {line['table']}, {arm(line)}: {'; '.join(shares)}; {seconds}; peak {peak:.2f} GB"


def arm(line: dict[str, Any]) -> str:
    """What was different from the defaults."""
    return f"examples {line['examples']}" + (", half of the rows" if line["half"] else "")


def markdown() -> str:
    """What was measured, a row a pair."""
    head = ("model", "table", "arm", "T = 0: base -> trained", "T = 1: base -> trained")
    head += ("tokens trained", "node, s", "peak, GB", "processor")
    text = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for line in map(json.loads, LINES.read_text("utf-8").splitlines()):
        cells = [line["model"], line["table"], arm(line)]
        for temperature in ("0", "1"):
            base, trained = (line["temperatures"][temperature][side]["t"] for side in ("base", "trained"))
            cells.append(f"{base[0]:.2f} -> {trained[0]:.2f} [{trained[1]:.2f}, {trained[2]:.2f}]")
        node = next(one["seconds"] for one in line["lines"] if one["line"].startswith("node"))
        peak = max(one["peak_gb"] for one in line["lines"])
        cells += [f"{line['training']['tokens_trained']:,}", f"{node:.0f}", f"{peak:.2f}", line["processor"]]
        text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"{', '.join(MODELS)}, or a path")
    parser.add_argument("--tables", nargs="+", choices=tuple(TABLES), default=tuple(TABLES))
    parser.add_argument("--examples", choices=("auto", "off", "only"), default="auto", help="run.examples")
    parser.add_argument("--half", action="store_true", help="train on half of the training rows")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="ask the node to stop after so many (default: never)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the run (default: the app's)")
    parser.add_argument("--table-seed", type=int, default=1, help="other rows for another number")
    parser.add_argument("--table", action="store_true", help="print what was measured as Markdown")
    arguments = parser.parse_args()
    if arguments.table:
        print(markdown())
        return
    if not arguments.models:
        parser.error("name a model, or --table")
    for model in arguments.models:
        for table in arguments.tables:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    line = measure(model, table, Path(folder), arguments)
                except VerbFailed as error:
                    print(f"{model}, {table}: {error}", flush=True)
                    continue
            print(sentence(line), flush=True)
            with LINES.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
