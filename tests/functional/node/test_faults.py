"""Faults in the style of the databases: writes that fail or are cut once, and files that lie damaged on the disk.

A sample of each, by a fixed seed; everything: `python tests/benchmarks/faults.py` and `python tests/fuzz/damage.py`.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from pathlib import Path

import msgspec
import pytest
from tests.benchmarks.faults import faults
from tests.fuzz import damage
from tests.support.model_folder import on_disk, weights
from tests.support.watched_node import CONFIG, CountingEngine, follow, make

from sapo_swarm.events import Evaluated, Event, FirstSuccess, GroupRecorded, Phase, StateChanged
from sapo_swarm.node.journal import read_only
from sapo_swarm.node.loop import Node
from sapo_swarm.node.resume_log import LoggedUpdate

TRIALS, PLACES = 8, 25
NO_COMPILER = "The shim that lets writes fail needs a C compiler. Fix: apt-get install gcc"


@pytest.mark.skipif(sys.platform != "linux", reason="the shim is preloaded, and finds files through /proc")
def test_a_write_that_fails_or_is_cut_loses_nothing_promised_and_says_one_sentence() -> None:
    """Journal, update log, checkpoints, records, settings, invites, keys, tasks, the coordinator's store: every write, fsync,
    rename and creation may meet a full disk, an I/O error, half of itself, or a kill."""
    if shutil.which("cc") is None:
        if os.environ.get("CI") == "true":
            pytest.fail(NO_COMPILER)
        pytest.skip(NO_COMPILER)
    said, findings = faults(TRIALS, seed=1)
    assert findings == 0, said


@pytest.mark.parametrize("kind", damage.KINDS, ids=lambda kind: kind.name)
def test_a_damaged_file_is_one_sentence_or_less_of_what_it_held(kind: damage.Kind) -> None:
    """Truncated, or one bit flipped: never a traceback, never something that was not written."""
    assert list(damage.findings(kind, PLACES, seed=1)) == []


GROUPS = msgspec.structs.replace(CONFIG, local_groups=64, group_size=4, tasks=("calendar_arithmetic",))


async def full_once(folder: Path, then: str) -> None:
    """The journal has no room for what the first round leaves; once the node is paused for that there is room, and `then` is
    asked."""
    node = make(folder, CountingEngine(), GROUPS)
    sentences: list[str] = []

    def pages(more: int) -> None:
        with node.journal._reading() as db:
            (count,) = db.execute("PRAGMA page_count").fetchone()
            db.execute(f"PRAGMA max_page_count={count + more}")

    def seen(event: Event) -> None:
        if isinstance(event, Phase) and event.phase == "update" and event.round == 0:
            pages(4)
        if isinstance(event, StateChanged) and event.state == "paused":
            sentences.append(event.sentence)
            pages(10**6)
            node.command(then)

    await follow(node, seen)
    assert len(sentences) == 1
    assert "full" in sentences[0]


def firsts(folder: Path) -> list[tuple[str, int, str]]:
    """Of which task, in which round, and by which event a first success is told."""
    found = read_only(folder / "journal.db", ("first_success", "group"))
    told = [(e.task, e.round, "told") for e in found if isinstance(e, FirstSuccess)]
    marked = [e for e in found if isinstance(e, GroupRecorded) and e.first_solved]
    return [*told, *((e.group.question.ref.dataset, e.round, "marked") for e in marked)]


@pytest.mark.parametrize("then", ["resume", "stop"])
async def test_a_round_that_the_journal_had_no_room_for_is_told_whole_afterwards(tmp_path: Path, then: str) -> None:
    await make(tmp_path / "calm", CountingEngine(), GROUPS).run()
    await full_once(tmp_path / "full", then)
    if then == "stop":
        assert on_disk(tmp_path / "full").told == [0]
        await make(tmp_path / "full", CountingEngine(), GROUPS).run()
    assert on_disk(tmp_path / "full").told == [0, 1]
    assert firsts(tmp_path / "calm")
    assert firsts(tmp_path / "full") == firsts(tmp_path / "calm")


def log_full_once(node: Node, round_number: int) -> None:
    """The log of updates has no room for this round's, once."""
    append, full = node.store.log.append, [OSError(errno.ENOSPC, "No space left on device")]

    def once(update: LoggedUpdate) -> None:
        if update.round == round_number and full:
            raise full.pop()
        append(update)

    node.store.log.append = once  # type: ignore[method-assign]


@pytest.mark.parametrize("then", ["stop", "evaluate"])
async def test_an_update_that_the_log_had_no_room_for_is_taken_once(tmp_path: Path, then: str) -> None:
    """A checkpoint and an evaluation, too, are of weights with that round."""
    config = msgspec.structs.replace(GROUPS, tasks=("basic_arithmetic",), rounds=3)
    await make(tmp_path / "calm", CountingEngine(), config).run()
    node = make(tmp_path / "full", CountingEngine(), config)
    log_full_once(node, 1)

    def seen(event: Event) -> None:
        if isinstance(event, StateChanged) and event.state == "paused":
            if then == "evaluate":
                node.request_evaluation(4)
            node.command("stop" if then == "stop" else "resume")

    await follow(node, seen)
    if then == "stop":
        await make(tmp_path / "full", CountingEngine(), config).run()
    evaluated = [
        e.round for e in read_only(tmp_path / "full" / "journal.db", ("evaluation",)) if isinstance(e, Evaluated)
    ]
    assert evaluated == ([2] if then == "evaluate" else [])
    assert on_disk(tmp_path / "full").told == [0, 1, 2]
    assert weights(tmp_path / "full", 3) == weights(tmp_path / "calm", 3)
