"""What this machine could do at best: multiplications and memory reads a second, to compare an engine with.

The limit of a computation of F floating-point operations that reads B bytes is max(F / multiply, B / read) seconds
(Williams et al. 2009, "Roofline").
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sapo_backends.common.hardware import available_memory, cores
from sapo_backends.common.precisions import computes_in, is_four_bit
from sapo_backends.common.round_memory import FOUR_BIT_BYTES, ModelSize

LARGEST = 2048
ENOUGH_S = 0.01
"""A product that takes so long is large enough to tell the rate: five times as long tells the same within 3 %."""
TRIES = 4
"""Runs of which the quickest counts: a busy machine interrupts some, the first one warms up."""
READ_BYTES = 1 << 29
REPEAT_S = 0.15
"""The quickest run within this time counts: other programs only make it slower."""
Work = Callable[[], object]
Clock = Callable[[], float]
PROCESSOR_SECONDS = sys.platform == "linux"
"""Each thread computes alone and is timed by the processor's seconds that it got, so that a busy machine measures as a quiet
one. Elsewhere by the clock: Apple's library computes in threads of its own, Windows counts in steps of 16 ms."""


@dataclass(frozen=True, slots=True)
class Limits:
    """multiply: FLOP/s of square products by precision. read: bytes/s of memory. Empty and 0: not measured.

    device: where: cpu, cuda or mps.
    """

    multiply: Mapping[str, float] = field(default_factory=dict)
    read: float = 0.0
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class CardMemory:
    """An NVIDIA GPU's memory in bytes, and the bytes of a number in the type that precision auto computes in there."""

    free: int
    total: int
    compute_bytes: int


def card_memory(name: str) -> CardMemory:
    """Of a LoadRequest's device. Raises what torch raises where it has no such GPU."""
    import torch

    from sapo_backends.torch_backend.loading import pick_precision

    device = torch.device("cuda" if name == "auto" else name)
    free, total = torch.cuda.mem_get_info(device)
    return CardMemory(int(free), int(total), pick_precision("auto", device).itemsize)


def most_generated(size: ModelSize, width: int, limits: Limits, precision: str) -> float:
    """Tokens/s at which `width` rows could be decoded at best; 0 when it is not known.

    Each step reads the weights once and multiplies every row with them (2 FLOP a weight).
    """
    rate = limits.multiply.get(_kind(precision), 0.0)
    if rate <= 0 or limits.read <= 0:
        return 0.0
    stored = FOUR_BIT_BYTES if is_four_bit(precision) else 2 if precision in ("bfloat16", "float16") else 4
    step = max(2 * width * size.multiplied / rate, size.parameters * stored / limits.read)
    return width / step


def _kind(precision: str) -> str:
    """The type of the products."""
    return computes_in(precision) if is_four_bit(precision) else precision


def most_trained(size: ModelSize, limits: Limits, precision: str) -> float:
    """Completion tokens/s that could be trained on at best; 0 when it is not known.

    6 FLOP a weight (forward, and backward into both activations and weights); 4 where only an adapter is trained.
    """
    flops = (6 if size.trainable >= size.parameters else 4) * size.multiplied
    return limits.multiply.get(_kind(precision), 0.0) / flops


def measure(engine: str, threads: int, device: str = "auto") -> Limits:
    """The limits as that engine's library reaches them on a LoadRequest's device, in about a second.

    Raises ImportError, RuntimeError when there is no such device.
    """
    if engine == "mlx":
        return _mlx(device)
    return _torch(threads, device) if engine == "torch" else _numpy()


def _fastest(work: Work, clock: Clock) -> float:
    """Seconds of the quickest of TRIES runs, and of as many more as there is time for."""
    until, best = time.perf_counter() + REPEAT_S, min(_seconds(work, clock) for _ in range(TRIES))
    while time.perf_counter() < until:
        best = min(best, _seconds(work, clock))
    return best


def _seconds(work: Work, clock: Clock) -> float:
    began = clock()
    work()
    return clock() - began


def _multiply(product: Callable[[int], Work], clock: Clock) -> float:
    """FLOP/s of the largest cube that does not take long, however busy the machine is meanwhile. product: edge -> one
    multiplication."""
    edge = 256
    while edge < LARGEST and min(_seconds(work, clock) for work in [product(edge)] * TRIES) <= ENOUGH_S:
        edge *= 2
    return 2.0 * edge**3 / _fastest(product(edge), clock)


def _read_bytes() -> int:
    return max(1 << 20, min(READ_BYTES, available_memory() // 8))


def _torch(threads: int, name: str) -> Limits:
    import torch

    best = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(best if name == "auto" else name)
    wait: Work = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(device.type, int)
    alone = device.type == "cpu" and PROCESSOR_SECONDS
    workers, clock = (max(1, min(threads, cores())), time.thread_time) if alone else (1, time.perf_counter)

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
            return sum(one.result() for one in [pool.submit(rate) for _ in range(workers)])

        kinds = (torch.float32, torch.bfloat16)
        rates = {str(kind).removeprefix("torch."): together(partial(_multiply, product(kind), clock)) for kind in kinds}
        return Limits(rates, together(read), device.type)


def _mlx(name: str) -> Limits:
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
    return Limits(rates, many.size * 4 / _fastest(lambda: mx.eval(many.sum()), time.perf_counter), device)


def _numpy() -> Limits:
    import numpy as np

    rng = np.random.default_rng(0)

    def product(edge: int) -> Callable[[], object]:
        a, b = (rng.standard_normal((edge, edge), dtype=np.float32) for _ in range(2))
        return lambda: a @ b

    many = np.ones(_read_bytes() // 4, np.float32)
    rate = _multiply(product, time.perf_counter)
    return Limits({"float32": rate}, many.nbytes / _fastest(many.sum, time.perf_counter))
