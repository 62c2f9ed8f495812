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


FOUR_BIT_BYTES = 0.5625
"""Of a weight in 4 bits, with its share of a float32 scale for each 64."""


def bytes_to_load(size: ModelSize, *, compute_bytes: int, four_bit: bool = False) -> int:
    """Weights; for what is trained also float32 gradients and two Adam moments, beside a copy to compute with.

    four_bit: all but the embeddings, of which two are held while one projection is dense, the widest.
    """
    trained = size.trainable * (16 + compute_bytes)
    if not four_bit:
        return max(0, size.parameters - size.trainable) * compute_bytes + trained
    tables = size.vocabulary * size.hidden * (1 if size.tied else 2)
    widest = 2 * size.intermediate * size.hidden
    return int((size.parameters - tables) * FOUR_BIT_BYTES) + (tables + widest) * compute_bytes + trained


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


PROGRAM, SMALL_PROGRAM = 350 << 20, 220 << 20
"""Bytes of the interpreter with a numerical library, before any model, and of that alone: a small model's own kernels leave
alone what a large one's products load besides."""
MLX = 160 << 20
"""Bytes that MLX holds beside what is counted (graphs, freed buffers), measured on a CPU with the bundled starter."""
TRANSFORMERS = 250 << 20
"""Bytes of transformers and what it imports."""
FALLBACK_MICRO_BATCH = 1024
"""The same for models that transformers computes, whose layers keep several times as much a token."""
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


KV_BUDGET = 2 << 30
"""Bytes of keys and values that the rows which are generated at once may need at full length; further rows wait. A fixed
number: what fits into the memory that happens to be free would make another batch, and other rounding, each time."""


def micro_batch(parameters: int) -> int:
    """Tokens of a training micro-batch of a model of that size."""
    return MICRO_BATCH if parameters < SHARDED_BELOW else LARGE_MICRO_BATCH


def bytes_to_generate(size: ModelSize, shape: RoundShape) -> int:
    """Float32 keys and values at full length of the rows that are generated at once (a prompt's once for its group), again
    those of a layer while rows that ended leave the batch; one step's logits and their probabilities."""
    token = 2 * size.layers * size.key_value * 4
    whole = token * (shape.rows * shape.new_tokens + shape.groups * shape.prompt)
    at_once = min(whole, max(KV_BUDGET, token * (shape.prompt + shape.new_tokens)))
    return int(1.25 * at_once) + 12 * shape.rows * size.vocabulary


COMPILED = 200 << 20
"""Of products that oneDNN compiled for the shapes of an update, and TorchScript's; fitted like the next."""


def bytes_of_unembedding(size: ModelSize, compute_bytes: int) -> int:
    """What oneDNN's own copies of the unembedding take in an update beyond what the activations leave free: two of them, as
    far as the unembedding is the model. Fitted (docs/benchmarks/memory.md): for a vocabulary of 262k it is most of the
    update."""
    head = size.vocabulary * size.hidden
    return 2 * compute_bytes * head * head // max(1, size.parameters) if compute_bytes == 2 else 0


def bytes_to_update(size: ModelSize, shape: RoundShape, *, compute_bytes: int, workers: int = 1) -> int:
    """Activations of one micro-batch a worker, its logits, and its own copy of the gradient.

    A layer keeps about ten hidden-sized and four intermediate-sized rows a token for the backward pass, two of these
    with an adapter. Micro-batches are about equal (update.plan_micro_batches).
    """
    everything = shape.groups * shape.prompt + shape.rows * shape.new_tokens
    budget = micro_batch(size.parameters)
    batches = -(-everything // budget)
    tokens = max(min(budget, 11 * everything // (10 * batches)), shape.prompt + shape.new_tokens)
    tokens, workers = min(tokens, everything), min(workers, batches)
    wide = 2 if size.trainable < size.parameters else 4
    saved = size.layers * compute_bytes * (10 * size.hidden + wide * size.intermediate) + 16 * size.hidden
    logits = compute_bytes * min(CHUNK, tokens * size.vocabulary) + 4 * min(
        KEPT_PROBABILITIES, tokens * size.vocabulary
    )
    logits += bytes_of_unembedding(size, compute_bytes)
    kernels = COMPILED if size.parameters >= SHARDED_BELOW else 0
    return kernels + workers * (tokens * saved + logits + 4 * size.trainable)


def bytes_of_round(
    size: ModelSize,
    shape: RoundShape,
    *,
    compute_bytes: int,
    workers: int = 1,
    fallback: bool = False,
    four_bit: bool = False,
) -> int:
    """Peak of a whole round: the program, the loaded model, and generation or the update, whichever needs more.

    fallback: transformers computes the model, with a cache and logits of its own.
    """
    small = size.parameters < SHARDED_BELOW and not fallback
    program = SMALL_PROGRAM if small else PROGRAM
    loaded = program + bytes_to_load(size, compute_bytes=compute_bytes, four_bit=four_bit)
    update = 0
    if size.trainable:
        plan = bytes_to_update_by_transformers if fallback else bytes_to_update
        update = plan(size, shape, compute_bytes=compute_bytes, workers=workers)
    if fallback:
        generated = bytes_to_generate_by_transformers(size, shape, compute_bytes)
        return (
            loaded + TRANSFORMERS + (generated + update if size.parameters < SHARDED_BELOW else max(generated, update))
        )
    is_packed = not four_bit and (compute_bytes == 2 or size.parameters < SHARDED_BELOW)
    laid_out = compute_bytes * size.multiplied if is_packed else 0
    generated = laid_out + bytes_to_generate(size, shape)
    # A small model's engine keeps what it freed, for speed (runtime.keep_memory).
    return loaded + (generated + update if small else max(generated, update))


def bytes_to_generate_by_transformers(size: ModelSize, shape: RoundShape, compute_bytes: int) -> int:
    """A cache in the compute type of every row at full length, twice while a step appends to it, and a step's logits."""
    cache = 2 * size.layers * size.key_value * compute_bytes * shape.rows * (shape.prompt + shape.new_tokens)
    return cache + cache // size.layers + (compute_bytes + 8) * shape.rows * size.vocabulary


def bytes_to_update_by_transformers(size: ModelSize, shape: RoundShape, *, compute_bytes: int, workers: int) -> int:
    """Activations of one micro-batch, as autograd keeps them, and a chunk of its logits; one worker."""
    length = shape.prompt + shape.new_tokens
    tokens = min(max(FALLBACK_MICRO_BATCH, length), shape.rows * length)
    wide = 4 if size.trainable >= size.parameters else 3
    saved = size.layers * compute_bytes * (20 * size.hidden + wide * size.intermediate)
    logits = compute_bytes * min(CHUNK, tokens * size.vocabulary) + bytes_of_unembedding(size, compute_bytes)
    return tokens * saved + logits + 4 * size.trainable * min(workers, 1)


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
