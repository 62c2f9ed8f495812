"""What helps one person alone, in the lab: replay of own successes, MaxRL, difficulty-adaptive sampling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.lab_runs import Play, Stopped, experiment, learning, play, rounds_of, scorer

from sapo_backends.base import LoadRequest, TrainSample, UpdateStats
from sapo_backends.fake import FakeEngine
from sapo_lab.running.run import run_arm
from sapo_swarm.scoring.scorer import Scorer

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["play", "scorer"]


async def test_a_node_alone_replays_its_successes_and_samples_by_difficulty_and_resumes_exactly(
    play: Play, tmp_path: Path
) -> None:
    arm = {"name": "a", "external_groups": 0, "replay_groups": 2, "replay_half_life": 2, "curriculum": "tasks"}
    arm |= {"algorithm": "maxrl"}
    found = experiment([arm], {"rounds": 8})
    await play(found, tmp_path / "whole")
    with pytest.raises(Stopped):
        await play(found, tmp_path / "broken", 5)
    await play(found, tmp_path / "broken")
    for node in range(4):
        assert learning(tmp_path / "broken", node) == learning(tmp_path / "whole", node)
    events = [e for node in range(4) for e in rounds_of(tmp_path / "whole", node).values()]
    replayed = [e for e in events if e.figures["replayed"]]
    assert replayed
    assert max(e.figures["replayed"] for e in replayed) <= 2
    assert all(e.external_groups == 0 and e.reward_batch == e.reward_local for e in events), "replay is in no reward"
    assert any(e.tokens_trained > e.tokens_generated for e in replayed), "but it is trained on"


async def test_of_replayed_groups_only_positive_advantages_are_trained_on(scorer: Scorer, tmp_path: Path) -> None:
    batches: list[Sequence[TrainSample]] = []

    class Recording(FakeEngine):
        """The engine, and what it was given."""

        def update(self, batch: Sequence[TrainSample], *rest: Any, **named: Any) -> UpdateStats:
            batches.append(batch)
            return super().update(batch, *rest, **named)

    arm = {"name": "a", "external_groups": 0, "replay_groups": 2}
    found = experiment([arm], {"rounds": 12, "local_groups": 6}, nodes=1)
    request = LoadRequest(model="fake", method="full")
    await run_arm(found, found.arm("a"), 1, tmp_path, scorer, lambda config: Recording(request), lambda progress: None)
    replayed = [sample for batch in batches for sample in batch[6 * 4 :]]  # after the round's own 6 groups of 4
    assert replayed
    assert all(sample.advantage > 0 and not sample.external for sample in replayed)
