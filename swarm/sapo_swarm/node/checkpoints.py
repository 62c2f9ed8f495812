"""Checkpoints: one folder per saved moment, written beside its final name and renamed, so that a crash leaves only
whole ones."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
from safetensors import SafetensorError

from sapo_backends.base import Engine
from sapo_backends.errors import CheckpointCorrupt, size_text
from sapo_swarm.types import UNREADABLE
from sapo_swarm.whole_file import on_disk

# Folders on disk: their size, the digests of their files, and syncing them.


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below; a file that disappears meanwhile or cannot be read counts nothing."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total


def free_bytes(place: Path) -> int:
    """Free bytes on the disk that holds (or will hold) `place`. Raises OSError."""
    return shutil.disk_usage(next(path for path in (place, *place.absolute().parents) if path.exists())).free


def file_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below, by its relative path. Raises OSError."""
    digests = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            digests[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def weights_digest(digests: dict[str, str], optimizer_files: tuple[str, ...]) -> str:
    """SHA-256 of the trainable weights: of their single file, or of the sorted lines "digest  name" if there are
    several.

    Files that hold no tensors do not count. "" if there are none.
    """
    tensors = {n: d for n, d in digests.items() if n.endswith(".safetensors") and n not in optimizer_files}
    if len(tensors) <= 1:
        return next(iter(tensors.values()), "")
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(tensors.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def sync_tree(folder: Path) -> None:
    """Return once the whole tree is on disk. Raises OSError."""
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir() and os.name == "nt":
            continue
        handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)  # Windows flushes writable handles only
        try:
            on_disk(handle)
        finally:
            os.close(handle)


@contextmanager
def tensors_as_files() -> Iterator[None]:
    """Turn safetensors' own errors about the disk into OSError."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"The weights cannot be written ({str(error)[:200]}). Free some disk space.") from error


# Versions that decide whether two runs can give the same numbers.

_ALWAYS = ("sapo-desktop", "reasoning-gym", "numpy", "tokenizers")
_BY_BACKEND = {
    "torch": ("torch", "transformers"),
    "mlx": ("mlx", "mlx-lm"),
    "llamacpp": ("llama-cpp-python",),
}


def package_versions(backend: str) -> dict[str, str]:
    """Versions of Python, the platform and the installed packages that compute."""
    versions = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for name in (*_ALWAYS, *_BY_BACKEND.get(backend, ())):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


# Checkpoints: one folder per saved moment, written beside its final name and renamed, so that a kill never leaves half of one.
#
# checkpoints/round-000012/   engine/ (weights or adapter, optimizer)  state.json (rounds, digests, the link to the one before)
#
# Only the newest keeps the optimizer's state. Older ones grow sparse with age, the best held-out ones stay, and everything
# together stays within the model's disk budget, also while a new one is written. What is trained after the newest one is in
# the update log (node.resume_log).

_NAME = re.compile(r"^round-(\d{6,})$")
_DAMAGED = "damaged-"
FREE_RESERVE = 64 * 2**20
"""Bytes of the disk that a checkpoint leaves free."""
BYTES_A_PARAMETER = 4
"""Trained weights are float32, as are both of Adam's moments."""


# Which old ones stay, and what a disk budget must hold.


def pinned_ones(rounds: Iterable[int], pinned: Iterable[int]) -> list[int]:
    """For each pinned number the checkpoint (by rounds) of exactly that many rounds, or else (the disk was full) the
    newest before it; in the order of `pinned`, each once."""
    there = list(rounds)
    nearest = (max((number for number in there if number <= wanted), default=None) for wanted in pinned)
    return list(dict.fromkeys(number for number in nearest if number is not None))


def checkpoints_to_drop(rounds: Sequence[int], keep: int, pinned: Iterable[int]) -> list[int]:
    """Checkpoints (by rounds, ascending) that may go: all but the newest `keep`, the pinned ones, the first one, and
    the oldest of every doubling of the age."""
    if not rounds:
        return []
    newest = rounds[-1]
    stays = {*rounds[-keep:], rounds[0], *pinned_ones(rounds, pinned)}
    ages: dict[int, int] = {}
    for number in rounds:
        ages.setdefault((newest - number).bit_length(), number)
    return [number for number in rounds if number not in stays and number not in ages.values()]


def over_budget(weights: int, budget: int) -> str:
    """Why checkpoints of this size never fit that disk budget (0: none), and what to do; "" if they do."""
    needed = 2 * weights
    if not budget or needed <= budget:
        return ""
    return (
        f"2 checkpoints of this model's weights take {size_text(needed)} (one is written before the other goes), and its disk "
        f"budget is {size_text(budget)}. Take --method lora, or --disk-budget-gb {needed / 1e9 + 0.1:.1f}"
    )


class NoRoom(OSError):
    """A checkpoint does not fit into the model's disk budget or onto the disk; the message says what to do."""


class CheckpointState(msgspec.Struct, frozen=True):
    """rounds_done: rounds that led to these weights. digests: SHA-256 of every file of engine/; those named in
    `optimizer` may be missing. weights, parent: the hash chain (events.CheckpointSaved). rollbacks: how often the
    held-out tripwire had restored older weights (see node.guard). restored: see events.CheckpointSaved."""

    rounds_done: int
    model: str
    digests: dict[str, str]
    solved: tuple[str, ...] = ()
    rollbacks: int = 0
    format: int = 1
    optimizer: tuple[str, ...] = ()
    weights: str = ""
    parent: str = ""
    reason: str = ""
    restored: int = -1


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What is saved beside the weights. See CheckpointState."""

    rounds_done: int
    reason: str
    solved: tuple[str, ...] = ()
    rollbacks: int = 0
    parent: str = ""
    restored: int = -1


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that was written: its folder, its state, its bytes, and whether it holds the optimizer."""

    path: Path
    state: CheckpointState
    bytes: int
    optimizer: bool


@dataclass
class CheckpointStore:
    """The checkpoints of one model.

    keep: newest ones that stay. budget: limit in bytes, 0 = none. counted: folder -> bytes in use. pinned:
    rounds of the checkpoints that stay however old they are, the best ones (pinned_ones). The first of them is never given
    up; the others go last if the budget is too small for all. written: bytes, by this process.
    """

    folder: Path
    keep: int
    budget: int = 0
    counted: Callable[[Path], int] = folder_bytes
    pinned: tuple[int, ...] = ()
    written: int = 0
    _sizes: dict[bool, int] = field(default_factory=dict)
    """Bytes of the last checkpoint with and without the optimizer."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def complete(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        return sorted((p for p in self.folder.iterdir() if _NAME.match(p.name)), key=rounds_of)

    def require_room(self, engine: Engine) -> None:
        """Raises NoRoom if the budget is too small for this model however much is deleted: it must hold two
        checkpoints of its weights."""
        if problem := over_budget(self.next_size(engine, optimizer=False), self.budget):
            raise NoRoom(problem)

    def write(self, engine: Engine, moment: CheckpointInfo) -> SavedCheckpoint:
        """Save the engine. Raises NoRoom, OSError (read-only, or the disk filled up meanwhile)."""
        optimizer = self._make_room(self.next_size(engine), self.next_size(engine, optimizer=False))

        def fill(folder: Path) -> CheckpointState:
            if engine.info.trainable:  # a node that only generates has nothing to save but its round
                with tensors_as_files():
                    engine.save(folder, optimizer)
            return _state_of(engine, moment, file_digests(folder))

        saved = self._written(moment.rounds_done, fill)
        self._sizes[optimizer] = saved.bytes
        return saved

    def write_copy(self, source: Path, state: CheckpointState, moment: CheckpointInfo) -> SavedCheckpoint:
        """Another checkpoint with the weights of `source`, without its optimizer. state: as read_state(source)
        returned it.

        Raises NoRoom, OSError, and CheckpointCorrupt if the source changes meanwhile; nothing is changed then.
        """
        names = {name: digest for name, digest in state.digests.items() if name not in state.optimizer}
        size = sum((source / "engine" / name).stat().st_size for name in names) + 4096
        self._make_room(size, size, source)

        def fill(folder: Path) -> CheckpointState:
            for name in names:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / "engine" / name, folder / name)
            if file_digests(folder) != names:
                raise CheckpointCorrupt(f"Checkpoint {source.name} changed while it was copied; nothing was done.")
            about = {
                field: getattr(moment, field) for field in ("rounds_done", "solved", "rollbacks", "parent", "reason")
            }
            return msgspec.structs.replace(state, digests=names, optimizer=(), restored=moment.restored, **about)

        return self._written(moment.rounds_done, fill)

    def _written(self, rounds_done: int, fill: Callable[[Path], CheckpointState]) -> SavedCheckpoint:
        """A checkpoint whose engine folder `fill` writes; older ones are thinned once it is in place."""
        final = self.folder / f"round-{rounds_done:06d}"
        temporary = self.folder / f".partial-{rounds_done:06d}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            (temporary / "engine").mkdir(parents=True)
            state = fill(temporary / "engine")
            (temporary / "state.json").write_bytes(msgspec.json.encode(state))
            sync_tree(temporary)
            self._put(temporary, final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        size = folder_bytes(final)
        self.written += size
        self._thin()
        return SavedCheckpoint(final, state, size, has_optimizer(final, state))

    def newest_intact(self) -> tuple[tuple[Path, CheckpointState] | None, list[str]]:
        """The newest checkpoint whose digests match (None for a fresh model), and a sentence for each one passed
        over.

        Raises CheckpointCorrupt if there are checkpoints but none is intact: training never silently starts over.
        """
        self._clear_away()
        warnings: list[str] = []
        for path in reversed(self.complete()):
            try:
                return (path, read_state(path)), warnings
            except CheckpointCorrupt as error:
                warnings.append(str(error))
        if warnings:
            raise CheckpointCorrupt(
                f"None of the {len(warnings)} checkpoints in {self.folder} is intact. Make another model: sapo-desktop new NAME; "
                "this one stays on disk as it is."
            )
        return None, []

    def set_aside(self, used: Path) -> list[str]:
        """Set aside the checkpoints newer than the one in use, which are damaged. At most `keep` damaged folders stay
        for a person to look at, as long as there is room; returns the names of those that stay among the newer ones.
        Raises OSError."""
        names = {_DAMAGED + path.name: path for path in self.complete() if rounds_of(path) > rounds_of(used)}
        for name, path in names.items():
            shutil.rmtree(self.folder / name, ignore_errors=True)
            path.rename(self.folder / name)
        for path in self._damaged()[: -self.keep]:
            shutil.rmtree(path, ignore_errors=True)
        return [path.name for path in self._damaged() if path.name in names]

    def _damaged(self) -> list[Path]:
        return sorted(self.folder.glob(f"{_DAMAGED}*"))

    def intact(self, at_most: int) -> tuple[Path, CheckpointState] | None:
        """The newest intact checkpoint of at most this many rounds."""
        for path in reversed(self.complete()):
            if rounds_of(path) <= at_most:
                with contextlib.suppress(CheckpointCorrupt):
                    return path, read_state(path)
        return None

    def used(self) -> int:
        """Bytes that count towards the budget."""
        return self.counted(self.folder)

    def next_size(self, engine: Engine, optimizer: bool = True) -> int:
        """Expected size of the next checkpoint in bytes, as far as known."""
        tensors = 3 if optimizer and engine.optimizer_files else 1
        return self._sizes.get(optimizer, engine.info.trainable * BYTES_A_PARAMETER * tensors + 4096)

    def _make_room(self, whole: int, weights: int, source: Path | None = None) -> bool:
        """Thin until a new checkpoint of this size (`whole` with the optimizer, `weights` without) fits; returns
        whether it may hold the optimizer's state. Nothing is deleted for one that would not fit even then. The newest
        one, the best one and the source of a copy stay: when all others are gone, first the newest gives up its
        optimizer's state, then the new one does; other pinned ones go last."""
        best = pinned_ones(map(rounds_of, self.complete()), self.pinned)
        spare = [path for path in self._dispensable() if path != source]
        last = [path for path in spare if _NAME.match(path.name) and rounds_of(path) in best]
        spare = [path for path in spare if path not in last]
        moments = [file for path in self.complete() if path not in spare for file in _optimizer_of(path)]
        gain = sum(map(folder_bytes, spare)) + sum(file.stat().st_size for file in moments)
        optimizer = self._room() + gain >= whole
        needed = whole if optimizer else weights
        if self._room() + gain + sum(map(folder_bytes, last)) >= needed:
            for path in spare:
                if self._room() < needed:
                    shutil.rmtree(path, ignore_errors=True)
            if self._room() < needed:
                for file in moments:
                    file.unlink(missing_ok=True)
            for path in last:
                if self._room() < needed:
                    shutil.rmtree(path, ignore_errors=True)
        if self._room() >= needed:
            return optimizer
        raise NoRoom(
            f"A checkpoint of {size_text(weights)} does not fit: "
            f"{size_text(max(0, shutil.disk_usage(self.folder).free - FREE_RESERVE))} of the disk can be used, "
            f"and the model has {size_text(self.used())} of its {size_text(self.budget)} already. "
            "Free some disk space or raise disk_budget_gb."
        )

    def _room(self) -> int:
        """Bytes available for a new checkpoint now."""
        free = shutil.disk_usage(self.folder).free - FREE_RESERVE
        return min(free, self.budget - self.used()) if self.budget else free

    def _dispensable(self) -> list[Path]:
        """All but the newest and the first pinned one, the least valuable first."""
        *older, _ = self.complete() or [self.folder]
        best = pinned_ones(map(rounds_of, self.complete()), self.pinned)
        spare = [path for path in older if rounds_of(path) not in best[:1]]
        too_many = self._too_many()
        ordered = sorted(spare, key=lambda path: (rounds_of(path) in best, path.name not in too_many))
        return [*self._damaged(), *ordered]

    def _too_many(self) -> set[str]:
        named = {rounds_of(path): path.name for path in self.complete()}
        return {named[rounds] for rounds in checkpoints_to_drop(list(named), self.keep, self.pinned)}

    def _thin(self) -> None:
        for name in self._too_many():
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for path in self.complete()[:-1]:
            for file in _optimizer_of(path):
                file.unlink(missing_ok=True)
        for path in self._dispensable():
            if not self.budget or self.used() <= self.budget:
                return
            shutil.rmtree(path, ignore_errors=True)

    def _put(self, temporary: Path, final: Path) -> None:
        """Give the folder its final name; an older folder of that name stays until then."""
        before = self.folder / f".replaced-{final.name}"
        if final.exists():
            shutil.rmtree(before, ignore_errors=True)
            final.rename(before)
        temporary.rename(final)
        shutil.rmtree(before, ignore_errors=True)

    def _clear_away(self) -> None:
        for path in self.folder.glob(".replaced-*"):
            final = self.folder / path.name.removeprefix(".replaced-")
            if not final.exists():  # killed between the two renames
                path.rename(final)
        for pattern in (".partial-*", ".replaced-*"):
            for path in self.folder.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)


def rounds_of(path: Path) -> int:
    """A checkpoint's number of rounds, from its name. Raises CheckpointCorrupt."""
    match = _NAME.match(path.name)
    if match is None:
        raise CheckpointCorrupt(f"{path} is not a checkpoint folder (its name is not round-NNNNNN).")
    return int(match[1])


def read_state(path: Path) -> CheckpointState:
    """Read and verify a checkpoint; the optimizer's files may be missing. Raises CheckpointCorrupt."""
    try:
        state = msgspec.json.decode((path / "state.json").read_bytes(), type=CheckpointState)
        digests = file_digests(path / "engine")
    except (OSError, *UNREADABLE) as error:
        raise CheckpointCorrupt(f"Checkpoint {path.name} cannot be read ({error}); an older one is used.") from error
    expected = {
        name: digest for name, digest in state.digests.items() if name in digests or name not in state.optimizer
    }
    if digests != expected:
        raise CheckpointCorrupt(f"Checkpoint {path.name} does not match its digests; an older one is used.")
    return state


def has_optimizer(path: Path, state: CheckpointState) -> bool:
    """Whether the optimizer's state is stored beside the weights."""
    return bool(state.optimizer) and all((path / "engine" / n).exists() for n in state.optimizer)


def _optimizer_of(path: Path) -> list[Path]:
    """The optimizer's files in a folder; none if it cannot be read."""
    try:
        state = msgspec.json.decode((path / "state.json").read_bytes(), type=CheckpointState)
    except (OSError, *UNREADABLE):
        return []
    return [file for name in state.optimizer if (file := path / "engine" / name).exists()]


def _state_of(engine: Engine, moment: CheckpointInfo, digests: dict[str, str]) -> CheckpointState:
    return CheckpointState(
        rounds_done=moment.rounds_done,
        model=engine.info.model,
        digests=digests,
        solved=moment.solved,
        rollbacks=moment.rollbacks,
        format=2,
        optimizer=tuple(name for name in engine.optimizer_files if name in digests),
        weights=weights_digest(digests, engine.optimizer_files),
        parent=moment.parent,
        reason=moment.reason,
    )
