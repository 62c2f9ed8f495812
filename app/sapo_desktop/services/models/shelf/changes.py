"""What may change from one session of a model to the next, and the sentences that say what did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from sapo_desktop import settings
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import quote_command
from sapo_desktop.services.bases import fetching
from sapo_desktop.services.models.shelf import mending, store
from sapo_desktop.services.models.shelf.store import Model, ModelRecord
from sapo_swarm.config import RunConfig
from sapo_swarm.events import RunStarted
from sapo_swarm.tasks import catalogue
from sapo_swarm.tasks.own import library
from sapo_swarm.types import UNREADABLE

IDENTITY = {
    "model": "base",
    "method": "method",
    "precision": "precision",
    "lora_rank": "LoRA rank",
    "trainer": "engine",
}
"""Settings that say what the weights are: a model keeps them for ever."""
_QUIET = frozenset(
    {
        *("threads", "device", "rounds", "tripwire", "eval_every"),
        *("checkpoint_minutes", "checkpoint_every", "keep_checkpoints", "keep_groups", "disk_budget_gb"),
    }
)
"""Settings that change nothing that is learned: no mark in the history."""
_ONE_FORM = frozenset({"torch", "mlx"})
"""Trainers that write the same checkpoints: one goes on with the other's, Adam's moments too."""
_OPEN: dict[str, object] = {"method": "auto", "precision": "auto", "trainer": "auto"}
"""Values that leave the choice to the engine: whatever it was, it fits."""


def refuse_other_identity(model: Model, wanted: RunConfig, resolved: RunConfig) -> None:
    """Raise UsageError where the wanted settings would make another model of this one, with the command that makes one,
    and ModelNotFound where the wanted base does not exist.

    resolved: the model's settings with what "auto" meant when its training began.
    """
    for field, word in IDENTITY.items():
        new, now, meant = (getattr(config, field) for config in (wanted, model.config, resolved))
        if new in (now, meant) or new == _OPEN.get(field) or _same(model, field, new, meant):
            continue
        if field == "model":
            fetching.require_usable_base(
                wanted
            )  # a mistyped base is named as one before anything is said about weights
        other = quote_command(
            "sapo-desktop", "new", store.suggest_model_name(f"{Path(wanted.model).name}-2"), "--base", wanted.model
        )
        flag = "" if field == "model" else f" --{field.replace('_', '-')} {new}"
        why = "which a model keeps" if field == "method" else "because its weights would not fit"
        raise UsageError(
            f"{model.name} was made with {word} {meant}; that cannot become {new}, {why}. "
            f"Make another model: {other}{flag}"
        )


def _same(model: Model, field: str, new: str, now: str) -> bool:
    """Another word for the same: the base was moved or copied (or is gone, and nothing was trained on it yet), another engine
    generates beside the same trainer, or the trainer goes on with what the other wrote."""
    if field == "trainer":
        trainers = {name.rpartition("+")[2] for name in (new, now)}
        return len(trainers) == 1 or trainers <= _ONE_FORM
    if field != "model" or not (found := _content(new)):
        return False
    if not model.trained and mending.missing_base_hint(model):
        return True
    return found == (_trained_on(model) or _content(now))


def _content(base: str) -> str:
    """What a base on this disk holds; "" where there is none."""
    from sapo_backends.checkpoints import locate
    from sapo_backends.errors import ModelNotFound

    try:
        return locate.content_id(locate.resolve_local_model(base))
    except (ModelNotFound, OSError):
        return ""


def _trained_on(model: Model) -> str:
    """The content of the base, as the newest checkpoint tells it; "" where it does not."""
    try:
        state = msgspec.json.decode((model.checkpoints[-1] / "engine" / "state.json").read_bytes())
    except (OSError, IndexError, *UNREADABLE):
        return ""
    return str(state.get("base", "")) if isinstance(state, dict) else ""


def kept_identity(model: Model, config: RunConfig) -> RunConfig:
    """The config with the model's own identity; a base that was moved is known by its new place from now on, and so is
    another trainer that goes on with the same. Call after refuse_other_identity()."""
    own = {field: getattr(model.config, field) for field in IDENTITY}
    for field in ("model", "trainer"):
        wanted = getattr(config, field)
        if wanted != _OPEN.get(field):
            own[field] = wanted
    return msgspec.structs.replace(config, **own)


def task_versions(config: RunConfig) -> dict[str, str]:
    """Name -> digest of the person's own tasks among the config's. Raises BadTask."""
    return {name: library.load_task(name).digest for name in config.tasks if catalogue.is_own(name)}


def describe_changes(record: ModelRecord, now: RunConfig, swarm: str, swarm_name: str = "") -> tuple[str, ...]:
    """What is different from the last session, one sentence a change; empty for a model that was not trained yet.

    swarm: id of the swarm of this session, "" = alone.
    """
    if record.trained is None:
        return ()
    said = []
    if swarm and swarm != record.swarm:
        said.append(f"joined the swarm {swarm_name or swarm[:8]}")
    elif record.swarm and not swarm:
        said.append("left the swarm")
    edited = [name for name, digest in task_versions(now).items() if record.tasks.get(name, digest) != digest]
    return (*said, *(f"task {name} was edited" for name in edited), *setting_changes(record.trained, now))


def stale_tasks(record: ModelRecord, sessions: Sequence[RunStarted]) -> tuple[str, ...]:
    """Sentences on own tasks that are not any more what the model was trained on: a figure on them may flatter it.

    sessions: the model's history. Raises BadTask.
    """
    now = {name: digest for name, digest in task_versions(record.config).items() if name in record.tasks}
    said = []
    for name, digest in now.items():
        between = any(f"task {name} was edited" in session.changed for session in sessions)
        if digest != record.tasks[name]:
            said.append(
                f"Task {name} was edited since {record.name} was trained on it: rows that are held out now may have been "
                "trained on, and figures of before belong to another version."
            )
        elif between:
            said.append(
                f"Task {name} was edited while {record.name} was trained: rows that are held out now may have been trained on "
                "before the change. A new model is clean."
            )
    return tuple(said)


def setting_changes(before: RunConfig, after: RunConfig) -> tuple[str, ...]:
    """Such as "temperature 1.0 -> 0.8": the settings of two sessions that differ and have a say in what is learned."""
    said = []
    for name in RunConfig.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if old == new or name in _QUIET or name in IDENTITY:
            continue
        word = name.replace("_", " ")
        said.append(
            _lists(word, old, new)
            if isinstance(new, tuple)
            else f"{word} {settings.format_value(old)} -> {settings.format_value(new)}"
        )
    return tuple(said)


def _lists(word: str, old: tuple[str, ...], new: tuple[str, ...]) -> str:
    """What came and what went: the whole of both lists would be too long to read."""
    came = [f"+{item}" for item in new if item not in old]
    went = [f"-{item}" for item in old if item not in new]
    return f"{word} {' '.join((*came, *went)) or 'in another order'}"
