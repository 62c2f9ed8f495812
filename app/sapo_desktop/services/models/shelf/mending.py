"""Repairs: a model.json rebuilt from the journal and the weights, a base folder that has moved."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path, PurePath

import msgspec

from sapo_backends.errors import ModelNotFound
from sapo_desktop import settings
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home, quote_command
from sapo_desktop.services.models.shelf import history, store
from sapo_desktop.services.models.shelf.store import Model, UnreadableModel
from sapo_swarm.config import RunConfig
from sapo_swarm.events import RunStarted
from sapo_swarm.node.training_count import count_of
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.tasks import catalogue
from sapo_swarm.tasks.own.spec import BadTask

# A base in the person's own folder or file: it may be moved, renamed, or left on another machine.


def models_by_base_folder(home: Home) -> dict[str, list[str]]:
    """Folder, or GGUF file -> the names of the models that were made from it."""
    by_folder: dict[str, list[str]] = {}
    for model in store.all_models(home):
        if _is_folder(model):
            by_folder.setdefault(_shown(model), []).append(model.name)
    return by_folder


def missing_base_hint(model: Model) -> str:
    """What to do where the folder or file of the model's base no longer exists; "" where it does, or the base is neither."""
    if not _is_folder(model) or os.path.exists(os.path.expanduser(model.config.model)):
        return ""
    rounds = history.trained_count(model).rounds
    goal, why = (
        (
            ("--rounds", f"{rounds}"),
            f" (its {count_of(rounds, 'round')} {'is' if rounds == 1 else 'are'} done: nothing is trained)",
        )
        if rounds
        else ((), "")
    )
    place = "NEWFILE.gguf" if is_file_name(model.config.model) else "NEWFOLDER"
    cure = quote_command("sapo-desktop", "node", model.name, *goal, "--model", place)
    return f"{model.name} was made from {_shown(model)}, which is not there any more. Where is it now? {cure}{why}"


def require_base_folder(model: Model) -> None:
    """Raise ModelNotFound where that folder or file is missing."""
    if hint := missing_base_hint(model):
        raise ModelNotFound(hint)


def require_unused(home: Home, model: Model) -> None:
    """Raise UsageError where other models start from an export of this one, which would be deleted with it."""
    users = [other for other in store.all_models(home) if _starts_in(model.folder, other)]
    if not users:
        return
    names = ", ".join(sorted(other.name for other in users))
    verb = quote_command("sapo-desktop", "models", "delete", model.name, "--even-in-use")
    raise UsageError(
        f"{model.name} is in use: an export of it is the base of {names}. Delete {'those' if users[1:] else 'that'} first, "
        f"move {_shown(users[0])} elsewhere, or delete {model.name} all the same: {verb}"
    )


def is_file_name(base: str) -> bool:
    """Whether a base's path is that of a file, as far as the name tells once it is gone; Ollama's files are named by hash."""
    name = PurePath(base).name.lower()
    return name.endswith(".gguf") or name.startswith("sha256-")


def _starts_in(folder: Path, model: Model) -> bool:
    """Whether the model's base is below that folder."""
    base = os.path.expanduser(model.config.model)
    return _is_folder(model) and os.path.exists(base) and Path(base).resolve().is_relative_to(folder.resolve())


def _shown(model: Model) -> str:
    """The base's path, made safe to show: a model's folder may come from anywhere."""
    return safe_text(model.config.model, 4096, lines=False)


def _is_folder(model: Model) -> bool:
    return os.path.isabs(os.path.expanduser(model.config.model))


# A damaged or missing model.json is rebuilt from the journal and the weights: `runs check --repair`.

_PRECISIONS = ("float32", "bfloat16", "4bit")


def repair_record(home: Home, one: UnreadableModel) -> Model:
    """The model with a new record; the damaged one stays beside it as model.json.damaged. No node may work here.

    Base, engine, method, precision, LoRA rank, tasks, preset, algorithm, group size and seed are those of the last session,
    the rest is taken from the settings of new models. Raises AppError where no session is recorded, or a newer version wrote
    the record.
    """
    sessions = history.load_history(one.folder).sessions
    if not one.damaged:
        raise AppError(one.sentence)
    if not sessions:
        raise AppError(
            f"{one.folder / store.RECORD} cannot be made anew: {one.folder} holds no journal of its training. Restore the file "
            f"from a backup, or move the folder away and make a new model."
        )
    last, taken = sessions[-1], store.taken_model_names(home, one.folder)
    config = _config(settings.load_settings(home.settings).run, last, _rank(one))
    name = store.suggest_model_name(store.told_name(one.folder) or last.name or one.name)
    fresh = store.record_of(store.unused_name(name, taken), config, last.run_id, sessions[0].time)
    path = one.folder / store.RECORD
    with contextlib.suppress(FileNotFoundError):
        path.replace(path.with_name(f"{path.name}.damaged"))
    return store.write_model_record(one.folder, msgspec.structs.replace(fresh, trained=config, last_trained=last.time))


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
    """The preset that these held-out questions belong to; the one in the settings where none matches."""
    from sapo_swarm.evaluation import held_out_name  # numpy

    for preset in (config.preset, *sorted({p for task in config.tasks for p in catalogue.CATALOGUE.get(task, ())})):
        with contextlib.suppress(catalogue.UnknownTask, BadTask):
            if held_out_name(config.tasks, preset) == held_out:
                return preset
    return config.preset


def _rank(one: UnreadableModel) -> int:
    """The rank of the newest LoRA adapter; 0 where there is none."""
    for state in sorted((one.folder / "checkpoints").glob("round-*/engine/state.json"), reverse=True):
        with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
            return int(json.loads(state.read_bytes()).get("rank") or 0)
    return 0
