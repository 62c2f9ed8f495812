"""A node as people use it: rounds, pause, kill, resume. Real processes, real sockets, the fake engine."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from pathlib import Path

import pytest
from tests.support import node_process
from tests.support.model_folder import chain, on_disk, weights
from tests.support.node_process import node, reaches, sapo

from sapo_desktop.dashboard.state import DashboardState, apply_event
from sapo_desktop.services.models.recording import load_recording
from sapo_swarm.events import GroupRecorded, Phase, RoundFinished, RunStarted, StateChanged
from sapo_swarm.node.journal import read_only

FAKE = (*node_process.FAKE, "--local-groups", "8", "--final-rate", "1")


def only_run(home: Path) -> Path:
    (folder,) = (home / "data" / "models").iterdir()
    return folder


def test_a_silo_run_prints_json_rounds_and_a_summary(tmp_path: Path) -> None:
    done = sapo(tmp_path, "node", *FAKE, "--rounds", "4", "--json")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [e["round"] for e in events if e["kind"] == "round"] == [0, 1, 2, 3]
    assert events[-1]["kind"] == "summary"
    assert events[-1]["rounds"] == 4


def test_rounds_count_what_they_did(tmp_path: Path) -> None:
    """The figures of a round agree with the groups in the journal."""
    sapo(tmp_path, "node", *FAKE, "--rounds", "2")
    events = read_only(only_run(tmp_path) / "journal.db")
    groups = [e.group for e in events if isinstance(e, GroupRecorded) and e.round == 1]
    finished = next(e for e in events if isinstance(e, RoundFinished) and e.round == 1)
    rewards = [r for g in groups for r in g.rewards]
    assert len(groups) == 8
    assert finished.reward_local == pytest.approx(sum(rewards) / len(rewards))
    assert finished.nonzero_groups == sum(g.nonzero_advantage for g in groups)
    assert finished.tokens_generated == sum(r.tokens for g in groups for r in g.rollouts)
    assert finished.reward_external is None


async def test_pause_takes_effect_between_two_tokens_and_resume_goes_on(tmp_path: Path) -> None:
    """A round takes minutes at half a second a token; the pause waits for none of it."""
    async with node(tmp_path, *FAKE, "--model", "fake:0.5") as (client, _):
        await reaches(client, (), lambda e: isinstance(e, Phase) and e.phase == "generate")
        await client.post("pause")
        await reaches(client, ("state",), lambda e: isinstance(e, StateChanged) and e.state == "paused")
        status = await client.status()
        assert (status.state, status.round) == ("paused", 0)
        assert "space" in status.sentence
        await client.post("resume")
        await reaches(client, ("round",), lambda e: isinstance(e, RoundFinished))


async def test_finish_pauses_only_after_the_round(tmp_path: Path) -> None:
    async with node(tmp_path, *FAKE, "--model", "fake:0.01") as (client, _):
        await reaches(client, (), lambda e: isinstance(e, Phase) and e.phase == "generate")
        await client.post("finish")
        await reaches(client, ("state",), lambda e: isinstance(e, StateChanged) and e.state == "paused")
        status = await client.status()
        assert status.round >= 1


async def test_a_pause_of_the_person_s_holds_where_the_dashboard_or_the_system_starts_the_node(tmp_path: Path) -> None:
    """After a crash, at login and after going back; who types its name wants it to work."""
    flags = (*FAKE, "--model", "fake:0.01")

    def paused(event: object) -> bool:
        return isinstance(event, StateChanged) and (event.state, event.reason) == ("paused", "person")

    async with node(tmp_path, *flags) as (client, process):
        await reaches(client, ("round",), lambda e: isinstance(e, RoundFinished))
        await client.post("pause")
        await reaches(client, ("state",), paused)
        before = await client.status()
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
    async with node(tmp_path, *flags, "--as-left") as (client, _):
        await reaches(client, ("state",), paused, after=before.seq)
        after = await client.status()
        assert after.round == before.round
    async with node(tmp_path, *flags) as (client, _):
        await reaches(client, ("round",), lambda e: isinstance(e, RoundFinished), after=after.seq)


async def test_a_second_node_in_the_same_home_is_refused_with_the_way_out(tmp_path: Path) -> None:
    async with node(tmp_path, *FAKE, "--model", "fake:0.02") as (_, process):
        second = await asyncio.to_thread(sapo, tmp_path, "node", *FAKE, "--model", "fake:0.02")
        assert second.returncode == 1
        assert str(process.pid) in second.stderr
        assert "sapo-desktop stop" in second.stderr


async def test_stop_leaves_no_process_and_no_socket(tmp_path: Path) -> None:
    async with node(tmp_path, *FAKE, "--model", "fake:0.02") as (client, process):
        await reaches(client, (), lambda e: isinstance(e, Phase) and e.phase == "generate")
        await client.post("stop")
        assert await asyncio.to_thread(process.wait) == 0
        assert not (tmp_path / "run" / "node.sock").exists()


def test_straight_rounds_equal_interrupted_ones(tmp_path: Path) -> None:
    """6 rounds in one go and 3 + restart + 3 end in identical weights."""
    one, two = tmp_path / "one", tmp_path / "two"
    sapo(one, "node", *FAKE, "--rounds", "6")
    sapo(two, "node", *FAKE, "--rounds", "3")
    done = sapo(two, "node", *FAKE, "--rounds", "6")
    assert "goes on with round 4" in done.stdout
    assert weights(only_run(one), 6) == weights(only_run(two), 6)


async def test_kill_in_every_phase_loses_at_most_the_round_in_flight(tmp_path: Path) -> None:
    """kill -9 in each phase in turn; the journal stays whole and the weights equal an undisturbed run's.

    The run is one checkpoint and a log of updates that are taken again, until a pause saves.
    """
    draw, done = random.Random(7), 0
    flags = (*FAKE, "--model", "fake:0.001", "--checkpoint-minutes", "60")
    for phase in ("generate", "score", "update", "generate", "checkpoint"):
        wanted = done + draw.randint(1, 3)
        async with node(tmp_path, *flags) as (client, process):
            async for event in client.events(kinds=("round", "phase")):
                if phase == "checkpoint" and isinstance(event, RoundFinished) and event.round >= wanted:
                    await client.post("pause")
                if isinstance(event, Phase) and event.phase == phase and event.round >= wanted:
                    break
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait)
        found = on_disk(only_run(tmp_path))
        assert found.told == list(range(len(found.told)))
        assert len(found.told) in {found.done, found.done - 1}
        assert found.done >= wanted
        done = found.done
    done += 1  # a model that has all its rounds is not opened
    calm = tmp_path / "calm"
    sapo(calm, "node", *FAKE, "--rounds", str(done))
    sapo(tmp_path, "node", *flags, "--rounds", str(done))
    assert on_disk(only_run(tmp_path)).told == list(range(done))
    assert weights(only_run(calm), done) == weights(only_run(tmp_path), done)
    chain(only_run(tmp_path))


def test_a_corrupt_checkpoint_is_passed_over_with_a_sentence_and_its_rounds_are_taken_back(tmp_path: Path) -> None:
    sapo(tmp_path, "node", *FAKE, "--rounds", "2")
    sapo(tmp_path, "node", *FAKE, "--rounds", "3")
    run = only_run(tmp_path)
    victim = next(p for p in (run / "checkpoints" / "round-000003" / "engine").iterdir() if p.is_file())
    raw = victim.read_bytes()
    victim.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    done = sapo(tmp_path, "node", *FAKE, "--rounds", "4")
    assert done.returncode == 0, done.stderr
    assert "round-000003" in done.stdout
    assert "goes on with round 3" in done.stdout
    assert "The last round of training had not reached the disk" in done.stdout
    assert "set aside as" in done.stdout
    assert (run / "checkpoints" / "damaged-round-000003").exists()
    assert on_disk(run).told == [0, 1, 2, 3]
    (opened,) = [e for e in read_only(run / "journal.db", ("run_started",))][2:]
    assert isinstance(opened, RunStarted)
    assert opened.weights in {e.weights for e in read_only(run / "journal.db", ("checkpoint",))}  # type: ignore[union-attr]


def test_when_no_checkpoint_is_intact_the_run_is_left_alone(tmp_path: Path) -> None:
    sapo(tmp_path, "node", *FAKE, "--rounds", "1")
    run = only_run(tmp_path)
    for state in run.glob("checkpoints/*/state.json"):
        state.write_bytes(b"{")
    done = sapo(tmp_path, "node", *FAKE, "--rounds", "2")
    assert done.returncode == 1
    assert "sapo-desktop new" in done.stderr


def test_old_groups_leave_the_journal_and_what_is_left_still_plays(tmp_path: Path) -> None:
    """Rounds, events and evaluations stay; the newest rounds keep their groups, and so does every tenth."""
    done = sapo(tmp_path, "node", *FAKE, "--local-groups", "2", "--rounds", "25", "--keep-groups", "3")
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path)
    events = load_recording(run / "journal.db")
    assert [e.round for e in events if isinstance(e, RoundFinished)] == list(range(25))
    kept = {e.round for e in events if isinstance(e, GroupRecorded) and not e.first_solved}
    assert kept == {0, 10, 20, 22, 23, 24}
    state = DashboardState()
    for event in events:
        state = apply_event(state, event)
    assert state.rounds == 25
    assert state.groups.last is not None
