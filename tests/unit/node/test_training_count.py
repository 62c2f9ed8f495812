"""How far a model was trained, counted from its journal: steps of examples and rounds of practice separately."""

from __future__ import annotations

from msgspec.structs import replace
from tests.support.scripted_feed import SILO

from sapo_swarm.events import CheckpointSaved, Event, ExternalSwitched, RoundFinished
from sapo_swarm.node.training_count import TrainingCount, TrainingCounts

ROUND = next(event for event in SILO if isinstance(event, RoundFinished))
STARTED = SILO[0]


def trained(first: int, end: int, examples: int = 0, covers: int = 1) -> list[Event]:
    """The journal's rounds from the running number `first` to `end`."""
    return [
        replace(ROUND, round=number + covers - 1, covers=covers, examples=examples)
        for number in range(first, end, covers)
    ]


def back(number: int, to: int) -> CheckpointSaved:
    """Going back to the checkpoint `to`, as the running number `number`."""
    return CheckpointSaved(
        round=number, weights="w", parent="p", optimizer=False, bytes=1, reason="rollback", restored=to
    )


def test_steps_and_rounds_are_counted_separately_and_named_by_what_came_last() -> None:
    counts = TrainingCounts.of([*trained(0, 19, examples=8), *trained(19, 31)])
    assert counts.now == TrainingCount(19, 12)
    assert str(counts.now) == "19 steps of examples and 12 rounds of practice"
    assert counts.now.when == "after round 12"
    assert [counts.at(n).when for n in (0, 1, 19, 20)] == [
        "before training",
        "after step 1 of examples",
        "after step 19 of examples",
        "after round 1",
    ]
    assert str(TrainingCounts.of(trained(0, 1)).now) == "1 round", "without examples there is one kind only"


def test_a_round_in_flight_after_the_examples_is_the_first_of_practice() -> None:
    """Its rollouts are published before it is done."""
    counts = TrainingCounts.of(trained(0, 19, examples=8))
    assert counts.practice_round(19) == 1
    assert TrainingCounts.of([*trained(0, 19, examples=8), *trained(19, 22)]).practice_round(20) == 2


def test_what_was_rolled_back_does_not_count_and_its_number_still_says_what_was_in_it() -> None:
    counts = TrainingCounts.of([*trained(0, 19, 8), *trained(19, 33), back(34, 22), *trained(34, 36)])
    assert counts.now == TrainingCount(19, 5), "three rounds before, the step back, two after it"
    assert counts.undone == TrainingCount(0, 11)
    assert (counts.at(33), counts.at(34)) == (TrainingCount(19, 14), TrainingCount(19, 3))
    again = TrainingCounts.of([*trained(0, 5), back(6, 2), back(7, 5)])
    assert again.now == TrainingCount(0, 5), "going back can be undone the same way"
    assert again.undone == TrainingCount()


def test_a_checkpoint_among_the_examples_is_gone_back_to_and_more_examples_follow() -> None:
    counts = TrainingCounts.of(
        [*trained(0, 19, 8), *trained(19, 22), back(23, 10), *trained(23, 25, 8), *trained(25, 26)]
    )
    assert counts.now == TrainingCount(12, 1)
    assert counts.undone == TrainingCount(9, 3)


def test_the_tripwire_puts_back_the_count_of_the_weights_that_it_restored() -> None:
    trip = ExternalSwitched(round=20, taking=False, by="tripwire", sentence="", restored=12)
    assert TrainingCounts.of([*trained(0, 20), trip, *trained(20, 23)]).now == TrainingCount(0, 15)
    cleared = replace(trip, taking=True)
    assert TrainingCounts.of([*trained(0, 20), cleared]).now == TrainingCount(0, 20)


def test_rounds_that_a_killed_node_does_again_count_once() -> None:
    counts = TrainingCounts.of([*trained(0, 4, 8), *trained(4, 9), *trained(6, 8)])
    assert counts.now == TrainingCount(4, 4)
    assert counts.undone == TrainingCount()
    lost = TrainingCounts.of([*trained(0, 5), back(6, 2), *trained(5, 6)])
    assert lost.now == TrainingCount(0, 6), "a step back that did not reach the disk was no step back"


def test_old_rounds_in_blocks_count_as_many_as_they_stand_for() -> None:
    assert TrainingCounts.of([*trained(0, 16, 8, covers=8), *trained(16, 40, covers=8)]).now == TrainingCount(16, 24)


def test_a_stream_that_begins_in_the_middle_starts_with_what_the_node_says() -> None:
    opened = replace(STARTED, round=30, examples_rounds=19)
    counts = TrainingCounts.of([opened, *trained(30, 32)])
    assert counts.now == TrainingCount(19, 13)
    killed = TrainingCounts.of([*trained(0, 9), replace(STARTED, round=7), *trained(7, 8)])
    assert killed.now == TrainingCount(0, 8), "what had not reached the disk is taken back"
