"""Question and answer text from the generators alone, with no item of the held-out evaluation in it."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.worked import worked
from sapo_swarm.scoring.verify import score_text
from sapo_swarm.tasks.catalogue import CATALOGUE, TRAIN_LIMIT, held_out, is_train
from sapo_swarm.tasks.questions import NoSuchQuestion, generate_entry
from sapo_swarm.types import TaskRef

HELD_OUT_WINDOW = 512
"""So many held-out items of each task and preset are kept out of the training text; evaluations use a prefix of it."""
PATIENCE = 2000
SALT = "sapo-starter-recipe-v1"
"""Part of every training seed, so that the recipe and a node do not walk the same seeds in the same order."""


@dataclass(frozen=True)
class Example:
    """One training pair. key: SHA-256 of the question (of the program alone for bf, whose two prompts differ in words)."""

    dataset: str
    preset: str
    prompt: str
    completion: str
    key: str


def content_key(dataset: str, entry: dict[str, Any]) -> str:
    """What must not be shared with the held-out items: the question, or what makes it the same question."""
    text = entry["metadata"]["bf_program"] if dataset == "bf" else entry["question"]
    return hashlib.sha256(f"{dataset}|{text}".encode()).hexdigest()


def held_out_keys(dataset: str, window: int = HELD_OUT_WINDOW) -> set[str]:
    """Keys of the first `window` held-out items of every preset of a task."""
    keys = set()
    for preset in CATALOGUE[dataset]:
        for index in range(window):
            try:
                _, entry = generate_entry(held_out(dataset, preset, index))
            except NoSuchQuestion:
                continue
            keys.add(content_key(dataset, entry))
    return keys


def training_refs(dataset: str, preset: str, start: int = 0) -> Iterator[TaskRef]:
    """Endless references from the train range, the same on every machine."""
    position = start
    while True:
        text = f"{SALT}|{dataset}|{preset}|{position}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % TRAIN_LIMIT
        yield TaskRef(dataset, preset, seed)
        position += 1


def examples(dataset: str, preset: str, count: int, excluded: set[str]) -> list[Example]:
    """Up to `count` distinct examples whose answer our strict scorer accepts.

    A small task runs dry: the search ends when PATIENCE references in a row brought nothing new.
    """
    found: list[Example] = []
    seen, fruitless = set(excluded), 0
    for ref in training_refs(dataset, preset):
        if len(found) == count or fruitless == PATIENCE:
            break
        fruitless += 1
        if not is_train(ref):
            raise AssertionError(f"{ref.label} is no training item.")
        try:
            scorer, entry = generate_entry(ref)
        except NoSuchQuestion:
            continue
        key = content_key(dataset, entry)
        if key in seen:
            continue
        completion = worked(dataset, entry)
        if score_text(completion, dataset, scorer, entry)[0] != 1.0:  # only tautologies follow from tautologies
            continue
        seen.add(key)
        fruitless = 0
        found.append(Example(dataset, preset, entry["question"], completion, key))
    return found


def _write_part(job: tuple[str, dict[str, int], Path]) -> tuple[str, int]:
    dataset, counts, path = job
    excluded = held_out_keys(dataset)
    rows = [e for preset, count in counts.items() for e in examples(dataset, preset, count, excluded)]
    if {row.key for row in rows} & excluded:
        raise AssertionError(f"{dataset}: a training item equals a held-out item.")
    random.Random(dataset).shuffle(rows)
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(vars(row), ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    part.replace(path)
    return dataset, len(rows)


def build(folder: Path, mixture: dict[str, dict[str, int]], processes: int) -> dict[str, int]:
    """Write one cached JSON-lines file a task; gives the number of rows of each. mixture: task -> preset -> rows."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes, jobs = {}, []
    for dataset, counts in mixture.items():
        version = json.dumps([dict(CATALOGUE[dataset][p]) for p in counts], default=list) + json.dumps(counts)
        path = folder / f"{dataset}-{hashlib.sha256(version.encode()).hexdigest()[:8]}.jsonl"
        if path.exists():
            sizes[dataset] = sum(1 for _ in path.open(encoding="utf-8"))
        else:
            jobs.append((dataset, counts, path))
        (folder / f"{dataset}.current").write_text(path.name, encoding="utf-8")
    with ProcessPoolExecutor(processes) as pool:
        sizes.update(pool.map(_write_part, jobs))
    return sizes


def load(folder: Path) -> Iterator[Example]:
    """All cached examples, task by task."""
    for pointer in sorted(folder.glob("*.current")):
        with (folder / pointer.read_text(encoding="utf-8")).open(encoding="utf-8") as lines:
            for line in lines:
                yield Example(**json.loads(line))
