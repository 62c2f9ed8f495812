"""Which engine a run gets, and the loading of it."""

from __future__ import annotations

from collections.abc import Callable

from sapo_backends.base import BackendUnavailable, Engine, LoadRequest, Progress
from sapo_swarm.config import RunConfig

PREFERRED = ("mlx", "torch")
"""Trainers in the order in which "auto" tries them; mlx only where it has a GPU."""


def choose_trainer(config: RunConfig) -> str:
    """The name of the trainer for a run. Raises BackendUnavailable with the command that adds one."""
    from sapo_backends import registry

    if config.trainer != "auto":
        registry.backend(config.trainer).check()
        return config.trainer
    reasons: list[str] = []
    for name in PREFERRED:
        if name == "mlx" and not _apple_silicon():
            continue
        try:
            registry.backend(name).check()
        except BackendUnavailable as error:
            reasons.append(error.reason)
        else:
            return name
    raise BackendUnavailable("No engine that can train is installed.", 'pip install "sapo-desktop[torch]"')


def builder(config: RunConfig) -> Callable[[Progress], Engine]:
    """A function that loads the engine; the choice is made now so that a missing one is an error at once."""
    from sapo_backends import registry

    backend = registry.backend(choose_trainer(config))()
    request = LoadRequest(
        model=config.model,
        method=config.method,
        precision=config.precision,
        device=config.device,
        threads=config.threads,
        lora_rank=config.lora_rank,
        lora_alpha=2.0 * config.lora_rank,
        seed=config.seed,
    )
    return lambda progress: backend.load(request, progress)


def _apple_silicon() -> bool:
    import platform

    return platform.system() == "Darwin" and platform.machine() == "arm64"
