"""A model.json that is damaged or missing is made anew of what the journal and the weights tell: `runs check --repair`."""

from __future__ import annotations

import contextlib
import json

import msgspec

from sapo_desktop import settings
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import history, names, store
from sapo_desktop.services.models.shelf.store import Model, Unreadable
from sapo_swarm.config import RunConfig
from sapo_swarm.events import RunStarted
from sapo_swarm.tasks import catalogue
from sapo_swarm.tasks.own.spec import BadTask

_PRECISIONS = ("float32", "bfloat16", "4bit")


def mend(home: Home, one: Unreadable) -> Model:
    """The model with a record again; what was damaged stays beside it as model.json.damaged. No node may work here.

    Base, engine, method, precision, LoRA rank, tasks, preset, algorithm, group size and seed are those of the last session, the
    rest is as in the settings of new models. Raises AppError where no session is told of, or a newer version wrote the record.
    """
    sessions = history.story(one.folder).sessions
    if not one.damaged:
        raise AppError(one.sentence)
    if not sessions:
        raise AppError(
            f"{one.folder / store.RECORD} cannot be made anew: {one.folder} holds no journal of its training. Restore the file "
            f"from a backup, or move the folder away and make a new model."
        )
    last, taken = sessions[-1], store.taken(home, one.folder)
    config = _config(settings.load(home.settings).run, last, _rank(one))
    name = names.suggested(store.told_name(one.folder) or last.name or one.name)
    fresh = store.record_of(names.free(name, taken), config, last.run_id, sessions[0].time)
    path = one.folder / store.RECORD
    with contextlib.suppress(FileNotFoundError):
        path.replace(path.with_name(f"{path.name}.damaged"))
    return store.write(one.folder, msgspec.structs.replace(fresh, trained=config, last_trained=last.time))


def _config(config: RunConfig, last: RunStarted, rank: int) -> RunConfig:
    precision = next((p for p in _PRECISIONS if last.precision.startswith(p)), "auto")
    told = msgspec.structs.replace(
        config,
        **{"model": last.base or config.model, "trainer": last.backend, "method": last.method, "precision": precision},
        **{"tasks": last.tasks, "algorithm": last.algorithm, "group_size": last.group_size, "seed": last.seed},
        **{"rounds": 0, "lora_rank": rank or config.lora_rank},
    )
    return msgspec.structs.replace(told, preset=_preset(told, last.held_out))


def _preset(config: RunConfig, held_out: str) -> str:
    """The one whose held-out questions these are; that of the settings where none is."""
    from sapo_swarm.evaluation import held_out_name  # numpy

    for preset in (config.preset, *sorted({p for task in config.tasks for p in catalogue.CATALOGUE.get(task, ())})):
        with contextlib.suppress(catalogue.UnknownTask, BadTask):
            if held_out_name(config.tasks, preset) == held_out:
                return preset
    return config.preset


def _rank(one: Unreadable) -> int:
    """Of the newest LoRA adapter; 0 where there is none."""
    for state in sorted((one.folder / "checkpoints").glob("round-*/engine/state.json"), reverse=True):
        with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
            return int(json.loads(state.read_bytes()).get("rank") or 0)
    return 0
