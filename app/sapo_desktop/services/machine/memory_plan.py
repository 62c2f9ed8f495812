"""Whether a run's rounds fit into memory, checked before it starts."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import msgspec

from sapo_backends.checkpoints.gguf_view import gguf_of
from sapo_backends.checkpoints.spec import why_not
from sapo_backends.checkpoints.tokenizer import read_json
from sapo_backends.common import hardware, round_memory
from sapo_backends.common.round_memory import ModelSize, RoundShape
from sapo_backends.errors import BackendError, ModelNotFound, size_text
from sapo_backends.measure import probe
from sapo_backends.measure.machine_limits import CardMemory
from sapo_backends.measure.precision import model_size
from sapo_backends.packages import has_nvidia
from sapo_desktop.services.machine import engines, load_request
from sapo_swarm.algorithms import local_groups
from sapo_swarm.config import RunConfig
from sapo_swarm.node.governor.rules import ResourceLimits

PROMPT = 256
"""Tokens of a long question; those of the bundled tasks are shorter."""
LONGEST = 1.5
"""Tokens of a round's longest question, as a multiple of the mean."""
ASKED_AGAIN_S = 60
"""Seconds for which a GPU's free memory is cached: asking takes a process that imports torch."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """needed, available: bytes. smaller: a round that would fit, None when none does or this one does.

    external: how many of the groups are external. precision: what the smaller round needs, "" where the run's own will do.
    other: what helps besides a smaller model where no round fits.
    """

    shape: RoundShape
    external: int
    needed: int
    available: int
    smaller: RoundShape | None
    precision: str = ""
    other: str = ""

    @property
    def fits(self) -> bool:
        """Whether there is enough memory, with some left for other programs."""
        return self.needed <= round_memory.SPARE * self.available

    @property
    def sentence(self) -> str:
        """What is needed and what is free, for people."""
        rows = f"{self.shape.groups} groups of {self.shape.group_size}"
        longest = f"questions of up to {self.shape.prompt} tokens"
        return f"a round of {rows} with {longest} needs about {size_text(self.needed)}, {size_text(self.available)} is free"

    @property
    def suggestion(self) -> str:
        """Settings that would fit; the number of external groups shrinks with the batch."""
        if self.smaller is None:
            return f"Choose a smaller model{self.other}."
        groups = self.smaller.groups
        external = min(groups - 1, -(-groups * self.external // self.shape.groups))
        changes = {
            "local-groups": (self.shape.groups - self.external, groups - external),
            "external-groups": (self.external, external),
            "group-size": (self.shape.group_size, self.smaller.group_size),
            "max-new-tokens": (self.shape.new_tokens, self.smaller.new_tokens),
        }
        flags = [f"--{name} {new}" for name, (old, new) in changes.items() if new != old]
        return "This fits: " + " ".join([*flags, *([f"--precision {self.precision}"] if self.precision else [])])


def plan_round_memory(
    config: RunConfig,
    available: int | None = None,
    size: ModelSize | None = None,
    fallback: bool = False,
    prompt: float = 0.0,
) -> MemoryPlan | None:
    """The memory of the run's rounds on this machine; None where unknown: an engine not built in, a GPU that does not answer,
    a model that is neither on this disk nor given by its size.

    available: bytes of the computer's memory, by default what is free; where an NVIDIA GPU trains, its own memory counts
    instead. fallback: transformers computes it. prompt: mean tokens of the run's questions; 0 where they
    were not counted. Blocks, with such a GPU for seconds."""
    trainer = engines.choose_trainer(config).rpartition("+")[2]
    if trainer not in ("torch", "mlx"):
        return None
    on_gpu = trainer == "torch" and (config.device.startswith("cuda") or (config.device == "auto" and has_nvidia()))
    card = _card(config.device, int(time.time() / ASKED_AGAIN_S)) if on_gpu else None
    if config.device.startswith("cuda") and card is None:
        return None
    if size is None:
        try:
            folder = load_request.local_folder(config)
        except ModelNotFound:
            return None
        size, _ = model_size(folder, load_request.build_load_request(config))
        fallback = fallback or bool(trainer == "torch" and why_not(read_json(folder / "config.json")))
    free = card.free if card else hardware.available_memory() if available is None else available
    groups = local_groups(config, size.parameters) + config.external_groups
    shape = RoundShape(groups, config.group_size, round(LONGEST * prompt) or PROMPT, config.max_new_tokens)

    plan = MemoryPlan(shape, config.external_groups, _needed(config, size, shape, fallback, card), free, None)
    return plan if plan.fits else _with_smaller(plan, config, size, fallback, card)


def _with_smaller(
    found: MemoryPlan, config: RunConfig, size: ModelSize, fallback: bool, card: CardMemory | None
) -> MemoryPlan:
    """The plan with a round that would fit: fewer and smaller groups, else a 4-bit base where possible, else shorter
    answers."""
    full, on_torch = size.trainable >= size.parameters, engines.choose_trainer(config) == "torch" and not fallback
    four = f"{hardware.FOUR_BIT}-float32" if config.precision == "float32" else hardware.FOUR_BIT
    kinds = [
        config.precision,
        *([four] if on_torch and not full and not hardware.is_four_bit(config.precision) else []),
    ]
    for kind, shorten in [*((kind, False) for kind in kinds), *((kind, True) for kind in reversed(kinds))]:
        needed = partial(_needed, msgspec.structs.replace(config, precision=kind), size, fallback=fallback, card=card)
        smaller = round_memory.smaller_round(needed, found.shape, found.available, shorten=shorten)
        if smaller is not None:
            return replace(found, smaller=smaller, precision="" if kind == config.precision else kind)
    lora = ", or the method lora with --precision 4bit" if on_torch else ", or the method lora"
    return replace(found, other=lora if full else "")


@lru_cache(maxsize=2)
def _card(device: str, _when: int) -> CardMemory | None:
    return probe.card_memory_in_child(device)


def node_memory_bytes(limits: ResourceLimits) -> int:
    """Bytes that a node may use: what is free, within the person's limit."""
    free = hardware.available_memory()
    return min(free, int(limits.max_memory * 1e9)) if limits.max_memory else free


def require_round_memory(
    config: RunConfig,
    available: int | None = None,
    size: ModelSize | None = None,
    fallback: bool = False,
    prompt: float = 0.0,
) -> None:
    """Raise OutOfMemory, with settings that would fit, when the run's rounds do not. See plan_round_memory."""
    plan = plan_round_memory(config, available, size, fallback, prompt)
    if plan is not None:
        round_memory.require_memory(plan.needed, plan.suggestion, plan.available)


def _needed(config: RunConfig, size: ModelSize, shape: RoundShape, fallback: bool, card: CardMemory | None) -> int:
    """Bytes; for a pair, those of both engines, of which only the trainer is on a GPU."""
    trainer = engines.choose_trainer(config)
    wide = computes_in(config, trainer) == "float32" and config.precision not in ("float16", "q8_0", "q4_0")
    if card and config.precision in ("auto", hardware.FOUR_BIT):
        wide = card.compute_bytes == 4
    sharded = trainer.endswith("torch") and size.parameters < round_memory.SHARDED_BELOW and not card
    workers = (config.threads or hardware.default_threads()) if sharded else 1
    beside = _bytes_of_generator(config, size) if "+" in trainer and not card else 0
    beside += round_memory.MLX if trainer.endswith("mlx") else 0
    beside += 0 if card else round_memory.TOKENIZER * size.vocabulary
    return beside + round_memory.bytes_of_round(
        size,
        shape,
        compute_bytes=4 if wide else 2,
        workers=workers,
        fallback=fallback,
        four_bit=hardware.is_four_bit(config.precision),
        card=card.total if card else 0,
    )


def _bytes_of_generator(config: RunConfig, size: ModelSize) -> int:
    """Of llama.cpp beside the trainer: the person's GGUF file as it is, or one in F16, and the logits of a batch."""
    weights = 2 * size.parameters
    with contextlib.suppress(BackendError, OSError):
        if (file := gguf_of(load_request.local_folder(config))) is not None:
            weights = file.stat().st_size
    return weights + 4 * round_memory.LLAMA_CPP_BATCH * size.vocabulary


def computes_in(config: RunConfig, trainer: str) -> str:
    """The type that the trainer computes in: unless set, MLX uses float32 on a processor and bfloat16 on Apple's GPU."""
    if trainer.endswith("mlx") and config.precision == "auto":
        on_gpu = config.device != "cpu" and hardware.detect_hardware().matrix_unit == "apple"
        return "bfloat16" if on_gpu else "float32"
    return hardware.computes_in(config.precision)
