"""Stages of a round in nodes as people run them: processes of their own, a coordinator, real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.node_process import node, reaches, sapo
from tests.support.swarm_process import TASKS, coordinator, journal, rounds

from sapo_swarm.events import Event, GroupRecorded, RoundFinished
from sapo_swarm.types import TaskRef


def criticised(event: Event) -> bool:
    return isinstance(event, RoundFinished) and event.figures.get("stage_attempted", 0.0) > 0


class OfAnother:
    """Of the group events in order: the first attempt that is corrected at a question that this node never had."""

    def __init__(self) -> None:
        self.own: set[TaskRef] = set()

    def __call__(self, event: GroupRecorded) -> bool:
        group = event.group
        if not group.external and not group.stage:
            self.own.add(group.question.ref)
        return group.stage == "critique/shown" and group.question.ref not in self.own


async def test_a_node_in_a_swarm_corrects_attempts_of_another_and_its_journal_tells(tmp_path: Path) -> None:
    async with coordinator(tmp_path / "host", "--port", "0") as (invite, _):
        swarm = ("--join", invite, *TASKS, "--group-size", "4", "--sampling", "uniform")
        giver = (*swarm, "--model", "fake:0.002")
        critic = (*swarm, "--model", "fake:0.003", "--stage", "critique", "--stage-groups", "2")
        async with node(tmp_path / "g", *giver), node(tmp_path / "c", *critic) as (client, process):
            await reaches(client, ("group",), OfAnother())
            await reaches(client, ("round",), criticised)
            await client.post("stop")
            assert await asyncio.to_thread(process.wait) == 0
    story = journal(tmp_path / "c")
    told = [event for event in rounds(story) if criticised(event)]
    shown = [e for e in story if isinstance(e, GroupRecorded) and e.group.stage == "critique/shown"]
    assert len(shown) == sum(event.figures["stage_attempted"] for event in told)
    assert all(not e.group.external and len(e.group.rollouts) == 4 for e in shown)
    for event in told:
        assert 0 <= event.figures["stage_corrected"] <= event.figures["stage_attempted"] <= 2
        assert event.completions == 4 * len([e for e in _own(story, event.round)]), (
            "in no count of the round's own groups"
        )


def _own(story: list[Event], number: int) -> list[GroupRecorded]:
    groups = [e for e in story if isinstance(e, GroupRecorded) and e.round == number]
    return [e for e in groups if not (e.group.external or e.group.stage)]


def test_a_node_alone_hints_at_its_own_earlier_successes_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    alone = (
        "node",
        "--silo",
        "--quiet",
        "--model",
        "starter-1m",
        "--trainer",
        "torch",
        "--threads",
        "1",
        "--eval-every",
        "0",
    )
    small = ("--tasks", "fraction_simplification", "--group-size", "2", "--local-groups", "4", "--max-new-tokens", "40")
    stage = ("--stage", "relay_start", "--stage-groups", "4")
    for until in ("3", "6"):
        done = sapo(tmp_path, *alone, *small, *stage, "--rounds", until)
        assert done.returncode == 0, done.stderr
    story = journal(tmp_path)
    figures = [event.figures for event in rounds(story)]
    assert len(figures) == 6
    assert figures[0]["stage_attempted"] == 0.0, "nothing is known yet"
    assert any(f["stage_attempted"] for f in figures[3:]), "what was solved before the stop is known after it"
    again = [e.group for e in story if isinstance(e, GroupRecorded) and e.group.stage == "relay_start"]
    solved = {g.question.ref for e in story if isinstance(e, GroupRecorded) and not (g := e.group).stage and g.solved}
    assert again
    assert {group.question.ref for group in again} <= solved
