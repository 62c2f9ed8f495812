"""The record of a model from the journal of its run."""

from __future__ import annotations

from pathlib import Path

from sapo_backends.base import ModelNotFound
from sapo_desktop.services.bases.licence import UNKNOWN, licence_of
from sapo_desktop.services.machine.load_request import local_folder
from sapo_desktop.services.models.exports.card import Record
from sapo_desktop.services.models.shelf.history import STORY, undone
from sapo_desktop.services.models.shelf.overview import shown_preset
from sapo_swarm.config import RunConfig
from sapo_swarm.events import CheckpointSaved, Evaluated, ExternalSwitched, RoundFinished, RunStarted
from sapo_swarm.node.journal import read_only


def record_of(name: str, config: RunConfig, journal: Path, rounds: int) -> Record:
    """What the journal says of the model after so many rounds; without a journal, what the config says.

    Raises JournalError when it is damaged.
    """
    events = read_only(journal, kinds=STORY) if journal.exists() else []
    done = [event for event in events if isinstance(event, RoundFinished) and event.round < rounds]
    named = Evaluated | ExternalSwitched | CheckpointSaved
    events = [event for event in events if not isinstance(event, named) or event.round <= rounds]
    gone = undone(events)
    seen = [event for event in events if isinstance(event, Evaluated) and event not in gone]
    trained = [event for event in seen if event.round > 0]
    last = {event.round: event for event in done}.values()  # a round that was redone after a kill counts once
    judged = next((event.judged for event in reversed(events) if isinstance(event, RunStarted)), False)
    judge = {"judge": config.judge_model} if judged else {}
    return Record(
        name=name,
        base=config.model,
        licence=_licence(config),
        tasks=config.tasks,
        preset=shown_preset(config),
        algorithm=config.algorithm,
        rounds=rounds,
        tokens=sum(event.tokens_generated for event in last),
        swarm=any(event.external_groups for event in last),
        held_out=trained[-1] if trained else None,
        base_held_out=next((event for event in seen if event.round == 0), None),
        settings={"seed": str(config.seed), "group size": str(config.group_size), **judge},
        judged=judged,
    )


def _licence(config: RunConfig) -> str:
    try:
        return licence_of(config.model, local_folder(config))
    except ModelNotFound:
        return UNKNOWN
