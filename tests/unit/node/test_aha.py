"""The Aha trail: told once by the node, kept by the journal whatever is thinned or taken back, followed by a pure function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.support.records import evaluation, finished, group_of, opened

from sapo_swarm.events import (
    Event,
    FirstSuccess,
    GroupRecorded,
    RoundFinished,
    SwarmUpdated,
)
from sapo_swarm.node.aha_trail import KINDS, AhaTrail, FirstSuccesses, trails_of
from sapo_swarm.node.journal import Journal
from sapo_swarm.node.journal_thinning import JournalDownsampler
from sapo_swarm.types import Group, Peer, Rollout

ADA = "a" * 26


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "journal.db")) as opened_journal:
        yield opened_journal


def taught(round_: int, groups: int = 1) -> RoundFinished:
    return msgspec.structs.replace(finished(round_), external_groups=groups, taught={"bf": groups})


def of_ada(step: int, reward: float = 1.0, advantages: tuple[float, ...] = ()) -> Group:
    rollouts = (Rollout("x", "stop", reward), Rollout("y", "stop", 0.0))
    question = group_of(step, 5).group.question
    return Group(question, rollouts, "external", ADA, "m", advantages, step)


def swarm(name: str) -> SwarmUpdated:
    peer = Peer(node=ADA, name=name, model="m", groups=1, share=0.5, uptake=0, seen_s=0.0)
    return SwarmUpdated(
        coordinator="c",
        connected=True,
        sentence="",
        window=60.0,
        share=0.5,
        uptake=0,
        external_share=0.0,
        nodes=2,
        rounds_per_s=1.0,
        made=0,
        accepted=0,
        rejected={},
        refused={},
        peers=(peer,),
    )


def play(firsts: FirstSuccesses, journal: Journal, rounds: list[tuple[list[GroupRecorded], list[Group], int]]) -> None:
    """Rounds from the first one on: local groups, what came in, groups of others with a success that were trained on."""
    for number, (groups, received, count) in enumerate(rounds):
        done = taught(number, count) if count else finished(number)
        events = firsts.told([*groups, done], received)
        journal.append(events)
        firsts.published(events)


STORY: list[tuple[list[GroupRecorded], list[Group], int]] = [
    ([group_of(0, 0)], [], 0),
    ([], [of_ada(7, reward=0.5)], 0),
    ([], [of_ada(8), of_ada(9)], 0),
    ([], [of_ada(8), of_ada(9)], 1),
    ([], [], 0),
    ([], [of_ada(12)], 2),
    ([group_of(6, 0, first=True)], [of_ada(13)], 1),
    ([group_of(7, 0)], [], 1),
]
"""In round 2 (from 0) Ada's first success comes in, rounds 3 and 5 train on three groups, round 6 solves one itself."""


def test_who_was_first_what_was_trained_on_before_and_when_it_was_solved_here(journal: Journal) -> None:
    play(FirstSuccesses(), journal, STORY)
    events = journal.read()
    kinds = [(e.round, e.node, e.step, e.taught) for e in events if isinstance(e, FirstSuccess)]
    assert kinds == [(2, ADA, 8, 0), (6, "", 0, 3)], "each once"
    trail = trails_of(events)["bf"]
    assert trail.received is not None
    assert trail.solved is not None
    assert (trail.received.round, trail.solved.round) == (2, 6)
    assert (trail.taught, trail.since, trail.until) == (3, 3, 5), "what came in the round itself came after it"
    assert not trail.first_here


def test_the_trail_is_the_same_after_groups_went_and_rounds_stand_in_blocks(journal: Journal) -> None:
    play(FirstSuccesses(), journal, STORY)
    before = trails_of(journal.read())["bf"]
    journal.append([taught(number) for number in range(len(STORY), 6000)])
    thinning = JournalDownsampler(journal)
    while thinning.rounds(5999) or thinning.groups(5000) or thinning.others():
        continue
    rounds = [e for e in journal.read(kinds=("round",)) if isinstance(e, RoundFinished)]
    assert max(r.covers for r in rounds) > 1
    assert sum(r.taught.get("bf", 0) for r in rounds) == 5 + 6000 - len(STORY), "sums of blocks are whole"
    after = trails_of(journal.read())["bf"]
    assert msgspec.to_builtins(after) == msgspec.to_builtins(before)


def test_a_task_that_is_not_solved_here_yet_keeps_its_count_through_blocks_and_restarts(journal: Journal) -> None:
    play(FirstSuccesses(), journal, STORY[:6])
    journal.append([taught(number) for number in range(6, 5000)])
    thinning = JournalDownsampler(journal)
    while thinning.rounds(4999):
        continue
    again = FirstSuccesses()
    again.open(journal.read(kinds=KINDS))
    solved = again.told([group_of(5000, 0, first=True), finished(5000)], [of_ada(1)])
    (own,) = (e for e in solved if isinstance(e, FirstSuccess))
    assert (own.node, own.taught, own.until) == ("", 3 + 4994, 4999)
    assert 2 <= own.since <= 3, "of a block at most from when the first success came in"


def test_what_is_taken_back_is_told_again(journal: Journal) -> None:
    play(FirstSuccesses(), journal, STORY)
    journal.roll_back(6)
    left = trails_of(journal.read())["bf"]
    assert (left.solved, left.taught, left.until) == (None, 3, 5)
    firsts = FirstSuccesses()
    firsts.open(journal.read(kinds=KINDS))
    events = firsts.told([group_of(6, 1, first=True), finished(6)], [of_ada(12)])
    assert [e.round for e in events if isinstance(e, FirstSuccess)] == [6], (
        "the success of Ada stayed, the own one went"
    )
    journal.roll_back(2)
    assert trails_of(journal.read()) == {}


def test_a_watcher_of_the_live_node_drops_what_a_restart_took_back() -> None:
    own = FirstSuccess(round=8, task="bf", taught=2, since=3, until=7)
    events: list[Event] = [FirstSuccess(round=2, task="bf", node=ADA), taught(3), taught(7), own]
    trail = trails_of([*events, opened(5)])["bf"]
    assert (trail.solved, trail.since, trail.until) == (None, 3, 4)
    assert trails_of([*events, opened(1)]) == {}


def test_a_success_of_the_same_round_came_after_the_own_one() -> None:
    trail = trails_of([FirstSuccess(round=3, task="bf"), FirstSuccess(round=3, task="bf", node=ADA)])["bf"]
    assert trail.first_here


def test_only_a_success_that_was_made_more_likely_counts_as_trained_on() -> None:
    assert of_ada(1, advantages=(1.0, -1.0)).teaches
    assert not of_ada(1, reward=0.5, advantages=(1.0, -1.0)).teaches
    assert not of_ada(1).teaches, "not in a batch"
    assert not of_ada(1, advantages=(0.0, 0.0)).teaches


def test_names_come_from_the_leaderboard_and_stay_when_the_node_is_gone() -> None:
    first = FirstSuccess(round=2, task="bf", node=ADA)
    gone = msgspec.structs.replace(swarm("x"), peers=())
    assert trails_of([first, swarm("Ada"), gone, swarm("Eve")])["bf"].name == "Ada"
    assert trails_of([swarm("Ada"), evaluation(1)]) == {}
    assert AhaTrail("bf").name == ""
