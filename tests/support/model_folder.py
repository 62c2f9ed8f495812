"""What lies in a model's folder, for tests that kill a node and look."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from sapo_swarm.events import CheckpointSaved, RoundFinished
from sapo_swarm.node.checkpoints import CheckpointStore, read_state
from sapo_swarm.node.journal import read_only
from sapo_swarm.node.resume_log import ResumeHeader, UpdateLog


@dataclass(frozen=True)
class OnDisk:
    """saved: rounds in the newest checkpoint. logged: rounds after it in the update log. told: rounds in the journal."""

    saved: int
    logged: int
    told: list[int]

    @property
    def done(self) -> int:
        """Rounds that the next start has."""
        return self.saved + self.logged


def on_disk(model: Path) -> OnDisk:
    """Fails when no checkpoint, or not the newest one, is intact."""
    found, warnings = CheckpointStore(model / "checkpoints", 10**6).newest_intact()
    assert found is not None, "no intact checkpoint"
    assert warnings == []
    state = found[1]
    logged = UpdateLog(model / "checkpoints").read(ResumeHeader(state.rounds_done, state.weights, state.rollbacks))
    told = [e.round for e in read_only(model / "journal.db", ("round",)) if isinstance(e, RoundFinished)]
    return OnDisk(state.rounds_done, len(logged), told)


def weights(model: Path, rounds: int) -> str:
    """One digest of everything that the engine saved after so many rounds."""
    folder = model / "checkpoints" / f"round-{rounds:06d}" / "engine"
    files = sorted(p for p in folder.iterdir() if p.is_file())
    return hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()


def chain(model: Path) -> list[CheckpointSaved]:
    """The hash chain of the model's history; fails where a link is missing or does not fit the files."""
    links = [e for e in read_only(model / "journal.db", ("checkpoint",)) if isinstance(e, CheckpointSaved)]
    parents = {""} | {link.weights for link in links}
    assert all(link.parent in parents for link in links)
    for link in links:
        folder = model / "checkpoints" / f"round-{link.round:06d}"
        if folder.exists() and link is [x for x in links if x.round == link.round][-1]:
            assert read_state(folder).weights == link.weights
    return links
