"""The model card and its chart from the figures that `recipe.evaluate --json` wrote. `python -m recipe.card`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import sapo_assets
from recipe.evaluate import Result, mean, table

_HEAD = """# The starter models

Two small language models that ship with sapo-desktop, so that the first three minutes need no download and every
test is real. They are laboratory animals: good enough to find the form of an answer and to be right now and then, weak
enough that reinforcement learning has something to do. They know nothing but nine puzzles. Licence: Apache-2.0.

| | {names} |
|---|{rules}|
"""

_BODY = """
**Architecture.** Qwen2 (grouped-query attention, rotary positions, RMSNorm, SwiGLU, tied embeddings), trained from random
weights. Weights are stored in bfloat16. The tokenizer is byte-level BPE with 1024 tokens, every digit its own token; it
splits text as Qwen2 does (`qwen2` in llama.cpp). The chat template is ChatML without the system message.

**Data.** Questions and final answers come from reasoning_gym 0.1.25 alone, with seeds of the train range, the short
worked steps between them from code of ours (`assets/recipe/worked*.py`). No other text. The first {window} held-out items of
every task and preset were left out of the training text, by question (for bf by program), and the recipe asserts it.
Only the `starter` presets were trained on (of binary_matrix the `easy` one; the larger model's polish took the `starter` one's
harder questions too); `paper` is there to be hard. Tasks were drawn by weights that change along the schedule
(`assets/recipe/mixture.py`).

**Recipe.** For the larger `python -m recipe.make --size 5m --minutes 36.9 --polish 9` gives A. `python -m recipe.polish A
--weights 5m-harder --minutes 16` makes B of it, and `... B --weights 5m-reasoning --minutes 9` C: short trainings on questions
that A never answered. Then `python -m recipe.blend C A --share 0.2 --temperature 1.58`. For the smaller `--size 1m --minutes
10.9 --polish 2`, the same with `--polish-weights 1m-matrix`, and their mean by `python -m recipe.blend A B --share 0.36`. With
`assets`, `swarm` and `backends` on the path. Loss on the completion (and on the solved examples of an arc_1d question), Muon
for matrices, AdamW for the rest, constant rate then a cosine; the polish is a second, shorter cosine with fresh optimizers
and other weights of the tasks. Seeds, versions and counts are in each model's `recipe.json`. It is written for CUDA as
well, but has only been run on a CPU so far. The schedule is laid on processor time, so weights are not bit for bit the
same on another machine. (Compiled, the polish gave gradients that are no numbers on one machine: the recipe then stops
and says so.)

**Limits.** Outside these nine tasks, and outside the exact wording of their generators, the output is noise. Training was
ended early on purpose: the same recipe run to its end brings the small model to 65 % on the `starter` presets, where
few groups of eight differ and reinforcement learning has nothing to do. Some tasks have few different questions
(base_conversion about 4,000, bf 2,000, fraction_simplification 6,000), so a training run may meet a held-out question
under another seed. Do not use them for anything but trying out training.

## How good they are

![pass@1 by task](accuracy.svg)

Held-out questions, temperature 1, at most 96 new tokens, strict 0/1 score (`sapo_swarm.scoring`). The interval is Wilson's
over all samples; the samples of a question are not independent, so the true one is somewhat wider. *Informative* is the
share of groups of 8 whose rewards are not all equal. Printed by `python -m recipe.evaluate <folder> --preset starter
--preset paper`, this page by `python -m recipe.card`. *After 150 rounds alone*: `python -m recipe.gain --model NAME`
runs the app's defaults and compares on paired held-out questions, one answer each at temperature 1; *kept among
well-formed* is the share of the gain that remains when only well-formed answers on both sides count; *greedy* is the same
comparison at temperature 0, where drawing more surely what was likeliest before gains nothing.
"""


def _recorded(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    return record


def _figures(folder: Path) -> dict[str, list[Result]]:
    """preset -> results of the nine tasks."""
    kept = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    return {preset: [Result(**row) for row in rows] for preset, rows in kept.items()}


def _spent(record: dict[str, Any], what: str) -> float:
    """Of the training and of all polishes after it."""
    later = [step["polish"]["done"][what] for step in record.get("afterwards", []) if "polish" in step]
    return float(record["done"][what]) + sum(later)


def _facts(folders: dict[str, Path]) -> str:
    records = [_recorded(f) for f in folders.values()]
    rows = {
        "parameters": [f"{r['parameters']:,}" for r in records],
        "file": [f"{(f / 'model.safetensors').stat().st_size / 1e6:.1f} MB" for f in folders.values()],
        "layers x width": [f"{r['shape']['layers']} x {r['shape']['hidden']}" for r in records],
        "training tokens": [f"{_spent(r, 'tokens') / 1e6:.1f} million" for r in records],
        "compute": [
            f"{_spent(r, 'seconds') / 60:.0f} minutes, {r['plan']['threads']} {r['machine']['device'].upper()} thread"
            for r in records
        ],
        "trained with": [f"torch {r['versions']['torch']}" for r in records],
    }
    return "".join(f"| {key} | {' | '.join(values)} |\n" for key, values in rows.items())


def chart(figures: dict[str, dict[str, list[Result]]]) -> str:
    """Horizontal bars of pass@1 with intervals, one colour a model, as SVG that reads on light and dark ground."""
    colours = dict(zip(figures, ("#2a78d6", "#eb6834"), strict=False))
    tasks = [r.dataset for r in next(iter(figures.values()))["starter"]]
    step, left, scale = 14 * len(figures) + 14, 170, 5.0
    height = 50 + step * len(tasks)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" font-family="sans-serif" font-size="12">',
        "<style>text{fill:#52514e}@media(prefers-color-scheme:dark){text{fill:#c3c2b7}}</style>",
    ]
    for number, (name, colour) in enumerate(colours.items()):
        x = left + number * 130
        parts.append(f'<rect x="{x}" y="8" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="18">{name}</text>')
    for share in range(0, 101, 20):
        x = left + share * scale
        parts.append(f'<line x1="{x}" x2="{x}" y1="30" y2="{height - 18}" stroke="#8884" stroke-width="1"/>')
        parts.append(f'<text x="{x}" y="{height - 4}" text-anchor="middle">{share} %</text>')
    for row, task in enumerate(tasks):
        y = 36 + row * step
        parts.append(f'<text x="{left - 8}" y="{y + step / 2 - 4}" text-anchor="end">{task}</text>')
        for number, (name, presets) in enumerate(figures.items()):
            result, top = presets["starter"][row], y + 14 * number
            middle, low, high = top + 5, left + 100 * result.low * scale, left + 100 * result.high * scale
            width = 100 * result.pass_at_1 * scale
            parts.append(f'<rect x="{left}" y="{top}" width="{width:.1f}" height="10" rx="2" fill="{colours[name]}"/>')
            parts.append(f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="#8b8a83" stroke-width="2"/>')
            parts.append(f'<text x="{high + 6:.1f}" y="{top + 9}">{result.pass_at_1:.1%}</text>')
    return "\n".join([*parts, "</svg>", ""])


def card(folders: dict[str, Path]) -> str:
    """The text of the card."""
    window = _recorded(next(iter(folders.values())))["held_out_window"]
    text = _HEAD.format(names=" | ".join(folders), rules="---|" * (len(folders) - 1) + "---")
    text += _facts(folders) + _BODY.replace("{window}", str(window))
    for name, folder in folders.items():
        if note := _recorded(folder).get("note"):
            text += f"\n**Note on {name}.** {note}\n"
        for preset, results in _figures(folder).items():
            text += f"\n### {name}, preset `{preset}` ({results[0].items} questions a task x 8)\n\n{table(results)}\n"
        text += _gains(name, folder)
    return text


def _gains(name: str, folder: Path) -> str:
    """What silo training adds, a row a seed; nothing where it has not been measured."""
    path = folder / "gains.json"
    if not path.is_file():
        return ""
    rows = json.loads(path.read_text(encoding="utf-8"))
    lines = [
        f"\n### {name}, after {rows[0]['rounds']} rounds alone\n",
        "| seed | before | after | change in points (95 %) | McNemar p | kept among well-formed | greedy | minutes |",
        "|---:|---:|---:|---|---:|---:|---|---:|",
    ]
    for r in rows:
        kept = "" if r["kept_share"] is None else f"{r['kept_share']:.0%}"
        g = r["greedy"]
        lines.append(
            f"| {r['seed']} | {r['before']:.1f}% | {r['after']:.1f}% | {_change(r['points'], r)} | {r['p']:.1g} | {kept} "
            f"| {g['before']:.1f}% to {g['after']:.1f}%: {_change(g['value'], g)} | {r['minutes']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def _change(points: float, interval: dict[str, Any]) -> str:
    return f"{points:+.2f} ({interval['low']:+.2f} to {interval['high']:+.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="only print the card")
    arguments = parser.parse_args()
    folders = {n: f for n, f in sapo_assets.models().items() if (f / "evaluation.json").is_file()}
    text = card(folders)
    print(text)
    for name, folder in folders.items():
        print(name, {preset: f"{mean(results).pass_at_1:.1%}" for preset, results in _figures(folder).items()})
    if not arguments.print:
        home = next(iter(folders.values())).parent
        (home / "README.md").write_text(text, encoding="utf-8")
        (home / "accuracy.svg").write_text(chart({n: _figures(f) for n, f in folders.items()}), encoding="utf-8")


if __name__ == "__main__":
    main()
