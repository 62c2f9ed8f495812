"""Back to a kept state of a model: by the verb without a node, by a running node, and what a kill leaves."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import node_process
from tests.support.model_folder import chain, on_disk, weights
from tests.support.node_process import environment, node, reaches, sapo
from tests.support.watched_node import CONFIG, CountingEngine, make

from sapo_desktop.services.models.shelf import history
from sapo_swarm.events import CheckpointSaved, Evaluated, LogLine, Phase, RoundFinished
from sapo_swarm.node import resume_log
from sapo_swarm.node.checkpoints import read_state
from sapo_swarm.node.control_api import ControlError
from sapo_swarm.node.journal import check_journal, read_only

FAKE = [
    *node_process.FAKE[:-2],
    *(
        "--local-groups",
        "16",
        "--final-rate",
        "1",
        "--eval-every",
        "1",
        "--eval-items",
        "2",
        "--checkpoint-minutes",
        "60",
    ),
]


def only_model(home: Path) -> Path:
    (folder,) = (home / "data" / "models").iterdir()
    return folder


def trained(home: Path, rounds: int, *flags: str) -> Path:
    done = sapo(home, "node", *FAKE, "--rounds", str(rounds), *flags)
    assert done.returncode == 0, done.stderr
    return only_model(home)


def saved_each_round(home: Path, rounds: int) -> Path:
    """A model that was stopped after every round."""
    for number in range(1, rounds + 1):
        trained(home, number)
    return only_model(home)


def evaluations(model: Path) -> dict[int, Evaluated]:
    return {e.round: e for e in read_only(model / "journal.db", ("evaluation",)) if isinstance(e, Evaluated)}


def told(model: Path) -> list[int]:
    return [e.round for e in read_only(model / "journal.db", ("round",)) if isinstance(e, RoundFinished)]


def engine_files(model: Path, rounds: int) -> set[str]:
    return {path.name for path in (model / "checkpoints" / f"round-{rounds:06d}" / "engine").iterdir()}


def test_the_verb_puts_older_weights_in_place_and_that_can_be_taken_back(tmp_path: Path) -> None:
    """A step of its own: no optimizer, the same figures told again, the state before kept, training goes on from there."""
    model = saved_each_round(tmp_path, 3)
    before = evaluations(model)
    done = sapo(tmp_path, "rollback", "--to", "1")
    assert done.returncode == 0, done.stderr
    assert "has the weights of checkpoint 1 again (1 round); they are checkpoint 4 now" in done.stdout
    assert "--to 3" in done.stdout
    one, back, three = (read_state(model / "checkpoints" / f"round-{n:06d}") for n in (1, 4, 3))
    assert (back.weights, back.parent, back.rounds_done) == (one.weights, one.weights, 4)
    assert (back.reason, back.restored, back.rollbacks) == ("rollback", 1, 0)
    assert back.weights != three.weights
    assert engine_files(model, 4) == {"fake.safetensors", "fake.json"}, "no optimizer"
    assert (evaluations(model)[4].pass_at_1, evaluations(model)[4].greedy) == (before[1].pass_at_1, before[1].greedy)
    held_out = history.load_history(model).held_out
    assert held_out is not None
    assert (held_out.round, held_out.pass_at_1) == (4, before[1].pass_at_1)
    (line,) = [e for e in read_only(model / "journal.db", ("log",)) if isinstance(e, LogLine) and "Back at" in e.text]
    assert "checkpoint 3" in line.text

    assert sapo(tmp_path, "rollback", "--to", "3").returncode == 0
    assert read_state(model / "checkpoints" / "round-000005").weights == three.weights
    assert [e.round for e in history.load_history(model).undone] == [4], "what was undone first leads here again"

    trained(tmp_path, 4)
    assert told(model) == [0, 1, 2, 5], "a fourth round in the weights; the steps back take numbers, and train nothing"
    assert on_disk(model).done == 6
    assert [link.restored for link in chain(model) if link.restored >= 0] == [1, 3]
    report = check_journal(model / "journal.db")
    assert report.sound
    assert report.missing == 0
    held_out = history.load_history(model).held_out
    assert held_out is not None
    assert held_out.round == 6


def test_without_a_round_the_verb_lists_what_is_kept_and_which_is_best(tmp_path: Path) -> None:
    model = saved_each_round(tmp_path, 2)
    listed = sapo(tmp_path, "rollback", "--json")
    rows = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert [row["current"] for row in rows] == [False, False, True]
    assert rows[0]["reason"] == "start"
    found = evaluations(model)
    best = max(found, key=lambda number: (found[number].pass_at_1, number))
    assert [row["round"] for row in rows if row["best"]] == [best]
    assert sum(row["best_greedy"] for row in rows) == 1
    table = sapo(tmp_path, "rollback").stdout
    assert "before training" in table
    assert f"{100 * found[0].pass_at_1:.1f} %" in table
    assert "sapo-desktop rollback" in table
    for word, what in (("7", "It has these: 0, 1, 2"), ("soon", "It has these: 0, 1, 2"), ("2", "has now")):
        refused = sapo(tmp_path, "rollback", "--to", word)
        assert refused.returncode != 0
        assert what in refused.stderr
    assert on_disk(model).saved == 2, "nothing was changed"


def test_best_is_the_kept_state_with_the_best_held_out_result(tmp_path: Path) -> None:
    """The figures of the journal decide, at each temperature its own."""
    model = saved_each_round(tmp_path, 2)
    rows = [json.loads(line) for line in sapo(tmp_path, "rollback", "--json").stdout.splitlines()]
    for word, field in (("best", "best"), ("best-greedy", "best_greedy")):
        (wanted,) = [row for row in rows if row[field]]
        done = sapo(tmp_path, "rollback", "--to", word, "--json")
        if wanted["current"]:
            assert "Nothing was done" in done.stderr
        else:
            assert json.loads(done.stdout)["restored"] == wanted["round"]
        rows = [json.loads(line) for line in sapo(tmp_path, "rollback", "--json").stdout.splitlines()]
    assert on_disk(model).saved >= 2


async def test_rounds_that_are_in_the_log_only_are_redone_first(tmp_path: Path) -> None:
    """After kill -9 the verb changes nothing, and says what to do; after a start and a stop it works."""
    async with node(tmp_path, *FAKE, "--model", "fake:0.002") as (client, process):
        await reaches(client, ("round",), lambda e: isinstance(e, RoundFinished) and e.round >= 2)
        process.send_signal(signal.SIGKILL)
        process.wait()
    model = only_model(tmp_path)
    found = on_disk(model)
    assert found.logged > 0
    refused = await asyncio.to_thread(sapo, tmp_path, "rollback", "--to", "0")
    assert refused.returncode == 1
    assert "Start it once" in refused.stderr
    assert on_disk(model) == found
    async with node(tmp_path, *FAKE, "--model", "fake:0.002") as (client, _):
        await reaches(client, ("run_started",), lambda e: True, after=(await client.status()).seq)
    done = await asyncio.to_thread(sapo, tmp_path, "rollback", "--to", "0")
    assert done.returncode == 0, done.stderr
    assert weights(model, on_disk(model).saved) == weights(model, 0)


async def test_a_running_node_goes_back_at_once_and_trains_on_from_there(tmp_path: Path) -> None:
    """In the middle of a round that takes minutes, by the verb; the state before is saved first, and a wrong round is refused."""
    async with node(tmp_path, *FAKE, "--model", "fake:0.002") as (client, _):
        await reaches(client, ("round",), lambda e: isinstance(e, RoundFinished) and e.round >= 1)
        await reaches(client, (), lambda e: isinstance(e, Phase) and e.phase == "generate")
        with pytest.raises(ControlError, match="There is no checkpoint 999"):
            await client.post("rollback", round=999)
        done = await asyncio.to_thread(sapo, tmp_path, "rollback", "--to", "0")
        assert done.returncode == 0, done.stderr
        model = only_model(tmp_path)
        (back,) = [link for link in chain(model) if link.restored >= 0]
        assert back.restored == 0
        await reaches(client, ("round",), lambda e: isinstance(e, RoundFinished) and e.round >= back.round + 1)
        assert evaluations(model)[back.round].pass_at_1 == evaluations(model)[0].pass_at_1
    links = chain(model)
    assert back.round - 1 in [link.round for link in links], "the state before can be gone back to"
    assert back.round - 1 not in told(model), "the step trains nothing"
    assert len(told(model)) == len(set(told(model)))
    assert check_journal(model / "journal.db").missing == 0
    assert on_disk(model).done == max(told(model)) + 1


async def test_a_paused_node_goes_back_without_going_on(tmp_path: Path) -> None:
    async with node(tmp_path, *FAKE, "--model", "fake:0.002") as (client, _):
        await reaches(client, ("round",), lambda e: isinstance(e, RoundFinished))
        await client.post("pause")
        await reaches(client, ("state",), lambda e: getattr(e, "state", "") == "paused")
        status = await client.post("rollback", round=0)
        assert status.state == "paused"
        (back,) = [link for link in chain(only_model(tmp_path)) if link.restored >= 0]
        assert status.round == back.round


async def test_the_rollouts_of_the_round_in_flight_are_left_out(tmp_path: Path) -> None:
    """The other weights sampled them."""
    engine = CountingEngine()
    made = make(tmp_path, engine, CONFIG)
    asked: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()

    def ask() -> None:
        asked.append(asyncio.ensure_future(made.go_back(0)))

    def step() -> None:
        if made.rounds_done == 1 and not asked:
            engine._before_step = lambda: None
            loop.call_soon_threadsafe(ask)

    engine._before_step = step
    await made.run()
    await asked[0]
    assert told(tmp_path) == [0, 2, 3], "two rounds were planned, and the one that was undone is not in the weights"
    assert not (tmp_path / resume_log.NAME).exists()
    assert read_state(tmp_path / "checkpoints" / "round-000002").restored == 0


KILLED = """
import os, signal, sys
from pathlib import Path
from sapo_swarm.config import RunConfig
from sapo_swarm.node import going_back
from sapo_swarm.node.checkpoints import CheckpointStore

def die(*_): os.kill(os.getpid(), signal.SIGKILL)

where = sys.argv[2]
if where == "before the rename":
    CheckpointStore._put = die
else:
    going_back.resume_log.delete_in_flight = die
going_back.go_back_on_disk(Path(sys.argv[1]), RunConfig(), 1, "m")
"""


@pytest.mark.parametrize("where", ["before the rename", "after the rename"])
def test_a_kill_leaves_the_model_as_it_was_or_as_it_is_afterwards(tmp_path: Path, where: str) -> None:
    model = saved_each_round(tmp_path, 3)
    (model / resume_log.NAME).write_bytes(b"rollouts of other weights")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(model), where], env=environment(tmp_path), capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert on_disk(model).saved == (3 if where == "before the rename" else 4)
    if where == "before the rename":
        assert sapo(tmp_path, "rollback", "--to", "1").returncode == 0
    trained(tmp_path, 5)
    (back,) = [e for e in chain(model) if e.restored >= 0]
    assert (back.round, back.restored) == (4, 1)
    assert evaluations(model)[4].pass_at_1 == evaluations(model)[1].pass_at_1
    assert told(model) == [0, 1, 2, *range(4, 8)], "one round was in the weights, and five were asked for"
    assert not list((model / "checkpoints").glob(".partial-*"))


async def test_updates_after_going_back_are_redone_bit_by_bit_after_a_kill(tmp_path: Path) -> None:
    """The optimizer was reset when the node went back, and is reset when the rounds after it are redone: nothing to warn of."""
    slow, home, twin = ("--model", "fake:0.002"), tmp_path / "home", tmp_path / "twin"
    await asyncio.to_thread(trained, home, 1, *slow)
    assert (await asyncio.to_thread(sapo, home, "rollback", "--to", "0")).returncode == 0
    shutil.copytree(home, twin, ignore=shutil.ignore_patterns("*.sock"))
    async with node(home, *FAKE, *slow) as (client, process):
        await reaches(client, ("round",), lambda e: isinstance(e, RoundFinished) and e.round >= 3)
        process.send_signal(signal.SIGKILL)
        process.wait()
    model = only_model(home)
    found = on_disk(model)
    assert found.logged > 1
    for place in (home, twin):
        await asyncio.to_thread(trained, place, found.done - 2, *slow)  # but the one undone, and the step back
    assert weights(only_model(twin), found.done) == weights(model, found.done)
    lines = [e.text for e in read_only(model / "journal.db", ("log",)) if isinstance(e, LogLine)]
    assert [text for text in lines if "redone from kept rollouts" in text]
    assert not [text for text in lines if "no optimizer state" in text]


def test_links_tell_who_went_back(tmp_path: Path) -> None:
    """A step by a person is told apart from the tripwire's, which has no round of its own."""
    model = saved_each_round(tmp_path, 1)
    assert sapo(tmp_path, "rollback", "--to", "0").returncode == 0
    links = [e for e in read_only(model / "journal.db", ("checkpoint",)) if isinstance(e, CheckpointSaved)]
    assert [(link.reason, link.restored) for link in links if link.reason == "rollback"] == [("rollback", 0)]
