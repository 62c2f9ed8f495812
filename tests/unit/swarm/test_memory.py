"""What a node remembers of its local groups is the same after a restart."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path

from sapo_swarm.config import RunConfig
from sapo_swarm.events import GroupRecorded
from sapo_swarm.node.journal import Journal
from sapo_swarm.node.round_phases import ReplayBuffer, restore_replay_buffer
from sapo_swarm.types import Group, Question, Rollout, Source, TaskRef

HASH = hashlib.sha256(b"q").hexdigest()
CONFIG = RunConfig(tasks=("bf",), replay_groups=3, replay_half_life=2, curriculum="tasks")


def group(number: int, successes: int, source: Source = "own") -> Group:
    rollouts = tuple(Rollout("<answer>1</answer>", "stop", float(i < successes), 3) for i in range(4))
    return Group(Question(TaskRef("bf", "paper", number), "q", HASH), rollouts, source)


def rounds() -> list[list[Group]]:
    return [[group(10 * number, number % 4), group(10 * number + 1, 1)] for number in range(30)]


def test_a_resumed_run_remembers_what_an_uninterrupted_one_does(tmp_path: Path) -> None:
    whole, journal = ReplayBuffer(), Journal(tmp_path / "journal.db")
    for number, groups in enumerate(rounds()):
        whole.observe(CONFIG, number, groups)
        recorded = [*groups, group(1000 + number, 2, "external")]
        journal.append([GroupRecorded(round=number, group=g, trained=True) for g in recorded])
    assert restore_replay_buffer(CONFIG, journal, 30) == whole
    assert min(entry.round for entry in whole.replay) > 0, "old successes are forgotten"
    journal.close()


def test_rounds_that_a_checkpoint_does_not_hold_are_not_remembered_and_none_counts_twice(tmp_path: Path) -> None:
    journal, expected = Journal(tmp_path / "journal.db"), ReplayBuffer()
    for number, groups in enumerate(rounds()[:6]):
        if number < 4:
            expected.observe(CONFIG, number, groups)
        journal.append([GroupRecorded(round=number, group=g, trained=True) for g in groups])
    journal.append([GroupRecorded(round=3, group=g, trained=True) for g in rounds()[3]])
    assert restore_replay_buffer(CONFIG, journal, 4) == expected
    journal.close()


def test_a_run_that_uses_neither_replay_nor_a_curriculum_remembers_nothing(tmp_path: Path) -> None:
    memory = ReplayBuffer()
    memory.observe(RunConfig(), 0, rounds()[1])
    with closing(Journal(tmp_path / "journal.db")) as journal:
        assert memory == ReplayBuffer() == restore_replay_buffer(RunConfig(), journal, 1)
