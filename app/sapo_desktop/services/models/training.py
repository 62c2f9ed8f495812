"""Before a node trains: which model, with which settings, and what differs from the last time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.machine import engines
from sapo_desktop.services.models.shelf import changes, history, keeping, mending, store
from sapo_desktop.services.models.shelf.store import Model
from sapo_desktop.settings import flags
from sapo_swarm.config import RunConfig
from sapo_swarm.node.training_count import count_of
from sapo_swarm.resolve_run import Membership, Origin, RunFacts, resolve_run_config

if TYPE_CHECKING:
    from sapo_swarm.protocol.invite import Invite


@dataclass(frozen=True)
class TrainingSession:
    """One training session of a model. config: the settings that the model keeps, without a typed --rounds, which is the goal
    of this session only. model: None until begin_session() creates it. settings: of new models; typed: over them, by name."""

    name: str
    config: RunConfig
    model: Model | None
    settings: RunConfig
    typed: Mapping[str, object]
    facts: RunFacts
    swarm: str = ""
    changed: tuple[str, ...] = ()

    def resolve(self, membership: Membership, parameters: int | None = None) -> tuple[RunConfig, Mapping[str, Origin]]:
        """The settings of this session's run alone or in a swarm, and where each comes from. Raises BadTask."""
        facts = msgspec.structs.replace(self.facts, parameters=parameters)
        return resolve_run_config(
            self.settings, self.model.config if self.model else None, self.typed, membership, facts
        )


def model_to_train(home: Home, name: str) -> Model | None:
    """The model of that name; without a name the one used last, None where there is no model yet. Raises UsageError,
    AppError."""
    return store.find_model(home, name) if name or store.taken_model_names(home) else None


def plan_session(
    model: Model | None,
    settings: RunConfig,
    typed: Mapping[str, object],
    look: flags.Look = flags.fetch_nothing,
) -> TrainingSession:
    """A session with the settings of the model (or, without one, those of new models) and what was typed over them.

    look: see flags.answer_facts. Raises UsageError when the settings would make this a different model, or its rounds are done
    already, ModelNotFound when its base is missing, BadTask, UnknownTask.
    """
    stored = model.config if model else None
    wanted = msgspec.structs.replace(stored or settings, **typed)
    flags.check_config(wanted)
    facts = flags.answer_facts(wanted, typed, look, stored)
    if model is not None:
        if wanted.model == model.config.model:
            mending.require_base_folder(model)
        changes.refuse_other_identity(model, wanted, resolved_config(model))
        done = history.trained_count(model).rounds
        if "rounds" in typed and 0 < wanted.rounds < done:
            had = f"{count_of(done, 'round')} of practice already"
            raise UsageError(
                f"{model.name} has {had}, more than --rounds {wanted.rounds} asks for. It counts all of the model: "
                f"--rounds {done + wanted.rounds} trains {wanted.rounds} more."
            )
    kept = {name: value for name, value in typed.items() if name != "rounds"}
    config, _ = resolve_run_config(settings, stored, kept, facts=facts)
    if model is not None:
        facts = msgspec.structs.replace(facts, rounds_done=done)
    return TrainingSession(model.name if model else store.FIRST, config, model, settings, typed, facts)


def resolved_config(model: Model) -> RunConfig:
    """The model's settings with what "auto" and 0 meant when its training began."""
    config, session = engines.stored_config(model.config, model.folder), history.last_session(model.folder)
    if session is None:
        return config
    facts = RunFacts(measured={"method": session.method, "precision": session.precision})
    return resolve_run_config(config, facts=facts)[0]


def begin_session(home: Home, session: TrainingSession, invite: Invite | None) -> TrainingSession:
    """Create a new model where necessary, keep its settings, and say what changed. Call while the node's lock is held.

    A device is stored once it has worked: see record_session_start(). Raises UsageError, ModelNotFound, AppError.
    """
    keeping.remove_abandoned(home, time.time())
    device = session.model.config.device if session.model else RunConfig().device
    config = msgspec.structs.replace(session.config, device=device)
    model = session.model or keeping.create_model(home, session.name, config)
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
