"""Friends on a private task: two homes train on it through a coordinator, a third one sees nothing of it. Real processes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from tests.support.node_process import node, reaches, sapo
from tests.support.own_tasks import sums
from tests.support.swarm_process import coordinator, journal, rounds

from sapo_swarm.events import GroupRecorded, LogLine
from sapo_swarm.tasks.own.folder import DIGITS, PREFIX
from sapo_swarm.types import Group

CALM = ("--eval-every", "0", "--learning-rate", "1e-5")  # it never knows the task by heart: groups stay worth taking
NODE = ("--trainer", "fake", "--model", "fake:0.1", *CALM, "--group-size", "4", "--keep-groups", "0")
TASK = "my_sums"


async def run(home: Path, *arguments: str) -> str:
    """A verb that goes well: what it printed."""
    done = await asyncio.to_thread(sapo, home, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def version(shown: str) -> str:
    found = re.search(r"--yes ([0-9a-f]{64})", shown)
    assert found is not None, shown
    return found[1]


def external(home: Path, task: str) -> list[Group]:
    """Groups of others that the home's model was trained on."""
    groups = [event.group for event in journal(home) if isinstance(event, GroupRecorded)]
    return [group for group in groups if _is_taken(group, task)]


def _is_taken(group: Group, task: str) -> bool:
    return group.source == "external" and group.question.ref.dataset == task


def traces(home: Path, words: tuple[str, ...]) -> list[str]:
    """Files under a home that hold one of the words."""
    found = []
    for path in home.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            found += [f"{path}: {word}" for word in words if word.encode() in data]
    return found


@pytest.mark.slow
async def test_two_friends_train_on_one_private_task_and_a_third_member_sees_nothing_of_it(tmp_path: Path) -> None:
    host, guest, third = (tmp_path / name for name in ("host", "guest", "third"))
    sums(host / "data" / "tasks" / TASK)
    async with coordinator(host, "--port", "0") as (invite, _):
        assert "Its held-out rows stay here" in await run(host, "tasks", "share", TASK)
        (guest / "invite").parent.mkdir(parents=True)
        (guest / "invite").write_text(invite)
        shown = await run(guest, "tasks", "offered", TASK)
        assert "1. Calculate 0 + 0." in shown
        assert "80 to train on, none held out" in shown
        assert not (guest / "data" / "tasks").exists()
        hash = version(shown)
        assert "Accepted my_sums" in await run(guest, "tasks", "accept", TASK, "--yes", hash)
        assert not (guest / "data" / "tasks" / TASK / "heldout.jsonl").read_bytes()
        swarm = ("--join", invite, "--local-groups", "2", "--external-groups", "2")
        together = (*NODE, *swarm, "--tasks", TASK)
        async with (
            node(host, *together) as (first, _),
            node(guest, *together) as (second, _),
            node(third, *NODE, *swarm, "--tasks", "basic_arithmetic") as (other, _),
        ):
            for client in (first, second):
                await reaches(client, ("group",), lambda event: _is_taken(event.group, TASK))
            kept = await asyncio.to_thread(sapo, guest, "tasks", "delete", TASK, "--even-in-use", "--yes")
            assert (kept.returncode, f"is being trained on {TASK}. Stop it first" in kept.stderr) == (2, True)
            for client in (first, second, other):
                await reaches(client, ("round",), lambda event: event.round >= 9)
    for home in (host, guest):
        events = journal(home)
        assert len(rounds(events)) >= 10
        assert {group.question.ref.generator for group in external(home, TASK)} == {PREFIX + hash[:DIGITS]}
        assert len({group.node for group in external(home, TASK)}) == 1
    assert len(rounds(journal(third))) >= 10
    assert {event.group.question.ref.dataset for event in journal(third) if isinstance(event, GroupRecorded)} == {
        "basic_arithmetic"
    }
    assert any(isinstance(e, LogLine) and "You did not accept it" in e.text for e in journal(third))
    assert traces(third, ("Calculate 7 + 49", "task-")) == []


async def test_a_friend_looks_at_a_task_and_accepts_it_before_any_round(tmp_path: Path) -> None:
    """By the invite alone, which is kept nowhere; a node that is told the task's name too early says where to look."""
    host, guest = tmp_path / "host", tmp_path / "guest"
    sums(host / "data" / "tasks" / TASK)
    async with coordinator(host, "--port", "0") as (invite, _):
        await run(host, "tasks", "share", TASK)
        kept = await asyncio.to_thread(sapo, host, "tasks", "delete", TASK, "--yes")
        assert (kept.returncode, f"Take it out first: sapo-desktop tasks unshare {TASK}" in kept.stderr) == (2, True)
        early = await asyncio.to_thread(sapo, guest, "node", *NODE, "--join", invite, "--tasks", TASK)
        assert early.returncode == 2
        assert "A task of the swarm's host is accepted first: sapo-desktop tasks offered --join INVITE" in early.stderr
        bare = await asyncio.to_thread(sapo, guest, "tasks", "offered")
        assert "No invite is saved. Name one: sapo-desktop tasks offered --join INVITE" in bare.stderr
        listed = await run(guest, "tasks", "offered", "--join", invite)
        assert f"{TASK}                      not accepted yet: 80 rows." in listed
        assert "Look at one: sapo-desktop tasks offered NAME --join INVITE" in listed
        shown = await run(guest, "tasks", "offered", TASK, "--join", invite)
        assert f"Accept it: sapo-desktop tasks accept {TASK} --join INVITE --yes {version(shown)}" in shown
        done = await run(guest, "tasks", "accept", TASK, "--join", invite, "--yes", version(shown))
        assert f"then: sapo-desktop node {TASK} --join INVITE" in done
        assert not (guest / "invite").exists()
        assert (guest / "data" / "tasks" / TASK / "task.toml").exists()
        broken = await asyncio.to_thread(sapo, guest, "tasks", "offered", "--join", "sapo://nowhere")
        assert broken.returncode == 2
