"""A node alone that learns again from its own successes: the settings reach the rounds, and a restart changes nothing."""

from __future__ import annotations

from pathlib import Path

from tests.functional.node.test_node import only_run, weights
from tests.support import node_process
from tests.support.node_process import sapo

from sapo_swarm.events import RoundFinished
from sapo_swarm.node.storage.journal import read_only

ALONE = (*node_process.FAKE, "--local-groups", "8", "--algorithm", "maxrl", "--curriculum", "tasks")
REPLAY = ("--replay-groups", "3", "--replay-half-life", "2")


def test_an_interrupted_run_with_replay_and_a_curriculum_ends_with_the_same_weights(tmp_path: Path) -> None:
    sapo(tmp_path / "straight", "node", *ALONE, *REPLAY, "--rounds", "6")
    sapo(tmp_path / "broken", "node", *ALONE, *REPLAY, "--rounds", "3")
    done = sapo(tmp_path / "broken", "node", *ALONE, *REPLAY, "--rounds", "6")
    assert "goes on with round 4" in done.stdout
    straight, broken = only_run(tmp_path / "straight"), only_run(tmp_path / "broken")
    assert weights(straight, 6) == weights(broken, 6)
    rounds = [e for e in read_only(straight / "journal.db") if isinstance(e, RoundFinished)]
    assert max(e.figures.get("replayed", 0.0) for e in rounds) > 0
    assert "replayed" not in rounds[0].figures, "there is nothing to replay in the first round"
