"""Whether a run's rounds fit into memory, told before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from sapo_backends.base import ModelNotFound
from sapo_backends.common import hardware
from sapo_backends.common.hardware import ModelSize, RoundShape
from sapo_backends.measure.sizing import model_size
from sapo_desktop.services.machine import engines, load_request
from sapo_swarm.algorithms.base import local_groups
from sapo_swarm.config import RunConfig

PROMPT = 256
"""Tokens of a long question; the bundled tasks' are shorter."""


@dataclass(frozen=True, slots=True)
class Plan:
    """needed, available: bytes. smaller: a round that would fit, None when none does or this one does.

    external: how many of the groups come from others.
    """

    shape: RoundShape
    external: int
    needed: int
    available: int
    smaller: RoundShape | None

    @property
    def fits(self) -> bool:
        """Whether there is room, with something to spare for other programs."""
        return self.needed <= hardware.SPARE * self.available

    @property
    def sentence(self) -> str:
        """What is needed and what is free, for people."""
        rows = f"{self.shape.groups} groups of {self.shape.group_size}"
        return f"a round of {rows} needs about {_gib(self.needed)}, {_gib(self.available)} is free"

    @property
    def suggestion(self) -> str:
        """Settings that would fit; others' share of the batch shrinks with it."""
        if self.smaller is None:
            return "Choose a smaller model, or the method lora."
        groups = self.smaller.groups
        external = min(groups - 1, -(-groups * self.external // self.shape.groups))
        said = {
            "local-groups": (self.shape.groups - self.external, groups - external),
            "external-groups": (self.external, external),
            "group-size": (self.shape.group_size, self.smaller.group_size),
            "max-new-tokens": (self.shape.new_tokens, self.smaller.new_tokens),
        }
        return "This fits: " + " ".join(f"--{name} {new}" for name, (old, new) in said.items() if new != old)


def plan(config: RunConfig, available: int | None = None) -> Plan | None:
    """The memory of the run's rounds on this machine; None where it cannot be told: another engine than those here,
    a GPU with memory of its own, a model that is not downloaded yet."""
    trainer = engines.choose_trainer(config).rpartition("+")[2]
    on_gpu = config.device.startswith("cuda") or (config.device == "auto" and hardware.has_nvidia())
    if trainer not in ("torch", "mlx") or on_gpu:
        return None
    try:
        size, _ = model_size(load_request.local_folder(config), load_request.request(config))
    except ModelNotFound:
        return None
    free = hardware.available_memory() if available is None else available
    groups = local_groups(config, size.parameters) + config.external_groups
    shape = RoundShape(groups, config.group_size, PROMPT, config.max_new_tokens)

    def needed(of: RoundShape) -> int:
        return _needed(config, size, of)

    fits = needed(shape) <= hardware.SPARE * free
    smaller = None if fits else hardware.smaller_round(needed, shape, free)
    return Plan(shape, config.external_groups, needed(shape), free, smaller)


def require(config: RunConfig, available: int | None = None) -> None:
    """Raise OutOfMemory, with settings that would fit, when the run's rounds do not."""
    found = plan(config, available)
    if found is not None:
        hardware.require(found.needed, found.suggestion, found.available)


def _needed(config: RunConfig, size: ModelSize, shape: RoundShape) -> int:
    """Bytes; of a pair both engines'."""
    trainer = engines.choose_trainer(config)
    fast = hardware.detect().fast_bfloat16 if config.precision == "auto" else config.precision != "float32"
    sharded = trainer.endswith("torch") and size.parameters < hardware.SHARDED_BELOW
    workers = (config.threads or hardware.default_threads()) if sharded else 1
    second = 2 * size.parameters if "+" in trainer else 0
    return second + hardware.bytes_of_round(size, shape, compute_bytes=2 if fast else 4, workers=workers)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
