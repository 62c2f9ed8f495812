"""What this machine can do at best, and estimates of a round's seconds from that where nothing was measured."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sapo_backends.common import hardware
from sapo_backends.common.hardware import available_memory, computes_in, is_four_bit, physical_cores
from sapo_backends.common.round_memory import FOUR_BIT_BYTES, SHARDED_BELOW, ModelSize
from sapo_backends.measure.choice import RoundWorkload

# Upper limits of this machine: multiplications and memory reads per second, to compare an engine with.
#
# A computation of F floating-point operations that reads B bytes takes at least max(F / multiply, B / read) seconds
# (Williams et al. 2009, "Roofline").

LARGEST = 2048
ENOUGH_S = 0.01
"""A product that takes this long is large enough to measure the rate: one five times as long agrees within 3 %."""
TRIES = 4
"""Number of runs, of which the quickest counts: a busy machine interrupts some, and the first one warms up."""
READ_BYTES = 1 << 29
REPEAT_S = 0.15
"""Time for repeated runs, of which the quickest counts: other programs only make a run slower."""
Work = Callable[[], object]
Clock = Callable[[], float]
PROCESSOR_SECONDS = sys.platform == "linux"
"""Time each thread alone by its processor seconds, so that a busy machine measures like a quiet one. Other systems use
the wall clock: Apple's library computes in its own threads, and Windows counts in steps of 16 ms."""


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """multiply: FLOP/s of square products by precision. read: bytes/s of memory. Empty and 0: not measured.

    device: cpu, cuda or mps.
    """

    multiply: Mapping[str, float] = field(default_factory=dict)
    read: float = 0.0
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class CardMemory:
    """An NVIDIA GPU's memory in bytes, and the bytes per number of the type in which precision auto computes there."""

    free: int
    total: int
    compute_bytes: int


def card_memory(name: str) -> CardMemory:
    """The memory of a LoadRequest's CUDA device. Raises what torch raises if it has no such GPU."""
    import torch

    from sapo_backends.torch_backend.loading import pick_precision

    device = torch.device("cuda" if name == "auto" else name)
    free, total = torch.cuda.mem_get_info(device)
    return CardMemory(int(free), int(total), pick_precision("auto", device).itemsize)


def most_generated(size: ModelSize, width: int, limits: MachineLimits, precision: str) -> float:
    """Upper limit, in tokens/s, for decoding `width` rows; 0 if unknown.

    Each step reads the weights once and multiplies every row with them (2 FLOP per weight).
    """
    rate = limits.multiply.get(_kind(precision), 0.0)
    if rate <= 0 or limits.read <= 0:
        return 0.0
    stored = FOUR_BIT_BYTES if is_four_bit(precision) else 2 if precision in ("bfloat16", "float16") else 4
    step = max(2 * width * size.multiplied / rate, size.parameters * stored / limits.read)
    return width / step


def _kind(precision: str) -> str:
    """The type in which products are computed."""
    return computes_in(precision) if is_four_bit(precision) else precision


def most_trained(size: ModelSize, limits: MachineLimits, precision: str) -> float:
    """Upper limit, in completion tokens/s, for training; 0 if unknown.

    6 FLOP per weight (forward, and backward into both activations and weights); 4 if only an adapter is trained.
    """
    flops = (6 if size.trainable >= size.parameters else 4) * size.multiplied
    return limits.multiply.get(_kind(precision), 0.0) / flops


def measure_limits(engine: str, threads: int, device: str = "auto") -> MachineLimits:
    """The limits that this engine's library reaches on a LoadRequest's device; takes about a second.

    Raises ImportError, or RuntimeError when there is no such device.
    """
    if engine == "mlx":
        return _mlx(device)
    return _torch(threads, device) if engine == "torch" else _numpy()


def _fastest(work: Work, clock: Clock) -> float:
    """Seconds of the quickest of TRIES runs, or of more if there is time."""
    until, best = time.perf_counter() + REPEAT_S, min(_seconds(work, clock) for _ in range(TRIES))
    while time.perf_counter() < until:
        best = min(best, _seconds(work, clock))
    return best


def _seconds(work: Work, clock: Clock) -> float:
    began = clock()
    work()
    return clock() - began


def _multiply(product: Callable[[int], Work], clock: Clock) -> float:
    """FLOP/s of the largest cube that does not take long, whatever else the machine is doing. product: edge -> one
    multiplication."""
    edge = 256
    while edge < LARGEST and min(_seconds(work, clock) for work in [product(edge)] * TRIES) <= ENOUGH_S:
        edge *= 2
    return 2.0 * edge**3 / _fastest(product(edge), clock)


def _read_bytes() -> int:
    return max(1 << 20, min(READ_BYTES, available_memory() // 8))


def _torch(threads: int, name: str) -> MachineLimits:
    import torch

    best = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(best if name == "auto" else name)
    wait: Work = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(device.type, int)
    alone = device.type == "cpu" and PROCESSOR_SECONDS
    workers, clock = (max(1, min(threads, physical_cores())), time.thread_time) if alone else (1, time.perf_counter)

    def product(kind: Any) -> Callable[[int], Work]:
        def of(edge: int) -> Work:
            a, b = (torch.randn(edge, edge, device=device).to(kind) for _ in range(2))

            def once() -> None:
                torch.mm(a, b)
                wait()

            return once

        return of

    def read() -> float:
        many = torch.ones(_read_bytes() // (4 * workers), device=device)
        return many.numel() * 4 / _fastest(lambda: float(many.sum()), clock)

    with ThreadPoolExecutor(
        workers, initializer=lambda: torch.set_num_threads(1 if alone else max(1, threads))
    ) as pool:

        def together(rate: Callable[[], float]) -> float:
            return sum(future.result() for future in [pool.submit(rate) for _ in range(workers)])

        kinds = (torch.float32, torch.bfloat16)
        rates = {str(kind).removeprefix("torch."): together(partial(_multiply, product(kind), clock)) for kind in kinds}
        return MachineLimits(rates, together(read), device.type)


def _mlx(name: str) -> MachineLimits:
    import mlx.core as mx

    import sapo_backends.mlx_backend  # noqa: F401 - before the first product: float32 stays float32

    if name == "cpu":
        mx.set_default_device(mx.cpu)
    device = "mps" if mx.metal.is_available() and name != "cpu" else "cpu"

    def product(kind: Any) -> Callable[[int], Callable[[], object]]:
        def of(edge: int) -> Callable[[], object]:
            a, b = (mx.random.normal((edge, edge)).astype(kind) for _ in range(2))
            mx.eval(a, b)
            return lambda: mx.eval(a @ b)

        return of

    many = mx.ones((_read_bytes() // 4,))
    mx.eval(many)
    kinds = (mx.float32, mx.float16, mx.bfloat16)
    rates = {str(kind).removeprefix("mlx.core."): _multiply(product(kind), time.perf_counter) for kind in kinds}
    return MachineLimits(rates, many.size * 4 / _fastest(lambda: mx.eval(many.sum()), time.perf_counter), device)


def _numpy() -> MachineLimits:
    import numpy as np

    rng = np.random.default_rng(0)

    def product(edge: int) -> Callable[[], object]:
        a, b = (rng.standard_normal((edge, edge), dtype=np.float32) for _ in range(2))
        return lambda: a @ b

    many = np.ones(_read_bytes() // 4, np.float32)
    rate = _multiply(product, time.perf_counter)
    return MachineLimits({"float32": rate}, many.nbytes / _fastest(many.sum, time.perf_counter))


# Estimated seconds of work that was never measured, from the machine's limits: a stated rule, not a measurement.
#
# An engine reaches a share of what the roofline allows. The shares are those of the torch engine on two cores
# (docs/benchmarks/engines.md); other machines differ by up to a factor of two.

PRODUCTS, MATRIX_UNIT, SMALL = (0.58, 0.66), (0.35, 0.35), (0.14, 0.4)
"""Shares of the limit reached by generation of a full batch and by the update. A matrix unit (AMX, a GPU) spends more
of the time waiting for everything else; for models below 100M parameters in bfloat16, most of the work is not matrix
products.
"""
OF_TOKEN, OF_CALL, OF_UPDATE = 0.0015, 0.25, 0.6
"""Seconds beyond the products for models from 100M parameters on a processor without a matrix unit: per token written
(attention, sampling from the vocabulary), per batch of questions, and per update (products compiled for its shape).
Fitted on six runs on custom tasks (docs/benchmarks/real-tasks.md): with short answers and small batches these
dominate."""
LLAMA_CPP, LLAMA_CPP_K, LLAMA_CPP_TOKEN = 0.38, 0.88, 0.00275
"""The share of the float32 limit that llama.cpp reaches, for prompts and answers alike, with a low-bit file, and with
one of k-quants, for which it has faster products; then its seconds per token written beyond the products. Three
figures fitted to three rows (docs/benchmarks/gguf-matrix.md), so they are not tested by them."""
MLX_ON_CPU = 2.2
"""Factor by which MLX on a processor is slower than its limits suggest (the same page)."""
FALLBACK = {"bfloat16": 1.8, "float32": 1.15}
"""Factor by which transformers is slower than our own decoder (docs/benchmarks/memory.md)."""
STATE_PASSES, STATE_PASSES_BY_KERNELS = 10, 4
"""How many times each generated token passes over a row's state, at the memory read rate; in addition to the products.
"""
RECOMPUTED, TRAINING_PASSES = 1.5, 5
"""Factor on an update's products where layers with a state are computed twice, and how many times the update passes
over what such a layer keeps per token. From two rows of docs/benchmarks/memory.md."""


@dataclass(frozen=True, slots=True)
class RateEstimator:
    """Estimated speed of a model on a machine where it was not measured. precision: that of the products. fallback:
    transformers computes it. generator: "llamacpp" when that writes instead of the trainer, from a file of that
    quantisation, such as "Q4_K_M". mlx: MLX computes it, not torch."""

    size: ModelSize
    limits: MachineLimits
    precision: str
    fallback: bool = False
    generator: str = ""
    quantisation: str = ""
    mlx: bool = False

    @property
    def known(self) -> bool:
        """Whether the limits are known."""
        return most_generated(self.size, 1, self.limits, self.precision) > 0

    def generate(self, work: RoundWorkload) -> float:
        """Seconds to read the prompts and write the answers: one step per token of the longest answer."""
        size, rows = self.size, max(1, work.rows)
        if self.generator == "llamacpp":  # reads each question whole
            written, share = rows * work.new_tokens, LLAMA_CPP_K if "_K" in self.quantisation else LLAMA_CPP
            products = 2 * size.multiplied * (written + work.groups * work.prompt * self._body)
            return products / (share * self.limits.multiply["float32"]) + LLAMA_CPP_TOKEN * written
        width = max(1, round(rows * work.new_tokens / work.longest))  # rows that ended leave the batch
        rate = _shares(size, self.limits, self.precision)[0] * most_generated(size, width, self.limits, self.precision)
        seconds = rows * work.new_tokens / rate + self._forward(work.prompt_tokens)
        seconds = self._on_processor * seconds + self._beside(OF_TOKEN * rows * work.new_tokens + OF_CALL)
        if not self.fallback:
            return seconds
        return seconds * self._slower() + self._states(rows * work.new_tokens, work.prompt_tokens, trains=False)

    def update(self, context: float, answers: float) -> float:
        """Seconds to train on `answers` completion tokens after `context` prompt tokens, which are not predicted
        themselves."""
        size = self.size
        rate = _shares(size, self.limits, self.precision)[1] * most_trained(size, self.limits, self.precision)
        seconds = self._on_processor * (context * self._body + answers) / rate + self._beside(OF_UPDATE)
        if not self.fallback:
            return seconds
        seconds *= RECOMPUTED if size.recurrent else 1.0
        return seconds * self._slower() + self._states(0.0, context + answers, trains=True)

    def _beside(self, seconds: float) -> float:
        small = self.size.parameters < SHARDED_BELOW
        return 0.0 if small or _shares(self.size, self.limits, self.precision) != PRODUCTS else seconds

    @property
    def _body(self) -> float:
        """Share of the products needed for a token whose next token is not predicted: everything but the unembedding."""
        return 1.0 - self.size.vocabulary * self.size.hidden / max(1, self.size.multiplied)

    def _forward(self, tokens: float) -> float:
        share, trained = (
            _shares(self.size, self.limits, self.precision)[1],
            most_trained(self.size, self.limits, self.precision),
        )
        return tokens * self._body / (3 * trained * share)

    def _slower(self) -> float:
        return FALLBACK.get(self.precision, 1.0)

    @property
    def _on_processor(self) -> float:
        return MLX_ON_CPU if self.mlx and self.limits.device == "cpu" else 1.0

    def _states(self, written: float, read: float, *, trains: bool) -> float:
        """Seconds of layers with a state, in addition to the products."""
        kernels = self.limits.device == "cpu" and hardware.c_compiler() is not None
        numbers = (STATE_PASSES_BY_KERNELS if kernels else STATE_PASSES) * self.size.state * written
        if trains:
            per_token = self.size.by_kernels if kernels else self.size.recurrent
            numbers += TRAINING_PASSES * self.size.layers * per_token * read
        return 4 * numbers / self.limits.read


def round_seconds(
    size: ModelSize, work: RoundWorkload, limits: MachineLimits, precision: str, *, fallback: bool = False
) -> float | None:
    """Seconds of a round; None if the limits are unknown. fallback: transformers computes it."""
    rates = RateEstimator(size, limits, precision, fallback)
    if not rates.known:
        return None
    update = rates.update(work.groups * work.prompt, work.rows * work.new_tokens) if work.trains else 0.0
    return rates.generate(work) + update


def _shares(size: ModelSize, limits: MachineLimits, precision: str) -> tuple[float, float]:
    on_gpu, wide = limits.device != "cpu", precision.endswith("float32")
    if size.parameters < SHARDED_BELOW and (on_gpu or not wide):
        return SMALL
    by_unit = on_gpu or (not wide and hardware.matrix_unit() in ("amx_bf16", "apple"))
    return MATRIX_UNIT if by_unit else PRODUCTS
