"""Which engine a run gets, and loading it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from sapo_backends.base import Engine, Progress
from sapo_backends.common import hardware
from sapo_backends.errors import BackendError, BackendUnavailable
from sapo_backends.packages import TORCH, has_nvidia, install_command
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.machine.load_request import build_load_request
from sapo_swarm.config import RunConfig
from sapo_swarm.resolve_run import RunFacts, resolve_run_config
from sapo_swarm.types import UNREADABLE
from sapo_swarm.whole_file import write_atomically

LOG = logging.getLogger(__name__)
PREFERRED = ("mlx", "torch")
"""Trainers in the order in which "auto" tries them; mlx only on a machine with a GPU that it supports."""
GENERATOR = "llamacpp"
"""What "auto" tries last for a node that only generates."""
ENGINE_FILE = "engine.json"
"""In a run's folder: what its open settings ("auto", 0) resolved to when it began."""


class ResolvedEngine(msgspec.Struct, frozen=True):
    """What "auto" and 0 mean in a run, for its whole life. Values may still be "auto" and 0: then the engine decides."""

    trainer: str = "auto"
    precision: str = "auto"
    threads: int = 0


def resolve_engine(config: RunConfig, folder: Path, home: Home) -> RunConfig:
    """The config with its open settings resolved for the run in that folder.

    A new run takes what was measured on this machine, else the defaults, and stores it: a resumed run continues with the
    engine, precision and threads it began with, whatever was measured since. Raises BackendUnavailable, AppError.
    """
    if not (folder / ENGINE_FILE).exists():
        _write(folder, _settled(config, folder, home))
    return stored_config(config, folder)


def stored_config(config: RunConfig, folder: Path) -> RunConfig:
    """The config with what the run in that folder began with. Runs older than this file have none."""
    try:
        settled = msgspec.json.decode((folder / ENGINE_FILE).read_bytes(), type=ResolvedEngine)
    except FileNotFoundError:
        return config
    except (OSError, *UNREADABLE) as error:
        raise AppError(
            f"{folder / ENGINE_FILE} cannot be read ({error}). Delete it; the defaults are used then."
        ) from error
    return resolve_run_config(config, facts=RunFacts(measured=msgspec.structs.asdict(settled)))[0]


def _settled(config: RunConfig, folder: Path, home: Home) -> ResolvedEngine:
    from sapo_desktop.services.machine import speed

    has_checkpoint = any((folder / "checkpoints").glob("round-*"))  # started by an older version, with the defaults
    best = None if has_checkpoint else speed.choose_fastest(home, config)
    if best is None:
        return ResolvedEngine(trainer=choose_trainer(config))
    candidate = best.candidate
    choose_trainer(msgspec.structs.replace(config, trainer=candidate.engine))
    return ResolvedEngine(candidate.engine, candidate.precision, candidate.threads)


def _write(folder: Path, settled: ResolvedEngine) -> None:
    try:
        write_atomically(folder / ENGINE_FILE, msgspec.json.encode(settled))
    except OSError as error:
        raise AppError(f"Cannot write {folder} ({error.strerror}). Free some space.") from error


def engine_builder(config: RunConfig) -> Callable[[Progress], Engine]:
    """A function that loads the engine; the engine is chosen now so that a missing one is an immediate error."""
    from sapo_backends import registry

    backend = registry.get_backend(choose_trainer(config))()
    return lambda progress: backend.load(build_load_request(config), progress)


def run_builder(config: RunConfig, folder: Path, home: Home) -> Callable[[Progress], Engine]:
    """A function that loads the engine of a node's run with its open settings resolved. At the first load of a model on this
    machine it also measures which precision is faster (about a second) and stores it, for this run and later ones.

    Only where it is open: precision "auto", the torch engine on a processor with instructions for bfloat16 (without them a
    round takes 14 times as long in it), and a run without a checkpoint.
    """
    settled = resolve_engine(config, folder, home)
    if not _precision_is_open(settled, folder):
        return engine_builder(settled)
    build = engine_builder(settled)  # a missing engine is an error now

    def load(progress: Progress) -> Engine:
        precision = _faster_precision(settled, home, progress)
        if precision == "auto":
            return build(progress)
        _write(folder, ResolvedEngine(settled.trainer, precision, settled.threads))
        return engine_builder(msgspec.structs.replace(settled, precision=precision))(progress)

    return load


def _precision_is_open(config: RunConfig, folder: Path) -> bool:
    has_checkpoint = any((folder / "checkpoints").glob("round-*"))
    if has_checkpoint or config.precision != "auto" or config.trainer != "torch":
        return False
    return config.device == "cpu" or (config.device == "auto" and not has_nvidia())


def _faster_precision(config: RunConfig, home: Home, progress: Progress) -> str:
    """The precision measured now or earlier; "auto", the engine's own rule, where there is nothing to measure or measuring
    fails."""
    from sapo_backends.measure import precision
    from sapo_desktop.services.machine import speed

    seconds = speed.precision_seconds(home, config)
    if not seconds and hardware.detect_hardware().fast_bfloat16:
        try:
            seconds = precision.measure_precisions(build_load_request(config), progress)
            speed.remember_precision(home, config, seconds)
        except (BackendError, OSError) as error:
            LOG.warning("The faster precision could not be measured, so the engine's own rule holds: %s", error)
    return precision.faster_precision(seconds)


def choose_trainer(config: RunConfig) -> str:
    """The name of the trainer for a run, or of the engine for one that only generates.

    Raises BackendUnavailable with the command that installs one.
    """
    from sapo_backends import registry

    if config.trainer != "auto":
        registry.get_backend(config.trainer).check()
        return config.trainer
    reasons: list[str] = []
    for name in (*PREFERRED, GENERATOR) if config.method == "none" else PREFERRED:
        if name == "mlx" and not apple_silicon():
            continue
        try:
            registry.get_backend(name).check()
        except BackendUnavailable as error:
            reasons.append(error.reason)
        else:
            return name
    raise BackendUnavailable("No engine that can train is installed.", install_command(*TORCH))


def apple_silicon() -> bool:
    """Whether this machine has a processor that MLX supports."""
    import platform

    return platform.system() == "Darwin" and platform.machine() == "arm64"
