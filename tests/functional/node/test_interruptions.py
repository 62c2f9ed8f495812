"""A pause, a hold, a stop keep what is done: no token is sampled twice, and what comes of it is what an undisturbed run gives."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest
from tests.support.model_folder import chain, on_disk, weights
from tests.support.watched_node import CONFIG, CountingEngine, follow, make

from sapo_backends.common import hardware
from sapo_swarm.config import RunConfig
from sapo_swarm.events import CheckpointSaved, Event, LogLine, RoundFinished, StateChanged
from sapo_swarm.node import resume_log
from sapo_swarm.node.governor.rules import GovernorHold
from sapo_swarm.node.governor.run_control import RunControl, RunRequests, apply_command
from sapo_swarm.node.journal import EventBus, Journal, read_only
from sapo_swarm.node.loop import Node
from sapo_swarm.node.rollouts import BatchSizer
from sapo_swarm.node.round_phases import NodeActivity

MOST = 15
"""Holds; then the rest of the rounds is undisturbed."""
HEAT = GovernorHold("heat", "95 °C", "below 82 °C", 0.0)


def finished(folder: Path) -> list[RoundFinished]:
    return [e for e in read_only(folder / "journal.db", ("round",)) if isinstance(e, RoundFinished)]


async def undisturbed(folder: Path, config: RunConfig = CONFIG) -> CountingEngine:
    engine = CountingEngine()
    await make(folder, engine, config).run()
    return engine


class Interrupter:
    """After every so many decode steps of a round it puts a hold on the node and lets go once the node says that it is paused."""

    def __init__(self, every: int, most: float = MOST) -> None:
        self.every, self.most, self.steps, self.holds = every, most, 0, 0
        self.node: Node
        self.loop = asyncio.get_running_loop()

    def step(self) -> None:
        self.steps += 1
        if self.steps % self.every == 0 and self.holds < self.most:
            done = threading.Event()
            self.loop.call_soon_threadsafe(self._hold, done)
            done.wait()

    def _hold(self, done: threading.Event) -> None:
        self.holds += 1
        self.node.run_control.hold((HEAT,))
        done.set()

    def seen(self, event: Event) -> None:
        if isinstance(event, StateChanged) and event.state == "paused":
            self.node.run_control.hold(())


@pytest.mark.parametrize("every", [1, 2, 3])
async def test_holds_within_every_completion_throw_no_token_away(tmp_path: Path, every: int) -> None:
    """Each call gets one, two or three steps far: completions of four to six tokens are made in pieces."""
    calm = await undisturbed(tmp_path / "calm")
    interrupter = Interrupter(every)
    engine = CountingEngine(interrupter.step)
    interrupter.node = make(tmp_path / "held", engine)
    await follow(interrupter.node, interrupter.seen)
    assert interrupter.holds >= 4
    assert engine.sampled == calm.sampled == sum(r.tokens_generated for r in finished(tmp_path / "held"))
    assert weights(tmp_path / "held", 2) == weights(tmp_path / "calm", 2)
    chain(tmp_path / "held")


async def test_a_round_of_ten_minutes_under_a_hold_every_minute_finishes_and_so_does_the_next(tmp_path: Path) -> None:
    """The clock is the engine's own: of a round's decode steps a tenth is a minute, and the holds never end coming."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    calm = CountingEngine(count)
    await make(tmp_path / "calm", calm).run()
    minute = max(1, steps // CONFIG.rounds // 10)
    interrupter = Interrupter(minute, most=float("inf"))
    engine = CountingEngine(interrupter.step)
    interrupter.node = make(tmp_path / "held", engine)
    await follow(interrupter.node, interrupter.seen)
    assert interrupter.node.rounds_done == CONFIG.rounds
    assert interrupter.holds >= 10
    assert engine.sampled == calm.sampled
    assert weights(tmp_path / "held", 2) == weights(tmp_path / "calm", 2)


async def test_a_pause_gives_free_memory_of_the_system_and_of_the_device_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a minute at most: pauses may follow each other closely."""
    trims: list[str] = []
    returned: list[str] = []
    monkeypatch.setattr(hardware, "release_free_memory", lambda: trims.append(threading.current_thread().name))
    interrupter = Interrupter(3, most=2)
    engine = CountingEngine(interrupter.step)
    monkeypatch.setattr(engine, "return_memory", lambda: returned.append(threading.current_thread().name))
    interrupter.node = make(tmp_path, engine)
    await follow(interrupter.node, interrupter.seen)
    assert interrupter.holds == 2
    assert len(trims) == 1
    assert threading.current_thread().name not in trims
    assert returned == trims


async def stopped_after(steps: int, folder: Path, config: RunConfig = CONFIG) -> int:
    """Run until the engine did so many decode steps, then stop; how many tokens were sampled."""
    loop, taken = asyncio.get_running_loop(), 0

    def step() -> None:
        nonlocal taken
        taken += 1
        if taken == steps:
            node.host.cancel.cancel()
            loop.call_soon_threadsafe(node.command, "stop")

    engine = CountingEngine(step)
    node = make(folder, engine, config)
    await node.run()
    return engine.sampled


async def test_rollouts_of_the_round_in_flight_survive_a_stop_and_a_start(tmp_path: Path) -> None:
    calm = await undisturbed(tmp_path / "calm")
    sampled = 0
    for _ in range(6):
        sampled += await stopped_after(2, tmp_path / "stopped")
    engine = CountingEngine()
    node = make(tmp_path / "stopped", engine)
    await node.run()
    sampled += engine.sampled
    assert node.rounds_done == 2
    assert sampled == calm.sampled
    assert weights(tmp_path / "stopped", 2) == weights(tmp_path / "calm", 2)
    told = [e.text for e in read_only(tmp_path / "stopped" / "journal.db", ("log",)) if isinstance(e, LogLine)]
    assert any("were kept and are used" in text for text in told)
    assert resume_log.load_in_flight(tmp_path / "stopped") is None, "a finished round leaves nothing behind"
    assert on_disk(tmp_path / "stopped").told == [0, 1]


@pytest.mark.parametrize("changed", [{"temperature": 0.7}, {"answer_format": "last_line"}], ids=" ".join)
async def test_rollouts_of_other_settings_are_left_out_with_a_sentence(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    await stopped_after(2, tmp_path / "m")
    assert resume_log.load_in_flight(tmp_path / "m") is not None
    other = msgspec.structs.replace(CONFIG, **changed)
    await make(tmp_path / "m", CountingEngine(), other).run()
    await undisturbed(tmp_path / "calm", other)
    assert weights(tmp_path / "m", 2) == weights(tmp_path / "calm", 2)
    told = [e.text for e in read_only(tmp_path / "m" / "journal.db", ("log",)) if isinstance(e, LogLine)]
    assert any("do not fit the settings of now" in text for text in told)


async def test_rollouts_kept_without_a_hash_of_what_the_model_read_are_used(tmp_path: Path) -> None:
    await stopped_after(2, tmp_path / "m")
    kept = resume_log.load_in_flight(tmp_path / "m")
    assert kept is not None
    questions = tuple(msgspec.structs.replace(q, read_sha256="") for q in kept.questions)
    resume_log.save_in_flight(tmp_path / "m", msgspec.structs.replace(kept, questions=questions))
    await make(tmp_path / "m", CountingEngine()).run()
    told = [e.text for e in read_only(tmp_path / "m" / "journal.db", ("log",)) if isinstance(e, LogLine)]
    assert any("were kept and are used" in text for text in told)


def test_kept_rollouts_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    assert resume_log.load_in_flight(tmp_path) is None
    (tmp_path / resume_log.NAME).write_bytes(b"\x93half")
    assert resume_log.load_in_flight(tmp_path) is None


def test_calls_get_smaller_while_they_are_interrupted_and_whole_again_when_not() -> None:
    portion = BatchSizer()
    assert portion.of(64) == 64
    portion.interrupted(64)
    assert portion.of(64) == 16
    portion.interrupted(16)
    portion.interrupted(4)
    portion.interrupted(1)
    assert portion.of(64) == 1
    for _ in range(7):
        portion.completed(portion.of(64))
    assert portion.of(64) == 64
    portion.completed(64)
    assert portion.of(200) >= 64


async def test_an_automatic_hold_lets_an_update_end_and_a_person_s_pause_does_not_wait(tmp_path: Path) -> None:
    """Where holds come faster than an update takes, the model would never learn."""
    journal, activity = Journal(tmp_path / "journal.db"), NodeActivity()
    stopped = asyncio.Event()

    class Token:
        def cancel(self) -> None:
            stopped.set()

        def reset(self) -> None:
            stopped.clear()

    run_control = RunControl(EventBus(journal), activity, Token(), lambda _share, _duty: False)  # type: ignore[arg-type]
    activity.state = "running"
    activity.begin("update", 3, "Updating the model")
    run_control.hold((HEAT,))
    assert not stopped.is_set()
    assert activity.state == "pausing"
    run_control.hold(())
    assert not stopped.is_set()
    activity.begin("generate", 3, "Generating")
    run_control.hold((HEAT,))
    assert stopped.is_set()
    stopped.clear()
    activity.begin("update", 3, "Updating the model")
    run_control.request(apply_command(RunRequests(), "pause", 0, 0.0))
    assert stopped.is_set()
    journal.close()


@pytest.mark.parametrize("verb", ["pause", "hold"])
async def test_where_a_person_or_a_chat_has_the_node_wait_the_newest_checkpoint_is_the_model_as_it_is(
    tmp_path: Path, verb: str
) -> None:
    """A chat answers with the newest checkpoint."""
    node = make(tmp_path, CountingEngine())
    saved: list[tuple[int, str]] = []

    def seen(event: Event) -> None:
        if isinstance(event, RoundFinished):
            node.command(verb)
        elif isinstance(event, StateChanged) and event.state == "paused":
            node.command("stop")
        elif isinstance(event, CheckpointSaved):
            saved.append((event.round, event.reason))

    await follow(node, seen)
    assert saved == [(0, "start"), (1, "pause")]
