"""Make a starter model from nothing: text, tokenizer, training, files. `python -m recipe.make --size 1m --minutes 30`."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch
from tokenizers import Tokenizer

from recipe import data, model, tokenizer, train
from recipe.mixture import MIXTURE, POLISH, WEIGHTS
from sapo_swarm.tasks.catalogue import CATALOGUE

NAMES = {"1m": "starter-1m", "5m": "starter"}


def _tokenizer(folder: Path, examples: dict[str, list[data.Example]]) -> Tokenizer:
    """The cached tokenizer, or one trained on a slice of every task."""
    path = folder / "tokenizer.json"
    if not path.exists():
        texts = []
        for rows in examples.values():
            for row in rows[:3000]:
                texts += [row.prompt, *[row.completion] * 6]  # what is generated counts more
        tokenizer.save(tokenizer.train(texts), folder)
    return Tokenizer.from_file(str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=list(model.SHAPES), default="1m")
    parser.add_argument("--minutes", type=float, default=30.0, help="training time, see Plan")
    parser.add_argument("--polish", type=float, default=0.0, help="minutes of a second schedule, see Plan")
    parser.add_argument("--polish-weights", choices=list(POLISH), help="of mixture.POLISH; by default the size's")
    parser.add_argument("--work", type=Path, default=Path("recipe-work"), help="caches, checkpoints, log")
    parser.add_argument("--output", type=Path, help="model folder; by default <work>/<name>")
    parser.add_argument("--tokenizer", type=Path, help="a folder with a tokenizer to keep")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="torch.compile; needs a C++ compiler")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    name = NAMES[arguments.size]
    polish = POLISH[arguments.polish_weights or arguments.size]
    run_folder = arguments.work / f"run-{arguments.size}"
    run_folder.mkdir(parents=True, exist_ok=True)
    output = arguments.output or arguments.work / name

    def say(line: str) -> None:
        print(line, flush=True)
        with (run_folder / "log.txt").open("a", encoding="utf-8") as log:
            log.write(line + "\n")

    sizes = data.build(arguments.work / "data", MIXTURE, arguments.processes)
    say(f"examples {sizes}")
    grouped: dict[str, list[data.Example]] = {}
    for example in data.load(arguments.work / "data"):
        grouped.setdefault(example.dataset, []).append(example)
    words = _tokenizer(arguments.tokenizer or arguments.work / "tokenizer", grouped)
    rows = {dataset: train.encode(examples, words) for dataset, examples in grouped.items()}
    plan = train.Plan(
        minutes=arguments.minutes,
        polish=arguments.polish,
        seed=arguments.seed,
        threads=arguments.threads,
        compiled=arguments.compiled,
    )
    net = model.Qwen2(model.SHAPES[arguments.size])
    net.initialise(arguments.seed)
    say(f"{name}: {sum(p.numel() for p in net.parameters()):,} parameters")
    done = train.run(net, rows, WEIGHTS[arguments.size], polish, words, plan, run_folder, say)
    model.save(net, output, tokenizer.token_id(words, tokenizer.END), tokenizer.token_id(words, tokenizer.STOP))
    tokenizer.save(words, output)
    record = {
        "name": name,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "parameters": sum(p.numel() for p in net.parameters()),
        "shape": asdict(net.shape),
        "plan": asdict(plan),
        "done": done,
        "examples": sizes,
        "mixture": MIXTURE,
        "settings": {d: {p: dict(CATALOGUE[d][p]) for p in presets} for d, presets in MIXTURE.items()},
        "weights": WEIGHTS[arguments.size],
        "polish": polish if plan.polish else [],
        "held_out_window": data.HELD_OUT_WINDOW,
        "machine": {"processor": platform.machine(), "device": "cuda" if torch.cuda.is_available() else "cpu"},
        "versions": {p: importlib.metadata.version(p) for p in ("torch", "tokenizers", "reasoning-gym", "safetensors")},
    }
    (output / "recipe.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    say(f"wrote {name} after {done['step']:.0f} steps, {done['tokens']:.0f} tokens")


if __name__ == "__main__":
    main()
