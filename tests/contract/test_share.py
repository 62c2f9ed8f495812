"""Half the threads compute the same: fewer shards at a time, the same shards."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from sapo_backends.torch_backend.runtime import ShardWorkers  # noqa: E402


def test_with_half_the_threads_half_as_many_shards_compute_at_a_time_and_all_come_back_in_order() -> None:
    workers, running, most = ShardWorkers(4, 1000, torch.device("cpu")), 0, 0
    lock, together = threading.Lock(), threading.Event()

    def work(item: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == expected:
                together.set()
        together.wait(10)
        with lock:
            running -= 1
        return item * item

    before = torch.get_num_threads()
    try:
        for share, expected in ((1.0, 4), (0.5, 2), (0.1, 1)):
            most, together = 0, threading.Event()
            workers.use_share(share)
            assert workers.map(work, range(8)) == [n * n for n in range(8)]
            assert most == expected
    finally:
        workers.close()
        torch.set_num_threads(before)
