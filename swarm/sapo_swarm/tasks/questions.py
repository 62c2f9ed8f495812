"""From a TaskRef to its question. Imports reasoning_gym: called in the scorer worker and the starter's recipe only."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from sapo_swarm.tasks.catalogue import HELD_OUT_SEED, is_train, settings
from sapo_swarm.tasks.datasets import DATASETS
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.errors import BadTask
from sapo_swarm.tasks.own.folder import OwnTask, generator
from sapo_swarm.types import GENERATOR_VERSION, TaskRef

READS_DATA = frozenset({"figlet_font", "group_anagrams", "spell_backward"})
"""Datasets that read up to 10 MB when they are made: one object a preset serves every seed (equality is tested)."""
_shared: dict[tuple[str, str], Any] = {}


class NoSuchQuestion(ValueError):
    """These coordinates regenerate nothing here (another generator version, or the generator itself raises)."""


def generate_entry(ref: TaskRef) -> tuple[Any, dict[str, Any]]:
    """The dataset object and the entry (question, answer, metadata) of a reference.

    Raises UnknownTask, NoSuchQuestion. The entry is never taken from anybody else.
    """
    if library.is_own(ref):
        return _own_entry(ref)
    if ref.generator != GENERATOR_VERSION:
        raise NoSuchQuestion(f"{ref.label} was made by {ref.generator}; this node has {GENERATOR_VERSION}.")
    config = dict(settings(ref.dataset, ref.preset))
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # bf prints dots while it generates
            dataset = _dataset(ref, config)
            entry = dataset[ref.index]
    except Exception as error:
        raise NoSuchQuestion(f"{ref.label} does not regenerate: {type(error).__name__}: {error}") from error
    if entry["answer"] == "":  # base_conversion writes 0 as no digits at all: nobody can answer that
        raise NoSuchQuestion(f"{ref.label} has an empty true answer.")
    return dataset, entry


def prepare(ref: TaskRef) -> OwnTask | None:
    """The task of a reference, where it is one of the person's: reading many rows may take longer than an answer may."""
    if library.is_own(ref):
        with contextlib.suppress(BadTask, KeyError):  # told of when the question is asked for
            return library.find(ref.dataset)
    return None


def _own_entry(ref: TaskRef) -> tuple[Any, dict[str, Any]]:
    """The task and the row: held-out rows by their index, training rows by the seed; one never reaches the other's."""
    try:
        task = library.find(ref.dataset)
    except (BadTask, KeyError) as error:
        raise NoSuchQuestion(
            f"There is no task {ref.dataset!r} here." if isinstance(error, KeyError) else str(error)
        ) from error
    held_out = ref.seed == HELD_OUT_SEED
    if ref.generator != task.generator and (held_out or ref.generator != generator(task.train_digest)):
        raise NoSuchQuestion(f"Task {ref.dataset!r} was changed since. Start the run anew to use what it is now.")
    if not held_out and (ref.index or not is_train(ref)):
        raise NoSuchQuestion(f"{ref.label} is neither a training row nor a held-out one.")
    if held_out and ref.index >= len(task.held_out):
        raise NoSuchQuestion(f"Task {ref.dataset!r} has {len(task.held_out)} held-out rows.")
    row = task.held_out[ref.index] if held_out else _train_row(task, ref)
    return task, {"question": task.question(row), "answer": row.get(task.spec.answer, ""), "row": row}


def _train_row(task: OwnTask, ref: TaskRef) -> dict[str, str]:
    """A row of the reference's level of difficulty, of all rows where it names none."""
    if ref.preset == library.PRESET:
        return task.train[ref.seed % len(task.train)]
    places = task.levels.get(ref.preset)
    if places is None:
        raise NoSuchQuestion(f"Task {ref.dataset!r} has no difficulty {ref.preset!r}.")
    return task.train[places[ref.seed % len(places)]]


def _dataset(ref: TaskRef, config: dict[str, object]) -> Any:
    dataset_class, config_class = DATASETS[ref.dataset]
    if ref.dataset not in READS_DATA:
        return dataset_class(config_class(seed=ref.seed, size=ref.index + 1, **config))
    key = (ref.dataset, ref.preset)
    if key not in _shared:
        _shared[key] = dataset_class(config_class(seed=0, size=1, **config))
    dataset = _shared[key]
    dataset.seed, dataset.size = ref.seed, ref.index + 1  # items are Random(seed + index)
    return dataset
