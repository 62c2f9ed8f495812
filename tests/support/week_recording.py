"""A run of any length as its journal tells it: old rounds in blocks, evaluations, pauses. The figures are invented."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
from tests.support.records import evaluation, finished, group_of, opened

from sapo_swarm.events import Event, RoundFinished, StateChanged
from sapo_swarm.node.journal_thinning import DENSE, merge_boundary, merge_rounds

START = 1_790_000_000.0
DAY_S = 86_400.0


def blocks(rounds: int) -> Iterator[tuple[int, int]]:
    """First round and size of each record of the journal's rule: the first alone, one by one the newest, wider the older."""
    yield 0, 1
    first = 1
    while first < rounds:
        age = rounds - first
        size = 2 << (age // DENSE).bit_length()
        while size > 1 and (first % size or first + size > 1 + merge_boundary(size.bit_length() - 1, rounds - 1)):
            size //= 2
        yield first, size
        first += size


def reward(number: int, rounds: int) -> float:
    """Rises over the run, with noise that follows from the number."""
    return 0.1 + 0.4 * number / rounds + 0.05 * math.sin(number * 12.9898)


def week(rounds: int = 400_000, days: float = 7.0, pauses: int = 14, groups: int = 1600) -> list[Event]:
    """Events in order of time. Half of the time is pauses of equal length, at even distances."""
    worked = days * DAY_S / 2
    idle = days * DAY_S / 2 / max(pauses, 1)
    round_s = worked / rounds
    every = max(rounds // (pauses + 1), 1)

    def time_of(number: int) -> float:
        return START + (number + 1) * round_s + min(number // every, pauses) * idle

    events: list[Event] = [msgspec.structs.replace(opened(0), time=START)]
    gap = 0
    for first, size in blocks(rounds):
        last = first + size - 1
        while gap < pauses and (gap + 1) * every <= last:
            gap += 1
            stopped = time_of(gap * every - 1)
            events.append(StateChanged(time=stopped, state="paused", sentence="Paused by you"))
        parts = [
            finished(number, reward(number, rounds), round_s / 1.5) for number in {first, (first + last) // 2, last}
        ]
        event = merge_rounds(sorted(parts, key=lambda part: part.round)) if size > 1 else parts[0]
        scale = {phase: seconds * size / len(parts) for phase, seconds in event.seconds.items()}
        events.append(msgspec.structs.replace(event, time=time_of(last), covers=size, seconds=scale))
        if (last + 1) % max(rounds // 800, 25) < size:
            measured = evaluation(last + 1, reward(last, rounds))
            middle = measured.pass_at_1
            events.append(
                msgspec.structs.replace(
                    measured, time=time_of(last), low=middle - 0.05, high=middle + 0.05, seconds=0.0
                )
            )
    newest = [event for event in events if isinstance(event, RoundFinished)][-1]
    for number in range(groups):
        group = group_of(rounds - 1 - (groups - number) // 8, number % 8)
        events.append(msgspec.structs.replace(group, time=newest.time))
    return events
