"""A model whose chat template opens its reasoning: as DeepSeek-R1's, for which run.thinking has no say."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tests.support.watched_node import CONFIG, CountingEngine, make

from sapo_backends.fake import FakeTokenizer
from sapo_swarm.events import Event, GroupRecorded, LogLine
from sapo_swarm.node.journal import read_only


class ReasoningTokenizer(FakeTokenizer):
    @property
    def opens_reasoning(self) -> bool:
        return True


async def events(folder: Path, tokenizer: FakeTokenizer) -> tuple[list[Event], str]:
    """Of a node whose thinking is off, and what its run took that for."""
    engine = CountingEngine()
    engine.tokenizer = tokenizer
    node = make(folder, engine, msgspec.structs.replace(CONFIG, thinking="off"))
    await node.run()
    return list(read_only(folder / "journal.db")), node.config.thinking


def rewards(found: list[Event]) -> set[float]:
    return {r.reward for e in found if isinstance(e, GroupRecorded) for r in e.group.rollouts}


async def test_a_completion_that_never_leaves_the_reasoning_earns_nothing(tmp_path: Path) -> None:
    """And the person reads why thinking = off changes nothing, and that 96 tokens are few."""
    found, thinking = await events(tmp_path / "reasons", ReasoningTokenizer())
    said = " ".join(e.text for e in found if isinstance(e, LogLine))
    assert rewards(found) == {0.0}
    assert thinking == "on"
    assert "thinking = off has no effect" in said
    assert "start it with --max-new-tokens 1024" in said
    plain, thinking = await events(tmp_path / "answers", FakeTokenizer())
    assert max(rewards(plain)) == 1.0
    assert thinking == "off"
