"""From a TaskRef to its question.

Imports reasoning_gym: called in the scorer worker and the starter's recipe only.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from sapo_swarm.tasks.catalogue import HELD_OUT_SEED, is_train, preset_settings
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import OwnTask, generator_id
from sapo_swarm.tasks.own.spec import BadTask
from sapo_swarm.types import GENERATOR_VERSION, TaskRef

# reasoning_gym's datasets, imported without matplotlib, and without pycosat if that is not installed.
#
# cellpylib, which game_of_life steps with, imports matplotlib for plots that nobody uses here: 30 of the 112 MB of a
# scorer worker, and a third of its start (`python -X importtime -c 'import reasoning_gym'`). pycosat, which only
# zebra_puzzles needs, has to be compiled on installation, and not every machine has a compiler
# (packaging/no_compiler.py).

_UNUSED = (
    "matplotlib",
    "matplotlib.pyplot",
    "matplotlib.animation",
    "matplotlib.collections",
    "mpl_toolkits",
    "mpl_toolkits.mplot3d",
)
"""What cellpylib imports, parents first."""


class _NotInstalled(ModuleType):
    """Stands in for a missing pycosat: says so when it is used."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ModuleNotFoundError(
            "pycosat is not installed here. With a C compiler: pip install --force-reinstall pycosat==0.6.6"
        )


@contextmanager
def _empty(names: tuple[str, ...]) -> Iterator[None]:
    """Empty modules of these names, for imports inside the block. Loaded modules stay."""
    added: list[str] = []
    for name in names:
        if name not in sys.modules:
            parent, _, child = name.rpartition(".")
            sys.modules[name] = module = ModuleType(name)
            setattr(module, "Axes3D", None)  # noqa: B010 - imported by name
            if parent in added:
                setattr(sys.modules[parent], child, module)
            added.append(name)
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]


if find_spec("pycosat") is None:
    sys.modules["pycosat"] = _NotInstalled("pycosat")
with nullcontext() if "matplotlib" in sys.modules else _empty(_UNUSED):
    from reasoning_gym.factory import DATASETS


# From a TaskRef to its question. Imports reasoning_gym: called in the scorer worker and the starter's recipe only.

READS_DATA = frozenset({"figlet_font", "group_anagrams", "spell_backward"})
"""Datasets that read up to 10 MB when they are created: one object per preset serves every seed (equality is tested)."""
_shared: dict[tuple[str, str], Any] = {}


class NoSuchQuestion(ValueError):
    """These coordinates regenerate nothing here (another generator version, or the generator itself raises)."""


def generate_entry(ref: TaskRef) -> tuple[Any, dict[str, Any]]:
    """The dataset object and the entry (question, answer, metadata) of a reference.

    Raises UnknownTask, NoSuchQuestion. The entry is never taken from anybody else.
    """
    if library.is_own_ref(ref):
        return _own_entry(ref)
    if ref.generator != GENERATOR_VERSION:
        raise NoSuchQuestion(f"{ref.label} was made by {ref.generator}; this node has {GENERATOR_VERSION}.")
    config = dict(preset_settings(ref.dataset, ref.preset))
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # bf prints dots while it generates
            dataset = _dataset(ref, config)
            entry = dataset[ref.index]
    except Exception as error:
        raise NoSuchQuestion(f"{ref.label} does not regenerate: {type(error).__name__}: {error}") from error
    if entry["answer"] == "":  # base_conversion writes 0 with no digits: nobody can answer that
        raise NoSuchQuestion(f"{ref.label} has an empty true answer.")
    return dataset, entry


def preload_task(ref: TaskRef) -> OwnTask | None:
    """The task of a reference, if it is a custom one: reading many rows may take longer than an answer may."""
    if library.is_own_ref(ref):
        with contextlib.suppress(BadTask, KeyError):  # reported when the question is asked for
            return library.load_task(ref.dataset)
    return None


def _own_entry(ref: TaskRef) -> tuple[Any, dict[str, Any]]:
    """The task and the row: held-out rows by index, training rows by seed; neither reaches the other's rows."""
    try:
        task = library.load_task(ref.dataset)
    except (BadTask, KeyError) as error:
        raise NoSuchQuestion(
            f"There is no task {ref.dataset!r} here." if isinstance(error, KeyError) else str(error)
        ) from error
    held_out = ref.seed == HELD_OUT_SEED
    if ref.generator != task.generator and (held_out or ref.generator != generator_id(task.train_digest)):
        raise NoSuchQuestion(f"Task {ref.dataset!r} was changed since. Start the run anew to use what it is now.")
    if not held_out and (ref.index or not is_train(ref)):
        raise NoSuchQuestion(f"{ref.label} is neither a training row nor a held-out one.")
    if held_out and ref.index >= len(task.held_out):
        raise NoSuchQuestion(f"Task {ref.dataset!r} has {len(task.held_out)} held-out rows.")
    row = task.held_out[ref.index] if held_out else _train_row(task, ref)
    return task, {"question": task.question(row), "answer": row.get(task.spec.answer, ""), "row": row}


def _train_row(task: OwnTask, ref: TaskRef) -> dict[str, str]:
    """A row of the reference's level of difficulty, of all rows if it names none."""
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
