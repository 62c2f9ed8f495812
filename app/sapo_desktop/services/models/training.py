"""Before a node trains: which model, with which settings, and what differs from the last time."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.machine import engines
from sapo_desktop.services.models.shelf import changes, creating, history, keeping, mending, store
from sapo_desktop.services.models.shelf.store import Model
from sapo_swarm.config import RunConfig

if TYPE_CHECKING:
    from sapo_swarm.protocol.invite import Invite


@dataclass(frozen=True)
class TrainingSession:
    """One training session of a model. config: the settings that the model keeps; rounds: the goal of this session only, None
    where none was typed. model: None until begin_session() creates it."""

    name: str
    config: RunConfig
    rounds: int | None
    model: Model | None
    swarm: str = ""
    changed: tuple[str, ...] = ()

    @property
    def goal(self) -> int:
        """Total rounds of the model at which the session ends by itself; 0 = it runs until stopped.

        A goal that the model has already reached (its run.rounds are done) no longer counts: training continues.
        """
        if self.rounds is not None:
            return self.rounds
        done = history.practice_rounds(self.model) if self.model else 0
        return self.config.rounds if self.config.rounds > done else 0


def model_to_train(home: Home, name: str) -> Model | None:
    """The model of that name; without a name the one used last, None where there is no model yet. Raises UsageError,
    AppError."""
    return store.find_model(home, name) if name or store.taken_model_names(home) else None


def plan_session(model: Model | None, config: RunConfig, typed: Collection[str]) -> TrainingSession:
    """A session with the settings of the model (or, without one, those of new models) and what was typed over them.

    Raises UsageError when the settings would make this a different model, or its rounds are done already, and ModelNotFound
    when its base is missing.
    """
    rounds = config.rounds if "rounds" in typed else None
    if model is None:
        merged = msgspec.structs.replace(config, rounds=0) if rounds is not None else config
        return TrainingSession(store.FIRST, merged, rounds, None)
    if config.model == model.config.model:
        mending.require_base_folder(model)
    changes.refuse_other_identity(model, config, resolve_config(model))
    merged = changes.kept_identity(model, config)
    if rounds is not None:
        merged = msgspec.structs.replace(merged, rounds=model.config.rounds)
        done = history.practice_rounds(model)
        if 0 < rounds < done:
            raise UsageError(
                f"{model.name} has {done} rounds already, more than --rounds {rounds} asks for. It counts all rounds of "
                f"the model: --rounds {done + rounds} trains {rounds} more."
            )
    return TrainingSession(model.name, merged, rounds, model)


def resolve_config(model: Model) -> RunConfig:
    """The model's settings with what "auto" and 0 meant when its training began."""
    config, session = engines.stored_config(model.config, model.folder), history.last_session(model.folder)
    if session is None:
        return config
    overrides = {"method": session.method, "precision": session.precision}
    return msgspec.structs.replace(config, **{k: v for k, v in overrides.items() if getattr(config, k) == "auto"})


def begin_session(home: Home, session: TrainingSession, invite: Invite | None) -> TrainingSession:
    """Create a new model where necessary, keep its settings, and say what changed. Call while the node's lock is held.

    A device is stored once it has worked: see record_session_start(). Raises UsageError, ModelNotFound, AppError.
    """
    keeping.remove_abandoned(home, time.time())
    device = session.model.config.device if session.model else RunConfig().device
    config = msgspec.structs.replace(session.config, device=device)
    model = session.model or creating.create_model(home, session.name, config)
    place = f"at {invite.host}" if invite else ""
    swarm = invite.swarm if invite else ""
    changed = changes.describe_changes(model.record, session.config, swarm, place)
    if model.config != config:
        model = store.write_model_record(model.folder, store.with_config(model.record, config))
    return replace(session, model=model, swarm=swarm, changed=changed)


def record_session_start(session: TrainingSession) -> None:
    """Call when the engine is loaded and training begins: from now on these are the settings of the last training.

    Raises AppError.
    """
    assert session.model is not None
    record = store.read_model(session.model.folder).record
    store.write_model_record(
        session.model.folder,
        msgspec.structs.replace(
            record,
            config=msgspec.structs.replace(record.config, device=session.config.device),
            trained=session.config,
            swarm=session.swarm,
            last_trained=time.time(),
            tasks=changes.task_versions(session.config),
        ),
    )
