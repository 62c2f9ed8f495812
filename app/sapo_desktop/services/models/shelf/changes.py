"""What may change from one session of a model to the next, and the sentences that describe changes."""

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
"""Settings that determine what the weights are: a model keeps them for ever."""
_QUIET = frozenset(
    {
        *("threads", "device", "rounds", "tripwire", "eval_every"),
        *("checkpoint_minutes", "checkpoint_every", "keep_checkpoints", "keep_groups", "disk_budget_gb"),
    }
)
"""Settings that do not affect what is learned: no entry in the history."""
_ONE_FORM = frozenset({"torch", "mlx"})
"""Trainers with the same checkpoint format: one continues from the other's, Adam's moments too."""
_OPEN: dict[str, object] = {"method": "auto", "precision": "auto", "trainer": "auto"}
"""Values that leave the choice to the engine: whatever it was, it fits."""


def refuse_other_identity(model: Model, wanted: RunConfig, resolved: RunConfig) -> None:
    """Raise UsageError where the wanted settings would make this a different model, with the command that creates one, and
    ModelNotFound where the wanted base does not exist.

    resolved: the model's settings with what "auto" meant when its training began.
    """
    for field, word in IDENTITY.items():
        new, now, in_use = (getattr(config, field) for config in (wanted, model.config, resolved))
        if new in (now, in_use) or new == _OPEN.get(field) or _same(model, field, new, in_use):
            continue
        if field == "model":
            fetching.require_usable_base(wanted)  # a mistyped base is reported before anything about weights
        other = quote_command(
            "sapo-desktop", "new", store.suggest_model_name(f"{Path(wanted.model).name}-2"), "--base", wanted.model
        )
        flag = "" if field == "model" else f" --{field.replace('_', '-')} {new}"
        why = "which a model keeps" if field == "method" else "because its weights would not fit"
        raise UsageError(
            f"{model.name} was made with {word} {in_use}; that cannot become {new}, {why}. "
            f"Make another model: {other}{flag}"
        )


def _same(model: Model, field: str, new: str, now: str) -> bool:
    """Whether a different value means the same: the base was moved or copied (or is gone, and nothing was trained on it yet),
    another engine generates for the same trainer, or the trainer continues from the other one's checkpoints."""
    if field == "trainer":
        trainers = {name.rpartition("+")[2] for name in (new, now)}
        return len(trainers) == 1 or trainers <= _ONE_FORM
    if field != "model" or not (content := _content(new)):
        return False
    if not model.trained and mending.missing_base_hint(model):
        return True
    return content == (_trained_on(model) or _content(now))


def _content(base: str) -> str:
    """A fingerprint of a base on this disk; "" where there is none."""
    from sapo_backends.checkpoints import locate
    from sapo_backends.errors import ModelNotFound

    try:
        return locate.content_id(locate.resolve_local_model(base))
    except (ModelNotFound, OSError):
        return ""


def _trained_on(model: Model) -> str:
    """The fingerprint of the base, as recorded in the newest checkpoint; "" where it is not recorded."""
    try:
        state = msgspec.json.decode((model.checkpoints[-1] / "engine" / "state.json").read_bytes())
    except (OSError, IndexError, *UNREADABLE):
        return ""
    return str(state.get("base", "")) if isinstance(state, dict) else ""


def task_versions(config: RunConfig) -> dict[str, str]:
    """Name -> digest of the custom tasks in the config. Raises BadTask."""
    return {name: library.load_task(name).digest for name in config.tasks if catalogue.is_own(name)}


def describe_changes(record: ModelRecord, now: RunConfig, swarm: str, swarm_name: str = "") -> tuple[str, ...]:
    """What differs from the last session, one sentence per change; empty for a model that was not trained yet.

    swarm: id of the swarm of this session, "" = alone.
    """
    if record.trained is None:
        return ()
    sentences = []
    if swarm and swarm != record.swarm:
        sentences.append(f"joined the swarm {swarm_name or swarm[:8]}")
    elif record.swarm and not swarm:
        sentences.append("left the swarm")
    edited = [name for name, digest in task_versions(now).items() if record.tasks.get(name, digest) != digest]
    return (*sentences, *(f"task {name} was edited" for name in edited), *setting_changes(record.trained, now))


def stale_tasks(record: ModelRecord, sessions: Sequence[RunStarted]) -> tuple[str, ...]:
    """Sentences about custom tasks that are no longer what the model was trained on: results on them may flatter it.

    sessions: the model's history. Raises BadTask.
    """
    now = {name: digest for name, digest in task_versions(record.config).items() if name in record.tasks}
    sentences = []
    for name, digest in now.items():
        between = any(f"task {name} was edited" in session.changed for session in sessions)
        if digest != record.tasks[name]:
            sentences.append(
                f"Task {name} was edited since {record.name} was trained on it: rows that are held out now may have been "
                "trained on, and figures of before belong to another version."
            )
        elif between:
            sentences.append(
                f"Task {name} was edited while {record.name} was trained: rows that are held out now may have been trained on "
                "before the change. A new model is clean."
            )
    return tuple(sentences)


def setting_changes(before: RunConfig, after: RunConfig) -> tuple[str, ...]:
    """Such as "temperature 1.0 -> 0.8": the settings that differ between two sessions and affect what is learned."""
    sentences = []
    for name in RunConfig.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if old == new or name in _QUIET or name in IDENTITY:
            continue
        label = name.replace("_", " ")
        sentences.append(
            _lists(label, old, new)
            if isinstance(new, tuple)
            else f"{label} {settings.format_value(old)} -> {settings.format_value(new)}"
        )
    return tuple(sentences)


def _lists(word: str, old: tuple[str, ...], new: tuple[str, ...]) -> str:
    """What was added and what was removed: both lists in full would be too long to read."""
    added = [f"+{item}" for item in new if item not in old]
    went = [f"-{item}" for item in old if item not in new]
    return f"{word} {' '.join((*added, *went)) or 'in another order'}"
