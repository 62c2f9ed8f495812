"""How good a starter is: the table of the model card. `python -m recipe.evaluate <model folder> --preset starter`."""

from __future__ import annotations

import argparse
import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recipe.worked import DATASETS
from sapo_backends.base import Completion, Engine, LoadRequest, Sampling
from sapo_backends.registry import get_backend
from sapo_swarm.evaluation import wilson_interval
from sapo_swarm.scoring.prompts import build_messages, extract_answer
from sapo_swarm.scoring.verify import score_text
from sapo_swarm.tasks.catalogue import held_out
from sapo_swarm.tasks.questions import NoSuchQuestion, generate_entry

BATCH = 64
"""Questions answered together."""


@dataclass(frozen=True)
class Result:
    """One task, a row of evaluation.json. low, high: Wilson 95 % of pass@1 over samples. informative: the share of
    groups with non-zero advantages."""

    dataset: str
    pass_at_1: float
    low: float
    high: float
    informative: float
    well_formed: float
    truncated: float
    tokens: float
    items: int


def _items(dataset: str, preset: str, count: int) -> list[tuple[Any, dict[str, Any]]]:
    found: list[tuple[Any, dict[str, Any]]] = []
    index = 0
    while len(found) < count:
        with contextlib.suppress(NoSuchQuestion):
            found.append(generate_entry(held_out(dataset, preset, index)))
        index += 1
    return found


def _result(dataset: str, groups: list[list[tuple[Completion, str]]], rewards: list[list[bool]]) -> Result:
    samples = [s for group in groups for s in group]
    wins = sum(map(sum, rewards))
    low, high = wilson_interval(wins, len(samples))
    return Result(
        dataset,
        wins / len(samples),
        low,
        high,
        sum(len(set(r)) > 1 for r in rewards) / len(rewards),
        sum(extract_answer(text) is not None and c.finish == "stop" for c, text in samples) / len(samples),
        sum(c.finish != "stop" for c, _ in samples) / len(samples),
        sum(len(c.tokens) for c, _ in samples) / len(samples),
        len(groups),
    )


def evaluate(
    engine: Engine,
    preset: str,
    items: int,
    group: int = 8,
    room: int = 96,
    temperature: float = 1.0,
    show: int = 0,
) -> list[Result]:
    """Every task on its first `items` held-out questions, `group` samples each."""
    results = []
    for dataset in DATASETS:
        questions = _items(dataset, preset, items)
        groups: list[list[tuple[Completion, str]]] = []
        for start in range(0, items, BATCH):
            prompts = [
                engine.tokenizer.encode_chat(build_messages(e["question"])) for _, e in questions[start : start + BATCH]
            ]
            drawn = engine.generate(prompts, group, Sampling(temperature, 1.0, room), seed=start)
            groups += [[(c, engine.tokenizer.decode(c.tokens)) for c in completions] for completions in drawn]
        rewards = [
            [score_text(text, dataset, scorer, entry)[0] == 1.0 for _, text in completions]
            for (scorer, entry), completions in zip(questions, groups, strict=True)
        ]
        results.append(_result(dataset, groups, rewards))
        for completions, right, (_, entry) in list(zip(groups, rewards, questions, strict=True))[:show]:
            print(dataset, repr(entry["question"][-60:]), repr(entry["answer"]), repr(completions[0][1]), right[0])
    return results


def mean(results: list[Result]) -> Result:
    """The unweighted mean over tasks."""
    keys = ("pass_at_1", "low", "high", "informative", "well_formed", "truncated", "tokens")
    values = {k: sum(getattr(r, k) for r in results) / len(results) for k in keys}
    return Result(dataset="mean", items=sum(r.items for r in results), **values)


def table(results: list[Result]) -> str:
    """A Markdown table, in percent."""
    lines = [
        "| task | pass@1 (T=1) | 95 % | informative of 8 | well-formed | truncated | tokens |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for r in [*results, mean(results)]:
        interval = f"{r.low:.1%} – {r.high:.1%}" if r.dataset != "mean" else ""
        lines.append(
            f"| {r.dataset} | {r.pass_at_1:.1%} | {interval} | {r.informative:.0%} | {r.well_formed:.1%} "
            f"| {r.truncated:.1%} | {r.tokens:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--preset", action="append", choices=["starter", "paper", "hard"])
    parser.add_argument("--items", type=int, default=400)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--room", type=int, default=96, help="new tokens")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="print so many completions a task")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    request = LoadRequest(str(arguments.model), method="none", precision="float32", threads=arguments.threads)
    engine = get_backend("torch")().load(request)
    kept = {}
    for preset in arguments.preset or ["starter"]:
        results = evaluate(
            engine,
            preset,
            arguments.items,
            arguments.group,
            arguments.room,
            arguments.temperature,
            arguments.show,
        )
        print(f"\npreset {preset}, {arguments.items} held-out items a task x {arguments.group}\n\n{table(results)}")
        kept[preset] = [asdict(r) for r in results]
    if arguments.json:
        arguments.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
