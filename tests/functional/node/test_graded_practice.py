"""Practice on a task that grades answers itself: an adapter stays near the language of its base."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.own_tasks import library_in, write_folder
from tests.support.watched_node import CONFIG, make

from sapo_backends.base import LoadRequest
from sapo_backends.fake import FakeEngine
from sapo_swarm.events import RoundFinished
from sapo_swarm.node.journal import read_only

pytestmark = pytest.mark.timeout(120)
RULES = 'answer = ""\nextract = "whole"\n[[verifier]]\nkind = "rules"\nrules = "contains 7; at most 9 characters"\n'
GRADED = msgspec.structs.replace(CONFIG, tasks=("numbers",), rounds=5, learning_rate=0.5)


@pytest.fixture(autouse=True)
def _tasks(tmp_path: Path) -> Iterator[None]:
    rows = [{"question": f"Say number {n}."} for n in range(60)]
    write_folder(tmp_path / "tasks" / "numbers", RULES, rows[:40], rows[40:])
    with library_in(tmp_path / "tasks"):
        yield


async def drifts(folder: Path, **more: str) -> list[float]:
    """Of each round, in nats."""
    await make(folder, FakeEngine(LoadRequest("fake", **more)), GRADED).run()  # type: ignore[arg-type]
    events = read_only(folder / "journal.db", ("round",))
    return [event.figures.get("kl", 0.0) for event in events if isinstance(event, RoundFinished)]


async def test_a_round_says_how_far_the_policy_is_from_the_base(tmp_path: Path) -> None:
    first, *rest = await drifts(tmp_path / "run", method="lora")
    assert first == pytest.approx(0.0, abs=1e-6), "before the first update they are the same"
    assert max(rest) > 0.0


async def test_without_the_base_at_hand_nothing_is_measured_and_practice_goes_on(tmp_path: Path) -> None:
    assert await drifts(tmp_path / "run") == [0.0] * 5
