"""My models on disk: data/models/<folder>/ with model.json, journal.db, checkpoints/, evaluations/, exports/; and their
names."""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sapo_backends.checkpoints.locate import BUNDLED
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home, quote_command
from sapo_swarm.config import RunConfig, settings_of_today
from sapo_swarm.errors import suggest_names
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.types import UNREADABLE
from sapo_swarm.whole_file import write_atomically

# Allowed model names: easy to type, and not mistaken for anything else by a command or a system.

LONGEST = 40
FIRST = "my-model"
"""The name of the first model, unless one is given."""
_PATTERN = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST - 1}}}")
_WORDS = frozenset(
    {"base", "latest", "best", "new", "all", "none", "show", "rename", "duplicate", "delete", "prune", "check"}
).union(BUNDLED)
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))})


def check_model_name(name: str, taken: Collection[str] = ()) -> str:
    """The name, checked. taken: names in use; upper and lower case are not distinguished.

    Raises UsageError that says what a name looks like, or which model has this one.
    """
    if not _PATTERN.fullmatch(name) or name.endswith("."):
        raise UsageError(
            f"{name[:60]!r} is no name for a model. Use 1 to {LONGEST} letters, digits, dots, dashes or underscores, "
            f"a letter or digit first: {unused_name(suggest_model_name(name), taken)}"
        )
    if _has_meaning(name):
        other = unused_name(suggest_model_name(name), taken)
        raise UsageError(f"A model cannot be called {name!r}: that word has a meaning already. Try {other}.")
    for other in taken:
        if other.lower() == name.lower():
            raise UsageError(
                f"There is a model {other!r} already. Choose another name, such as {unused_name(name, taken)}."
            )
    return name


def _has_meaning(name: str) -> bool:
    return name.lower() in _WORDS or name.lower().partition(".")[0] in _DEVICES


def suggest_model_name(text: str) -> str:
    """The nearest allowed name to any text."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:LONGEST].rstrip(".-_") or FIRST
    return f"my-{name}"[:LONGEST].rstrip(".-_") if _has_meaning(name) else name


def train_on(task: str, base: str = "", taken: Collection[str] = ()) -> str:
    """The commands that train a new model on a task. base: the base that it was tried on, "" for the one in the settings;
    taken: names of existing models."""
    name = unused_name(suggest_model_name(task), taken)
    start = f" --base {shlex.quote(base)}" if base else ""
    return f"sapo-desktop new {name}{start} --tasks {task}, then: sapo-desktop node {name}"


def unused_name(name: str, taken: Collection[str]) -> str:
    """The name, or the name with the first number that makes it new: my-model-2."""
    used = {taken_name.lower() for taken_name in taken}
    candidate, number = name, 1
    while candidate.lower() in used:
        number += 1
        ending = f"-{number}"
        candidate = name[: LONGEST - len(ending)] + ending
    return candidate


# My models on disk: data/models/<folder>/ with model.json, journal.db, checkpoints/, evaluations/, exports/.
#
# Light: the dashboard reads it, so nothing here imports an engine.

RECORD = "model.json"
FORMAT = 1
_ROUND = re.compile(r"round-(\d{6,})")
_NAME = re.compile(rb'"name": ?"([A-Za-z0-9._-]+)"')


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """model.json. config: the settings from the next start on; trained: those of the last training, None before the first.

    base, method, precision, lora_rank and trainer are the identity of the weights: config holds the same values, for ever.
    tasks: name -> digest of the custom tasks at the last training. created, last_trained: Unix time, 0 = never. swarm: id of
    the swarm that it last trained in, "" = alone.
    """

    format: int = FORMAT
    id: str
    name: str
    base: str
    created: float
    method: str
    precision: str
    lora_rank: int
    config: RunConfig
    trained: RunConfig | None = None
    swarm: str = ""
    last_trained: float = 0.0
    tasks: dict[str, str] = {}


@dataclass(frozen=True)
class Model:
    """One model. rounds_done: rounds in its newest checkpoint; checkpoints: their folders, oldest first."""

    folder: Path
    record: ModelRecord
    checkpoints: tuple[Path, ...]

    @property
    def name(self) -> str:
        """What it is called."""
        return self.record.name

    @property
    def config(self) -> RunConfig:
        """The settings from the next start on."""
        return self.record.config

    @property
    def rounds_done(self) -> int:
        """Rounds in its newest checkpoint."""
        return rounds_of(self.checkpoints[-1]) if self.checkpoints else 0

    @property
    def trained(self) -> bool:
        """Whether it has weights of its own to continue from."""
        return bool(self.checkpoints)

    @property
    def used(self) -> float:
        """When it was last trained, or created where it was not trained: Unix time."""
        return self.record.last_trained or self.record.created


def rounds_of(checkpoint: Path) -> int:
    """Rounds in a checkpoint folder, 0 where its name does not say."""
    match = _ROUND.fullmatch(checkpoint.name)
    return int(match[1]) if match else 0


class RecordDamaged(AppError):
    """A model.json without usable content; what was trained is still beside it."""


@dataclass(frozen=True)
class UnreadableModel:
    """A model whose model.json cannot be read. name: from the file, else from its folder. damaged: the app never wrote it
    like that; otherwise a newer version did, or it cannot be opened. sentence: what is wrong, and what to do."""

    folder: Path
    name: str
    damaged: bool
    sentence: str


def all_models(home: Home) -> list[Model]:
    """Every readable model, the one used last first; a duplicate comes after its original."""
    models = [model for model in _look(home.models) if isinstance(model, Model)]
    return sorted(models, key=lambda m: (-m.used, m.record.created, m.name))


def unreadable_models(home: Home) -> list[UnreadableModel]:
    """The unreadable models: they exist too, and their names are taken."""
    return [model for model in _look(home.models) if isinstance(model, UnreadableModel)]


def taken_model_names(home: Home, but: Path | None = None) -> list[str]:
    """The names of all models except the one in that folder."""
    return [model.name for model in _look(home.models) if model.folder != but]


def _look(folder: Path) -> Iterator[Model | UnreadableModel]:
    for path in sorted(folder.glob("*")):
        if path.name.startswith(".") or not any((path / name).exists() for name in (RECORD, "journal.db")):
            continue
        try:
            yield read_model(path)
        except AppError as error:
            name, damaged = told_name(path) or path.name, isinstance(error, RecordDamaged)
            mend = f" Its weights are untouched. Mend it: {quote_command('sapo-desktop', 'runs', 'check', name, '--repair')}"
            yield UnreadableModel(path, name, damaged, f"{error}{mend if damaged else ''}")


def told_name(folder: Path) -> str:
    """The name in a model.json that need not be readable as a whole; "" where it contains none."""
    with contextlib.suppress(OSError):
        if match := _NAME.search((folder / RECORD).read_bytes()):
            return match[1].decode("ascii")
    return ""


def read_model(folder: Path) -> Model:
    """The model in a folder. Raises AppError that says what is wrong with its model.json, RecordDamaged where it is
    unusable."""
    path = folder / RECORD
    try:
        data = msgspec.json.decode(path.read_bytes())
        if not isinstance(data, dict):
            raise msgspec.ValidationError("it holds no object")
        if isinstance(data.get("format"), int) and data["format"] > FORMAT:
            raise AppError(f"{path} was written by a newer version of sapo-desktop. Update the app to use this model.")
        for key in ("config", "trained"):
            if isinstance(data.get(key), dict):
                data[key] = settings_of_today(data[key])
        record = msgspec.convert(data, ModelRecord)
        safe = {name: safe_text(getattr(record, name), 4096, lines=False) for name in ("name", "base")}
        record = msgspec.structs.replace(record, **safe)  # a folder may come from anywhere
    except FileNotFoundError as error:
        raise RecordDamaged(f"{path} is missing.") from error
    except OSError as error:
        raise AppError(f"Cannot read {path} ({error.strerror}). Check who owns it.") from error
    except UNREADABLE as error:
        raise RecordDamaged(f"{path} is damaged ({error}).") from error
    folders = [p for p in (folder / "checkpoints").glob("round-*") if _ROUND.fullmatch(p.name)]
    return Model(folder, record, tuple(sorted(folders, key=rounds_of)))


def write_model_record(folder: Path, record: ModelRecord) -> Model:
    """Write model.json atomically, unless it could not be read back. Raises AppError."""
    encoded = msgspec.json.encode(record)
    try:
        msgspec.json.decode(encoded, type=ModelRecord)
    except UNREADABLE as error:
        raise AppError(f"{folder / RECORD} stays as it was: it could not be read any more ({error}).") from error
    try:
        write_atomically(folder / RECORD, msgspec.json.format(encoded))
    except OSError as error:
        raise AppError(f"Cannot write {folder} ({error.strerror}). Free some space, or check who owns it.") from error
    return read_model(folder)


def find_model(home: Home, name: str = "", trained: bool = False) -> Model:
    """The model of that name; "" is the one used last. trained: only one with weights of its own.

    Raises UsageError that names the nearest, or says how to create one; AppError where that model cannot be read.
    """
    models = all_models(home)
    if (broken := find_unreadable_model(home, name)) is not None:
        raise AppError(
            f"{broken.sentence} {f'Or name another one: {models[0].name}.' if models and not name else ''}".rstrip()
        )
    if not models:
        raise UsageError("There is no model yet. Make one: sapo-desktop new my-model --base starter")
    if not name:
        ready = [m for m in models if m.trained] if trained else models
        if not ready:
            raise UsageError(f"{models[0].name} has not been trained yet. Train it: sapo-desktop node {models[0].name}")
        return ready[0]
    matches = _named(models, name)
    if not matches:
        suggestions = suggest_names(name, {m.name for m in models})
        raise UsageError(
            f"There is no model {name[:60]!r}. {suggestions} To make it: sapo-desktop new {suggest_model_name(name)}"
        )
    if trained and not matches[0].trained:
        raise UsageError(f"{matches[0].name} has not been trained yet. Train it: sapo-desktop node {matches[0].name}")
    return matches[0]


def find_unreadable_model(home: Home, name: str = "") -> UnreadableModel | None:
    """The unreadable model of that name, or, for "", the one that may have been used last; else None."""
    models, unreadable = all_models(home), unreadable_models(home)
    if not name:
        last = models[0].used if models else 0.0
        return next((model for model in unreadable if last_change_time(model.folder) > last), None)
    fitting = (model for model in unreadable if name.lower() in (model.name.lower(), model.folder.name))
    return None if _named(models, name) else next(fitting, None)


def _named(models: list[Model], name: str) -> list[Model]:
    matches = [m for m in models if m.name == name] or [m for m in models if m.name.lower() == name.lower()]
    return matches or [m for m in models if m.record.id == name]


def create_model_folder(home: Home, name: str, config: RunConfig, base: str = "") -> Model:
    """A new model that starts from config.model. The config must have been checked already. base: what the person calls the
    base, where that is not its path: a model of Ollama's is in a file named by a hash.

    Raises UsageError for the name, AppError when the disk refuses; then nothing is left behind.
    """
    check_model_name(name, taken_model_names(home))
    record = msgspec.structs.replace(record_of(name, config), base=base or config.model)
    folder = home.models / free_folder(home.models, name)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise AppError(
            f"Cannot make {folder} ({error.strerror}). Free some space, or set SAPO_HOME elsewhere."
        ) from error
    try:
        return write_model_record(folder, record)
    except AppError:
        for leftover in (*folder.iterdir(), folder):
            leftover.rmdir() if leftover.is_dir() else leftover.unlink()
        raise


def record_of(name: str, config: RunConfig, id: str = "", created: float = 0.0) -> ModelRecord:
    """The record of a model that was not trained yet; without an id it gets one."""
    return ModelRecord(
        id=id or time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3),
        name=name,
        base=config.model,
        created=created or time.time(),
        method=config.method,
        precision=config.precision,
        lora_rank=config.lora_rank,
        config=config,
    )


def with_config(record: ModelRecord, config: RunConfig) -> ModelRecord:
    """The record with other settings; a moved base is recorded at its new place."""
    base = record.base if config.model == record.config.model else config.model
    return msgspec.structs.replace(record, config=config, base=base)


def free_folder(models: Path, name: str) -> str:
    """A folder name for a new model of that name: a renamed model keeps its folder, so the name may be taken."""
    return unused_name(name.lower(), [path.name for path in models.glob("*")])


def last_change_time(folder: Path) -> float:
    """Changes whenever a model's record, journal or checkpoints do: the newest of their times."""
    times = [0.0]
    for name in ("", RECORD, "journal.db", "journal.db-wal", "checkpoints", "exports"):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times)
