"""Small models run faster with one thread per shard of the work than with all threads inside each operation.

An operation of a 5M-parameter model takes microseconds; splitting it means two barriers each time, and on a busy
machine a barrier waits for the scheduler (measured: 20 times slower). A shard meets the others only at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import torch

from sapo_backends.common import hardware

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers:
    """count threads, each with its own shard; count 1 computes in the caller's thread with all the threads inside."""

    def __init__(self, threads: int, parameters: int, device: torch.device) -> None:
        sharded = device.type == "cpu" and parameters < hardware.SHARDED_BELOW
        self.count = threads if sharded else 1
        if device.type == "cpu":
            torch.set_num_threads(1 if sharded else threads)
        self._pool = ThreadPoolExecutor(self.count, thread_name_prefix="shard") if self.count > 1 else None

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Results in the order of items. All shards end before an error of one is raised."""
        if self._pool is None or len(items) < 2:
            return [work(item) for item in items]
        futures = [self._pool.submit(work, item) for item in items]
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()


def shares(total: int, count: int) -> list[range]:
    """range(total) cut into at most count consecutive parts of nearly equal size, none empty."""
    edges = [total * i // count for i in range(count + 1)]
    return [range(a, b) for a, b in pairwise(edges) if b > a]
