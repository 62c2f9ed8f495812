"""The pipes to a worker process: what interrupts the reading of a reply never gives it to another question."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import pytest

from sapo_swarm.scoring import sandbox
from sapo_swarm.scoring.messages import ScoringJob, read_frame
from sapo_swarm.scoring.scorer import WorkerProcess
from sapo_swarm.tasks.questions import generate_entry
from sapo_swarm.types import TaskRef


def refs(first: int) -> list[TaskRef]:
    return [TaskRef("basic_arithmetic", "starter", seed) for seed in range(first, first + 8)]


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    found = WorkerProcess(sandbox.MEMORY_BYTES)
    yield found
    found.close()


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("frame", [1, 4], ids=["greeting", "reply"])
def test_whatever_interrupts_the_reading_of_a_reply_the_next_questions_get_their_own(
    worker: WorkerProcess, error: type[BaseException], frame: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = 0

    def interrupted(pipe: BinaryIO) -> bytes:
        nonlocal frames
        frames += 1
        if frames == frame:
            raise error
        return read_frame(pipe)

    monkeypatch.setattr("sapo_swarm.scoring.scorer.read_frame", interrupted)
    with pytest.raises(error):
        worker.run([ScoringJob(ref) for ref in refs(0)])
    assert worker.pid is None
    asked = refs(100)
    prompts = [reply.prompt for reply in worker.run([ScoringJob(ref) for ref in asked])]
    assert prompts == [generate_entry(ref)[1]["question"] for ref in asked]
