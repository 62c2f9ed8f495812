"""Twenty tasks of reasoning_gym for a real model: untrained, and after fifteen minutes of examples and practice on all of them.

    python tests/benchmarks/real_reasoning.py smollm2 --home FOLDER [--minutes 15] [--items 25]
    python tests/benchmarks/real_reasoning.py --table          # what was measured so far, as Markdown

MODEL is a name of packaging/real_models.py, or a path. The model is made with the app's own defaults and these tasks, trained by
`node` for so many minutes in all, and compared with its base by `eval` at temperatures 0 and 1 on the same held-out questions.
Whatever was finished in FOLDER is not done again: after Ctrl+C the same command goes on, the node with the minutes that are left.
The result is a JSON line in docs/benchmarks/real-reasoning.jsonl.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "packaging")]

from real_models import MODELS  # noqa: E402
from tests.benchmarks.real_task import model_file  # noqa: E402
from tests.support.person import Person, held_out_scores, processor  # noqa: E402

LINES = ROOT / "docs" / "benchmarks" / "real-reasoning.jsonl"
TASKS = {
    "basic_arithmetic": "starter",
    "chain_sum": "default",
    "decimal_arithmetic": "starter",
    "fraction_simplification": "starter",
    "base_conversion": "starter",
    "gcd": "default",
    "simple_equations": "default",
    "number_sequence": "default",
    "number_sorting": "default",
    "leg_counting": "default",
    "letter_counting": "default",
    "count_bits": "default",
    "spell_backward": "default",
    "word_sorting": "default",
    "word_sequence_reversal": "default",
    "caesar_cipher": "default",
    "calendar_arithmetic": "starter",
    "family_relationships": "default",
    "syllogism": "default",
    "aiw": "default",
}
"""The tasks and the preset that the app takes for each under its own default: easy ones of every sort that it has (sums, numbers,
sorting and counting, text, dates, families, logic)."""


class Measurement:
    """One model's way through the steps. What is finished is in steps.json of the folder."""

    def __init__(self, model: str, folder: Path) -> None:
        self.model, self.folder, self.person = model, folder, Person(folder / "home")
        self.file = folder / "steps.json"
        self.steps: dict[str, Any] = json.loads(self.file.read_text("utf-8")) if self.file.exists() else {}
        if self.steps.setdefault("model", model) != model:
            raise SystemExit(f"{folder} holds a measurement of {self.steps['model']}. Name another folder.")

    def keep(self, step: str, result: object) -> None:
        """Store a finished step."""
        self.steps[step] = result
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.steps), "utf-8")

    def make(self) -> None:
        """The model, with the twenty tasks."""
        if "new" not in self.steps:
            words = ("new", "m", "--base", model_file(self.model), "--tasks", ",".join(TASKS))
            self.keep("new", self.person.types(*words).line)

    def train(self, seconds: float) -> None:
        """Let the node work until it has had so many seconds. Interrupted, it counts the rounds that it finished."""
        if "node" in self.steps:
            return
        spent = sum(self.person.rounds()["phase_s"].values()) if "started" in self.steps else 0.0
        self.keep("started", True)
        if spent < seconds:
            self.person.types("node", "m", "--silo", stop_after=seconds - spent)
        trained = self.person.rounds()
        if not trained["rounds"] and not trained["examples"]:
            raise SystemExit(f"The node finished nothing in {seconds:.0f} s. Run it again with more --minutes.")
        self.keep("node", trained)

    def compare(self, temperature: float, items: int) -> None:
        """Base and trained model on the same held-out questions."""
        step = f"T={temperature:g}"
        if step not in self.steps:
            words = ("eval", "m", "--json", "--temperature", f"{temperature:g}", "--items", str(items))
            ran = self.person.types(*words)
            self.keep(step, held_out_scores(json.loads(ran.output)) | {"cost": ran.line})

    def line(self, minutes: float) -> dict[str, Any]:
        """The whole measurement."""
        return {
            "model": Path(self.model).name,
            "minutes": minutes,
            "training": self.steps["node"],
            "temperatures": {f"{temperature:g}": self.steps[f"T={temperature:g}"] for temperature in (0, 1)},
            "processor": processor(),
            "day": datetime.now(UTC).date().isoformat(),
        }


def markdown() -> str:
    """The newest measurement of each model: a row a task, trained pass@1 with its interval, and a row of means."""
    newest = {line["model"]: line for line in map(json.loads, LINES.read_text("utf-8").splitlines())}
    text = []
    for model, line in newest.items():
        text += [f"{model}, {line['minutes']:g} minutes, {line['processor']}, {line['day']}", ""]
        text += ["| task | preset | T = 0: base | trained | T = 1: base | trained |", "|---|---|---|---|---|---|"]
        for task, preset in TASKS.items():
            cells = [task, preset]
            for temperature in ("0", "1"):
                base, trained = (line["temperatures"][temperature][side][task] for side in ("base", "trained"))
                cells += [f"{base[0]:.2f}", f"{trained[0]:.2f} [{trained[1]:.2f}, {trained[2]:.2f}]"]
            text.append("| " + " | ".join(cells) + " |")
        means = ["**mean**", ""]
        for temperature in ("0", "1"):
            scores = line["temperatures"][temperature]
            for side in ("base", "trained"):
                means.append(f"**{sum(score[0] for score in scores[side].values()) / len(scores[side]):.3f}**")
        text += ["| " + " | ".join(means) + " |", ""]
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="", help=f"{', '.join(MODELS)}, or a path")
    parser.add_argument("--home", type=Path, metavar="FOLDER", help="where the measurement lives and goes on")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--items", type=int, default=25, help="held-out questions a task (default: 25)")
    parser.add_argument("--table", action="store_true", help="print what was measured as Markdown")
    arguments = parser.parse_args()
    if arguments.table:
        print(markdown())
        return
    if not arguments.model or arguments.home is None:
        parser.error("name a model and --home FOLDER, or --table")
    measurement = Measurement(arguments.model, arguments.home)
    measurement.make()
    measurement.train(arguments.minutes * 60)
    for temperature in (0.0, 1.0):
        measurement.compare(temperature, arguments.items)
    with LINES.open("a", encoding="utf-8") as file:
        file.write(json.dumps(measurement.line(arguments.minutes)) + "\n")
    print(markdown())


if __name__ == "__main__":
    main()
