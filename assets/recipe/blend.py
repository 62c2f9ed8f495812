"""The weighted mean of two models that were polished from the same weights. `python -m recipe.blend A B --share 0.36`.

`--temperature 1.3`, also with one model alone, divides the logits by so much: what is drawn at temperature 1 is what would have
been drawn at that temperature. Groups then differ more often on questions that the model would otherwise always or never
get right.

Two short trainings from one beginning lie in one basin, and their mean is at least as good as either (model soups, arXiv
2203.05482). Here it also sets a dial that the mixture cannot: how much is left of a task that is forgotten all at once.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

FILE = "model.safetensors"
_STORY = ("done", "plan", "polish", "blended_with", "afterwards")
"""How a model came about, in its recipe.json; what was done to the weights that recipe.make wrote: `afterwards`, in order."""
LAST_NORM = "model.norm.weight"
"""Its output meets nothing but the unembedding, so dividing it divides the logits."""


def blend(first: Path, second: Path | None, share: float, output: Path, temperature: float = 1.0) -> None:
    """Write (1 - share) * first + share * second, logits divided by temperature, in the first's number format, with both
    recipes in recipe.json. Without a second: the first alone.

    Raises ValueError when the two are not the same shape, the share is not in [0, 1], or the temperature not above 0.
    """
    if not temperature > 0.0:
        raise ValueError(f"A temperature is above 0, not {temperature}.")
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"The share of the second model lies in [0, 1], not {share}.")
    other = second or first
    ours, theirs = load_file(first / FILE), load_file(other / FILE)
    if {name: t.shape for name, t in ours.items()} != {name: t.shape for name, t in theirs.items()}:
        raise ValueError(f"{first} and {other} are not the same shape of model.")
    mixed = {name: torch.lerp(t.float(), theirs[name].float(), share) for name, t in ours.items()}
    mixed[LAST_NORM] /= temperature
    stored = {name: t.to(ours[name].dtype) for name, t in mixed.items()}
    with safe_open(first / FILE, "pt") as file:
        metadata = file.metadata()
    shutil.copytree(first, output, dirs_exist_ok=True)
    save_file(stored, output / FILE, metadata=metadata)
    records = [json.loads((folder / "recipe.json").read_text(encoding="utf-8")) for folder in (first, other)]
    done = list(records[0].get("afterwards", []))
    if second is not None:
        done.append({"mean_with": {"share": share, **{k: records[1][k] for k in _STORY if k in records[1]}}})
    if temperature != 1.0:
        done.append({"logits_divided_by": temperature})
    record = {**records[0], "afterwards": done}
    (output / "recipe.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path, nargs="?", help="none: only the temperature")
    parser.add_argument("--share", type=float, default=0.5, help="of the second")
    parser.add_argument("--temperature", type=float, default=1.0, help="divides the logits")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    blend(arguments.first, arguments.second, arguments.share, arguments.output, arguments.temperature)


if __name__ == "__main__":
    main()
