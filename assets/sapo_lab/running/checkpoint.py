"""The state of a whole swarm on disk, written beside its final name and renamed: it continues after a kill at any point.

checkpoint/rounds-000050/   node-0/ … (what Engine.save writes)  state.json
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sapo_backends.errors import CheckpointCorrupt
from sapo_lab.running.nodes import LabNode, NodeState
from sapo_lab.running.pool import SharedGroup
from sapo_swarm.types import UNREADABLE


class SwarmState(msgspec.Struct, frozen=True):
    """rounds_done: rounds whose updates are in the engines. pool: what later rounds may still sample."""

    rounds_done: int
    nodes: tuple[NodeState, ...]
    pool: tuple[SharedGroup, ...]
    wall_s: float
    format: int = 1


def save_swarm_checkpoint(
    folder: Path, nodes: Sequence[LabNode], rounds_done: int, pool: tuple[SharedGroup, ...], wall_s: float
) -> None:
    """Replace the checkpoint. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    partial, done = folder / ".partial", folder / f"rounds-{rounds_done:06d}"
    shutil.rmtree(partial, ignore_errors=True)
    for node in nodes:
        (partial / node.key).mkdir(parents=True)
        node.host.engine.save(partial / node.key)
    state = SwarmState(rounds_done, tuple(node.state() for node in nodes), pool, wall_s)
    (partial / "state.json").write_bytes(msgspec.json.encode(state))
    shutil.rmtree(done, ignore_errors=True)
    partial.rename(done)
    for older in folder.glob("rounds-*"):
        if older != done:
            shutil.rmtree(older, ignore_errors=True)


def restore_swarm_checkpoint(folder: Path, nodes: Sequence[LabNode]) -> SwarmState | None:
    """Restore the nodes from the newest checkpoint; None without one. Raises CheckpointCorrupt."""
    paths = sorted(folder.glob("rounds-*"))
    if not paths:
        return None
    try:
        state = msgspec.json.decode((paths[-1] / "state.json").read_bytes(), type=SwarmState)
    except (OSError, *UNREADABLE) as error:
        raise CheckpointCorrupt(
            f"{paths[-1]} cannot be read ({error}). Delete {folder.parent} to start over."
        ) from error
    for node, mine in zip(nodes, state.nodes, strict=True):
        node.host.engine.restore(paths[-1] / node.key)
        node.restore(mine)
    return state
