"""What this computer offers, found without importing a numerical library, and whether a model fits."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from sapo_backends.base import OutOfMemory

_CGROUP = Path("/sys/fs/cgroup")
SPARE = 0.9
"""Share of the free memory that may be planned with."""
_X86_UNITS = ("amx_bf16", "avx512_bf16", "avx2")


@dataclass(frozen=True, slots=True)
class Hardware:
    """cores: physical ones this process may use. memory, available: bytes. matrix_unit: the best one for bfloat16."""

    cores: int
    memory: int
    available: int
    matrix_unit: str
    system: str

    @property
    def fast_bfloat16(self) -> bool:
        """Whether the processor has an instruction for bfloat16 products."""
        return self.matrix_unit in {"amx_bf16", "avx512_bf16", "apple"}


def cores() -> int:
    """Physical cores, bounded by what the scheduler lets this process use."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return max(1, min(physical, allowed))


def default_threads() -> int:
    """OMP_NUM_THREADS where somebody set it, else the physical cores."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdecimal() and int(wanted) > 0 else cores()


def _cgroup_bytes(name: str) -> int | None:
    try:
        return int((_CGROUP / name).read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or "max"
        return None


def available_memory() -> int:
    """Bytes that can be allocated now, within the container's limit if there is one."""
    free = int(psutil.virtual_memory().available)
    limit, used = _cgroup_bytes("memory.max"), _cgroup_bytes("memory.current")
    return free if limit is None or used is None else max(0, min(free, limit - used))


def matrix_unit() -> str:
    """The best matrix or vector unit: amx_bf16, avx512_bf16, avx2, apple, neon or unknown."""
    if platform.machine().lower() in {"arm64", "aarch64"}:
        return "apple" if platform.system() == "Darwin" else "neon"
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return "unknown"
    return next((unit for unit in _X86_UNITS if unit in flags), "unknown")


def processor() -> str:
    """The processor's name as its maker prints it, or what the platform says."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()


def has_nvidia() -> bool:
    """Whether there is an NVIDIA driver, whose GPUs have memory of their own."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def detect() -> Hardware:
    """Look once; takes a few milliseconds."""
    limit = _cgroup_bytes("memory.max")
    total = int(psutil.virtual_memory().total)
    return Hardware(
        cores=cores(),
        memory=total if limit is None else min(total, limit),
        available=available_memory(),
        matrix_unit=matrix_unit(),
        system=platform.system(),
    )


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The figures of a decoder that decide its memory and speed. tied: the embedding is the output layer too."""

    parameters: int
    trainable: int
    layers: int
    hidden: int
    intermediate: int
    key_value: int
    vocabulary: int
    tied: bool = True

    @property
    def multiplied(self) -> int:
        """Weights that every token is multiplied with: all but an embedding that is only looked up."""
        return self.parameters - (0 if self.tied else self.vocabulary * self.hidden)


def bytes_to_load(size: ModelSize, *, compute_bytes: int) -> int:
    """Weights; for what is trained also float32 gradients and two Adam moments, beside a copy to compute with."""
    frozen = size.parameters - size.trainable
    return frozen * compute_bytes + size.trainable * (16 + compute_bytes)


@dataclass(frozen=True, slots=True)
class RoundShape:
    """What decides a round's memory: rows = groups * group_size completions; prompt, new_tokens: the longest."""

    groups: int
    group_size: int
    prompt: int
    new_tokens: int

    @property
    def rows(self) -> int:
        """Completions of a round."""
        return self.groups * self.group_size


PROGRAM = 350 << 20
"""Bytes of the interpreter with a numerical library, before any model."""
MICRO_BATCH, LARGE_MICRO_BATCH = 2048, 1400
"""Tokens of a training micro-batch, and of one of a large model, whose products are long enough with fewer: a third of
the activations less, no slower."""
CHUNK = 1 << 25
"""Logits held at once in an update, in the compute type: so many rows that the unembedding, which is read once for each
chunk, is not what takes the time."""
KEPT_PROBABILITIES = 1 << 22
"""Probabilities of up to so many tokens times vocabulary are kept from an update's forward pass to its backward
pass."""
SHARDED_BELOW = 100_000_000
"""Parameters under which torch gives each thread a micro-batch of its own; of larger models each shard would stream the
weights from memory again, and operations are long."""


def micro_batch(parameters: int) -> int:
    """Tokens of a training micro-batch of a model of that size."""
    return MICRO_BATCH if parameters < SHARDED_BELOW else LARGE_MICRO_BATCH


def bytes_to_generate(size: ModelSize, shape: RoundShape) -> int:
    """Float32 keys and values at full length (a prompt's once for its group, and again while rows that ended leave the
    batch), one step's logits and their probabilities."""
    token = 2 * size.layers * size.key_value * 4
    cache = token * (shape.rows * shape.new_tokens + shape.groups * shape.prompt)
    return int(1.75 * cache) + 12 * shape.rows * size.vocabulary


def bytes_to_update(size: ModelSize, shape: RoundShape, *, compute_bytes: int, workers: int = 1) -> int:
    """Activations of one micro-batch a worker, its logits, and its own copy of the gradient.

    A layer keeps about ten hidden-sized and four intermediate-sized rows a token for the backward pass, two of these
    with an adapter.
    """
    everything = shape.groups * shape.prompt + shape.rows * shape.new_tokens
    budget = micro_batch(size.parameters)
    tokens = min(max(budget, shape.prompt + shape.new_tokens), everything)
    workers = min(workers, -(-everything // budget))
    wide = 2 if size.trainable < size.parameters else 4
    saved = size.layers * compute_bytes * (10 * size.hidden + wide * size.intermediate) + 16 * size.hidden
    logits = compute_bytes * min(CHUNK, tokens * size.vocabulary) + 4 * min(
        KEPT_PROBABILITIES, tokens * size.vocabulary
    )
    return workers * (tokens * saved + logits + 4 * size.trainable)


def bytes_of_round(size: ModelSize, shape: RoundShape, *, compute_bytes: int, workers: int = 1) -> int:
    """Peak of a whole round: the program, the loaded model, generation with its own layout of the weights
    (torch_backend.session), and the update, whose memory adds to that of generation because allocators keep what they
    once had.

    Measured on torch with the two starters and 256 completions: 4 to 30 % more than the real peak.
    """
    update = bytes_to_update(size, shape, compute_bytes=compute_bytes, workers=workers) if size.trainable else 0
    laid_out = compute_bytes * size.multiplied if compute_bytes == 2 or size.parameters < SHARDED_BELOW else 0
    generation = laid_out + bytes_to_generate(size, shape)
    return PROGRAM + bytes_to_load(size, compute_bytes=compute_bytes) + generation + update


def smaller_round(needed: Callable[[RoundShape], int], shape: RoundShape, available: int) -> RoundShape | None:
    """The largest halved round that fits: fewer groups down to 4, smaller groups down to 4, shorter completions down
    to 32, and then fewer groups again. None when not even that fits."""
    while needed(shape) > SPARE * available:
        if shape.groups > 4:
            shape = replace(shape, groups=max(4, shape.groups // 2))
        elif shape.group_size > 4:
            shape = replace(shape, group_size=max(4, shape.group_size // 2))
        elif shape.new_tokens > 32:
            shape = replace(shape, new_tokens=max(32, shape.new_tokens // 2))
        elif shape.groups > 1:
            shape = replace(shape, groups=shape.groups // 2)
        else:
            return None
    return shape


def require(needed: int, suggestion: str, available: int | None = None) -> None:
    """Raise OutOfMemory unless that many bytes are free, with a tenth to spare."""
    free = available_memory() if available is None else available
    if needed > SPARE * free:
        raise OutOfMemory(needed, free, suggestion)
