"""Checkpoints: a folder a round, written beside its final name and renamed, so that a kill never leaves half of one.

checkpoints/round-000012/   engine/ (weights or adapter, optimizer, RNG)  state.json (round, digests, events of the round)

The events of the round travel in the checkpoint too: if the process dies between the rename and the journal's commit,
resume appends them, and nothing but the round in flight is ever lost.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sapo_backends.base import CheckpointCorrupt, Engine

_NAME = re.compile(r"^round-(\d{6,})$")
MILESTONE = 50
"""Every so many rounds a checkpoint stays for good."""


class CheckpointState(msgspec.Struct, frozen=True):
    """rounds_done: rounds that are behind the weights. digests: SHA-256 of every file of engine/. rollbacks: times that
    the held-out tripwire had put older weights in their place (see node.guard)."""

    rounds_done: int
    model: str
    digests: dict[str, str]
    events: tuple[msgspec.Raw, ...] = ()
    solved: tuple[str, ...] = ()
    rollbacks: int = 0
    format: int = 1


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep
        self.pinned: int | None = None
        """Rounds of the checkpoint that stays however old it is: the best one."""
        folder.mkdir(parents=True, exist_ok=True)

    def complete(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        return sorted((p for p in self.folder.iterdir() if _NAME.match(p.name)), key=rounds_of)

    def write(
        self,
        engine: Engine,
        rounds_done: int,
        model: str,
        events: Sequence[bytes],
        solved: Sequence[str],
        rollbacks: int = 0,
    ) -> Path:
        """Save the engine; returns the finished folder. Raises OSError (disk full, read-only)."""
        final = self.folder / f"round-{rounds_done:06d}"
        temporary = self.folder / f".partial-{rounds_done:06d}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            (temporary / "engine").mkdir(parents=True)
            if engine.info.trainable:  # a node that only generates has nothing to save but where it is
                engine.save(temporary / "engine")
            state = CheckpointState(
                rounds_done=rounds_done,
                model=model,
                digests=_digests(temporary / "engine"),
                events=tuple(msgspec.Raw(e) for e in events),
                solved=tuple(solved),
                rollbacks=rollbacks,
            )
            (temporary / "state.json").write_bytes(msgspec.json.encode(state))
            _sync_tree(temporary)
            shutil.rmtree(final, ignore_errors=True)
            temporary.rename(final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._retire()
        return final

    def newest_intact(self) -> tuple[tuple[Path, CheckpointState] | None, list[str]]:
        """The newest checkpoint whose digests hold (None for a fresh run), and a sentence for each one passed over.

        Raises CheckpointCorrupt when there are checkpoints and none is intact: a run never silently starts over.
        """
        self._remove_partial()
        warnings: list[str] = []
        for path in reversed(self.complete()):
            try:
                return (path, read_state(path)), warnings
            except CheckpointCorrupt as error:
                warnings.append(str(error))
        if warnings:
            raise CheckpointCorrupt(
                f"None of the {len(warnings)} checkpoints in {self.folder} is intact. Start another run with --new; "
                "this one stays on disk as it is."
            )
        return None, []

    def _retire(self) -> None:
        paths = self.complete()
        for path in paths[: -self.keep]:
            if rounds_of(path) and rounds_of(path) % MILESTONE and rounds_of(path) != self.pinned:
                shutil.rmtree(path, ignore_errors=True)

    def _remove_partial(self) -> None:
        for path in self.folder.glob(".partial-*"):
            shutil.rmtree(path, ignore_errors=True)


def rounds_of(path: Path) -> int:
    found = _NAME.match(path.name)
    if found is None:
        raise CheckpointCorrupt(f"{path} is not a checkpoint folder (its name is not round-NNNNNN).")
    return int(found[1])


def read_state(path: Path) -> CheckpointState:
    """Read and verify a checkpoint. Raises CheckpointCorrupt."""
    try:
        state = msgspec.json.decode((path / "state.json").read_bytes(), type=CheckpointState)
        found = _digests(path / "engine")
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointCorrupt(f"Checkpoint {path.name} cannot be read ({error}); an older one is used.") from error
    if found != state.digests:
        raise CheckpointCorrupt(f"Checkpoint {path.name} does not match its digests; an older one is used.")
    return state


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def _sync_tree(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir() and os.name == "nt":
            continue
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
