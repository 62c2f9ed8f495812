"""Opening a model: the base answers what it was never asked, updates are redone before one's eyes, and a stop ends it at once."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support.model_folder import chain, weights
from tests.support.watched_node import CALM, CONFIG, CountingEngine, follow, make

from sapo_backends.base import CancelToken, Engine, Progress
from sapo_desktop.dashboard.look import UNICODE
from sapo_desktop.dashboard.state import DashboardState, apply_event
from sapo_desktop.dashboard.widgets.frame import header_line
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Evaluated, Event, LogLine, Phase, RunStarted, StateChanged
from sapo_swarm.node.evaluation import BaseAnswers, evaluation_conditions
from sapo_swarm.node.governor.rules import DAYS
from sapo_swarm.node.governor.run_control import RunControl
from sapo_swarm.node.journal import EventBus, Journal, read_only
from sapo_swarm.node.loop import Node
from sapo_swarm.node.round_phases import NodeActivity
from sapo_swarm.node.setup import NodeSetup

pytestmark = pytest.mark.timeout(120)
REGULAR = structs.replace(CONFIG, tasks=("basic_arithmetic",), eval_every=2, eval_items=8)
OTHER = structs.replace(REGULAR, tasks=("basic_arithmetic", "calendar_arithmetic"), rounds=4)


async def trained(folder: Path, config: RunConfig, engine: CountingEngine | None = None) -> list[Event]:
    """What the node told until it ended."""
    told: list[Event] = []
    await follow(make(folder, engine or CountingEngine(), config), told.append)
    return told


def evaluations(folder: Path) -> list[Evaluated]:
    return [e for e in read_only(folder / "journal.db", ("evaluation",)) if isinstance(e, Evaluated)]


def answers(folder: Path, config: RunConfig) -> dict[Any, Any]:
    now = evaluation_conditions(config, CountingEngine().info)
    return BaseAnswers(folder / "evaluations" / "base.json", lambda _task: config.max_new_tokens, now).known()


async def test_after_a_change_of_tasks_the_difference_to_the_true_base_is_there_again(tmp_path: Path) -> None:
    """The base's answers to the new task are those of a model that was never trained, and asking costs the weights nothing."""
    model, plain, fresh = tmp_path / "model", tmp_path / "plain", tmp_path / "fresh"
    await trained(model, REGULAR)
    shutil.copytree(model, plain)
    before = answers(model, REGULAR)
    await trained(model, OTHER)
    newest = evaluations(model)[-1]
    assert (newest.round, newest.base_missing) == (4, 0)
    assert newest.delta is not None
    assert all(score.base is not None for score in newest.tasks)
    await trained(plain, structs.replace(OTHER, eval_every=0))
    assert weights(model, 4) == weights(plain, 4)
    chain(model)
    await trained(fresh, structs.replace(OTHER, tasks=("calendar_arithmetic",), rounds=1))
    after = answers(model, OTHER)
    assert {ref: after[ref] for ref in before} == before
    assert {ref: found for ref, found in after.items() if ref not in before} == answers(fresh, OTHER)


async def test_a_model_whose_questions_are_as_before_opens_without_asking_the_base(tmp_path: Path) -> None:
    await trained(tmp_path, REGULAR)
    engine = CountingEngine()
    await trained(tmp_path, REGULAR, engine)
    assert engine.sampled == 0


async def test_a_pause_while_the_base_is_asked_leaves_it_for_the_next_time_and_says_so(tmp_path: Path) -> None:
    await trained(tmp_path, REGULAR)
    node = make(tmp_path, CountingEngine(), OTHER)
    told: list[Event] = []

    def pause(event: Event) -> None:
        told.append(event)
        if isinstance(event, StateChanged) and event.state == "starting":
            node.command("pause")
        if isinstance(event, StateChanged) and event.state == "paused":
            node.command("resume")

    await follow(node, pause)
    said = [event.text for event in told if isinstance(event, LogLine) and event.level == "warning"]
    assert any("was not asked 8 held-out questions" in text and "interrupted" in text for text in said)
    newest = evaluations(tmp_path)[-1]
    assert (newest.round, newest.delta, newest.base_missing) == (4, None, 8)
    await trained(tmp_path, structs.replace(OTHER, rounds=6))
    assert evaluations(tmp_path)[-1].delta is not None, "the next start asked it"


async def test_a_node_that_starts_under_a_hold_asks_the_base_once_it_may_work(tmp_path: Path) -> None:
    """Its hours are at night, and it is started by day."""
    await trained(tmp_path, REGULAR)
    limits = [structs.replace(CALM, schedule=f"{DAYS[(time.localtime().tm_wday + 3) % 7]} 01:00-02:00")]
    node = Node(NodeSetup(OTHER, "watched", tmp_path, lambda _progress: CountingEngine(), lambda: limits[0]))
    told: list[Event] = []

    def hours_begin(event: Event) -> None:
        told.append(event)
        if isinstance(event, StateChanged) and event.state == "paused":
            limits[0] = CALM

    await follow(node, hours_begin)
    assert [event.reason for event in told if isinstance(event, StateChanged) and event.state == "paused"] == [
        "schedule"
    ]
    assert not [event for event in told if isinstance(event, LogLine) and event.level == "warning"]
    newest = evaluations(tmp_path)[-1]
    assert (newest.round, newest.base_missing) == (4, 0)
    assert newest.delta is not None


async def killed_with_updates_in_the_log(folder: Path, rounds: int = 6) -> RunConfig:
    """A model as a kill leaves it: `rounds` rounds in the log, the checkpoint is that of the beginning."""
    config = structs.replace(CONFIG, rounds=rounds)
    node = make(folder / "whole", CountingEngine(), config)

    def snapshot(event: Event) -> None:
        if isinstance(event, Phase) and event.phase == "questions" and event.round == rounds - 1 and not event.fraction:
            shutil.copytree(folder / "whole", folder / "killed", dirs_exist_ok=True)

    await follow(node, snapshot)
    return config


async def test_updates_that_are_redone_after_a_kill_are_counted_before_ones_eyes(tmp_path: Path) -> None:
    config = await killed_with_updates_in_the_log(tmp_path)
    told = await trained(tmp_path / "killed", config)
    until = next(place for place, event in enumerate(told) if isinstance(event, RunStarted) and event.round == 5)
    details = [event.detail for event in told[:until] if isinstance(event, Phase)]
    assert "Redoing update 1 of 5 after the last checkpoint" in details
    assert weights(tmp_path / "killed", 6) == weights(tmp_path / "whole", 6)


async def test_updates_that_are_redone_from_a_checkpoint_without_its_optimizer_are_told_to_differ(
    tmp_path: Path,
) -> None:
    config = await killed_with_updates_in_the_log(tmp_path)
    shutil.copytree(tmp_path / "killed", tmp_path / "short")
    (tmp_path / "short" / "checkpoints" / "round-000000" / "engine" / "fake-optimizer.safetensors").unlink()
    for folder, times in (("killed", 0), ("short", 1)):
        told = await trained(tmp_path / folder, config)
        warnings = [event.text for event in told if isinstance(event, LogLine) and event.level == "warning"]
        assert sum("redone with new moments" in text for text in warnings) == times


async def test_a_stop_while_updates_are_redone_ends_the_node_and_loses_nothing(tmp_path: Path) -> None:
    config = await killed_with_updates_in_the_log(tmp_path)
    engine = CountingEngine()
    node = make(tmp_path / "killed", engine, config)
    update, redone = engine.update, []

    def stop_at_the_second(*arguments: Any, **more: Any) -> Any:
        redone.append(1)
        if len(redone) == 2:
            node.run_control.requests = structs.replace(node.run_control.requests, stop=True)
        return update(*arguments, **more)

    engine.update = stop_at_the_second  # type: ignore[method-assign]
    told: list[Event] = []
    await follow(node, told.append)
    assert len(redone) == 2
    assert isinstance(told[-1], StateChanged)
    assert told[-1].sentence == "Stopped before the model was open; nothing of it is lost."
    await trained(tmp_path / "killed", config)
    assert weights(tmp_path / "killed", 6) == weights(tmp_path / "whole", 6)


async def test_a_pause_asked_for_while_the_model_opens_stands_in_the_header(tmp_path: Path) -> None:
    """Until it is taken back; how far the opening is, is told all the while."""
    pause_seen, told, state = threading.Event(), list[tuple[bool, str]](), DashboardState()

    def build(progress: Progress) -> Engine:
        assert pause_seen.wait(60)
        progress(0.5, "layer 1")
        return CountingEngine()

    node = Node(NodeSetup(CONFIG, "watched", tmp_path, build, lambda: CALM))

    def seen(event: Event) -> None:
        nonlocal state
        state = apply_event(state, event)
        if state.state != "starting" or not isinstance(event, Phase | StateChanged):
            return
        told.append((state.resumable, header_line(state, state.newest, 80, 24, UNICODE).plain.rpartition("… ")[2]))
        if isinstance(event, StateChanged) and state.resumable:
            pause_seen.set()
        elif isinstance(event, Phase) and event.detail == "Loading fake":
            node.command("pause")
        elif isinstance(event, Phase) and event.detail == "Layer 1 (fake)":
            node.command("resume")

    await follow(node, seen)
    opening = told.index((False, "Loading fake"), 1)
    assert told[opening + 1 : opening + 4] == [
        (True, "pauses once the model is open · Loading fake"),
        (True, "pauses once the model is open · Layer 1 (fake)"),
        (False, "Layer 1 (fake)"),
    ]
    assert state.rounds == CONFIG.rounds


async def test_what_is_asked_of_a_node_just_as_its_state_changes_does_not_bring_the_old_state_back(
    tmp_path: Path,
) -> None:
    """Its pause is told of a moment later: by then the model may be open."""
    journal = Journal(tmp_path / "journal.db")
    activity = NodeActivity()
    control = RunControl(EventBus(journal), activity, CancelToken(), lambda _share, _duty: False)
    control.command("pause", 0.0)
    activity.state = "stopped"
    await control.settled()
    assert activity.state == "stopped"
    journal.close()


async def test_a_row_of_the_journal_that_cannot_be_read_is_told_of_when_the_model_opens(tmp_path: Path) -> None:
    await trained(tmp_path, structs.replace(CONFIG, rounds=1))
    with Journal(tmp_path / "journal.db").writing() as db:
        db.execute("INSERT INTO events (kind, round, body) VALUES ('group', 0, ?)", (b'{"kind":"from tomorrow"}',))
    told = await trained(tmp_path, structs.replace(CONFIG, rounds=1))
    (said,) = [event for event in told if isinstance(event, LogLine) and "passed over" in event.text]
    assert said.level == "warning"
    assert "1 events of the journal cannot be read and are passed over" in said.text
