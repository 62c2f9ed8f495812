"""Four formats, three models: does the program that a format is for give the answers of the engine that trained it?

    python tests/benchmarks/export_matrix.py [--models starter llama-lora qwen3] [--markdown]

Each model is trained for two updates and exported in every format that it has; each export is loaded again in a process of
its own and answers 20 held-out questions greedily, with at most 64 tokens. starter is the bundled model, all weights
trained. llama-lora and qwen3 have tiny random weights (3 layers, width 64, a byte tokenizer), so their answers are chance
continuations: many near-ties, and the first rounded weight that tips one changes the rest. Needs torch, transformers, peft,
llama-cpp-python and mlx-lm.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.trained_models import random_model, trained

from sapo_desktop.services.models.exports import Format, Plan, Quant, Source, export, formats_for

CELLS: tuple[tuple[Format, Quant], ...] = (
    ("hf", "f16"),
    ("adapter", "f16"),
    ("gguf", "f16"),
    ("gguf", "q8_0"),
    ("gguf", "q4_0"),
    ("mlx", "f16"),
)
MODELS = ("starter", "llama-lora", "qwen3", "qwen3-lora")


def made(name: str, folder: Path) -> Source:
    """A trained model in `folder`."""
    if name == "starter":
        return trained(folder, "starter", method="full")
    architecture, _, lora = name.partition("-")
    return trained(folder, str(random_model(folder / "base", architecture)), method=lora or "full")


def rows(name: str, folder: Path) -> Iterator[dict[str, object]]:
    """One row a format that the model has."""
    source = made(name, folder)
    offered = formats_for(source)
    for kind, quant in CELLS:
        plan = Plan(kind, folder / f"{kind}-{quant}", quant)
        if kind not in offered:
            continue
        began = time.perf_counter()
        done = export(source, plan)
        found = done.agreement
        yield {
            "model": name,
            "format": plan.label,
            "read by": f"{found.library} {found.version}" if found else done.unchecked,
            "prompts": f"{found.prompts} of {found.answers}" if found else "",
            "identical": f"{found.identical} of {found.answers}" if found else "",
            "followed": f"{100 * found.followed:.0f} %" if found else "",
            "MB": f"{done.size / 1e6:.1f}",
            "s": f"{time.perf_counter() - began:.0f}",
        }


def main() -> int:
    """Print a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--markdown", action="store_true", help="a table instead of JSON lines")
    args = parser.parse_args()
    headed = False
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            for row in rows(name, Path(folder) / name):
                if args.markdown and not headed:
                    print("| " + " | ".join(row) + " |\n|" + "---|" * len(row))
                    headed = True
                print(
                    "| " + " | ".join(map(str, row.values())) + " |" if args.markdown else json.dumps(row), flush=True
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
