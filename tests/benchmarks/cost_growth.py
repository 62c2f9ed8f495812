"""How the cost of a round grows with its completions and their length: processor seconds of the engine on one thread.

    python tests/benchmarks/cost_growth.py smollm2 [--shapes 2x8x96 8x8x96 32x8x96 8x8x64 8x8x256 8x8x1024]

A shape is QUESTIONS x COMPLETIONS x TOKENS, a round as in rounds_in_turns.py: all completions differ, none ends early, all are
trained on. Prints a row of Markdown for each: seconds of generation and update, and both per thousand tokens, which stay level
where the cost is linear.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "packaging")]

from tests.benchmarks.real_task import model_file  # noqa: E402
from tests.benchmarks.rounds_in_turns import engine_seconds  # noqa: E402

SHAPES = ("2x8x96", "8x8x96", "32x8x96", "8x8x64", "8x8x256", "8x8x1024")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model of packaging/real_models.py, or a path")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="QxCxT")
    arguments = parser.parse_args()
    print(
        "| shape | generate, s | update, s | generate, s / 1,000 tokens | update, s / 1,000 tokens |\n|---|---|---|---|---|"
    )
    for shape in arguments.shapes:
        spent = engine_seconds(ROOT, model_file(arguments.model), shape, "torch")
        thousands = math.prod(map(int, shape.split("x"))) / 1000
        both = [spent["generate"], spent["update"]]
        cells = [shape, *(f"{each:.2f}" for each in (*both, *(part / thousands for part in both)))]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
