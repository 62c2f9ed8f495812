"""What the engine needs of torch and of the C library: fast paths that may be missing, threads, TorchScript, oneDNN.

Fast paths: a path that is disabled on purpose or falls back is always logged, never silently skipped. SAPO_WITHOUT, a
comma-separated list of names in `PATHS`, disables some: for bug reports, and for tests/benchmarks/paths.py, which
measures what each is worth. It is read once, when this module is imported.

Threads: small models run faster with one thread per shard of the work than with all threads inside each operation. An
operation of a 5M-parameter model takes microseconds; splitting it means two barriers each time, and on a busy machine a
barrier waits for the scheduler (measured: 20 times slower). A shard meets the others only at its end.

TorchScript: processing a batch with a small model takes thousands of operations of a few microseconds each, and
Python's share of that is a tenth to a quarter of the time. Where TorchScript is unavailable (it needs the function's
source, and is being removed from torch), the same function runs as plain Python.

oneDNN's packed bfloat16 weights: torch offers them only as private functions (torch.ops.mkldnn), checked before use.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.common import hardware, round_memory

LOG = logging.getLogger(__name__)
PATHS = {
    "own": "this package's own decoder",
    "native": "the compiled C kernels",
    "onednn": "oneDNN's packed bfloat16 weights",
    "int8": "8-bit products in the generation of rollouts",
    "torchscript": "TorchScript",
    "cuda-graph": "CUDA graphs",
}
"""Name of a path -> its description."""
LEFT_OUT = frozenset(filter(None, os.environ.get("SAPO_WITHOUT", "").split(",")))
FAST = frozenset(PATHS) - {"own"}
"""Paths that only speed up what this package computes."""
_FOUND: dict[str, str] = {}
_FAILED: set[str] = set()


def is_left_out(name: str) -> bool:
    """Whether SAPO_WITHOUT lists that path, or a check found that it gives wrong results here."""
    return name in LEFT_OUT or name in _FAILED


def leave_out(name: str) -> None:
    """Disable that path from now on, whether used before or not; a loaded model keeps the layout of its weights."""
    _FAILED.add(name)


@contextmanager
def without_paths(*names: str) -> Iterator[None]:
    """A context in which those paths are disabled, in every thread."""
    added = set(names) - LEFT_OUT - _FAILED
    _FAILED.update(added)
    try:
        yield
    finally:
        _FAILED.difference_update(added)


def fall_back(name: str, reason: str) -> None:
    """Record, and log once per process, that a path which should work here does not."""
    if name not in _FOUND:
        _FOUND[name] = reason
        LOG.warning("Slower than it could be: %s cannot be used here (%s).", PATHS[name], reason)


def list_fallbacks() -> dict[str, str]:
    """Name -> reason for every path that has fallen back in this process."""
    return dict(_FOUND)


Item = TypeVar("Item")
Result = TypeVar("Result")


class ShardWorkers:
    """`count` threads, each with its own shard; count 1 computes in the caller's thread, with all threads inside
    operations."""

    def __init__(self, threads: int, parameters: int, device: torch.device) -> None:
        sharded = device.type == "cpu" and parameters < round_memory.SHARDED_BELOW
        self.count = threads if sharded else 1
        if device.type == "cpu":
            torch.set_num_threads(1 if sharded else threads)
        self._threads, self._inside = threads, device.type == "cpu" and not sharded
        self._turns = threading.Semaphore(self.count)
        self._pool = ThreadPoolExecutor(self.count, thread_name_prefix="shard") if self.count > 1 else None

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Results in the order of items. All shards finish before an error from one is raised."""
        if self._pool is None or len(items) < 2:
            return [work(item) for item in items]

        def in_turn(item: Item) -> Result:
            with self._turns:
                return work(item)

        futures = [self._pool.submit(in_turn, item) for item in items]
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def use_share(self, share: float) -> None:
        """From the next map on, run only this share of the threads at a time. The shards, and so the results, stay the
        same. Call from the thread that computes."""
        if self._inside:
            torch.set_num_threads(max(1, int(self._threads * share)))
        self._turns = threading.Semaphore(max(1, int(self.count * share)))

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()


def split_range(total: int, count: int) -> list[range]:
    """range(total) cut into at most count consecutive parts of nearly equal size, none empty."""
    edges = [total * i // count for i in range(count + 1)]
    return [range(a, b) for a, b in pairwise(edges) if b > a]


Function = TypeVar("Function", bound=Callable[..., Any])

_SCRIPTING = threading.Lock()
"""The first call may come from several threads at once, and TorchScript's compiler is not thread-safe."""
_KNOWN: dict[Callable[..., Any], Callable[..., Any]] = {}


def script_function(function: Function) -> Function:
    """The function compiled by TorchScript, or unchanged."""
    if is_left_out("torchscript"):
        return function
    known = _KNOWN.get(function)
    if known is None:
        with _SCRIPTING:
            known = _KNOWN.setdefault(function, _script(function))
    return known  # type: ignore[return-value]


def on_cpu(function: Function, x: Tensor) -> Function:
    """script_function(function) if x is in the processor's memory; on other devices TorchScript would compile kernels
    for every shape."""
    return script_function(function) if x.device.type == "cpu" else function


def _plus_one(x: Tensor) -> Tensor:
    return x + 1


def torchscript_works() -> bool:
    """Whether TorchScript compiles functions here."""
    return script_function(_plus_one) is not _plus_one


def _script(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result: Callable[..., Any] = torch.jit.script(function)
    except Exception as error:  # whatever TorchScript lacks, the plain function works
        fall_back(
            "torchscript", f"{function.__name__}: {str(error).strip().partition(chr(10))[0] or type(error).__name__}"
        )
        return function
    return result


def packs_bfloat16() -> bool:
    """Whether to use packed weights: they work here and are not disabled."""
    return not is_left_out("onednn") and packing_works()


@cache
def packing_works() -> bool:
    """Whether packing works here: the processor has bfloat16 products, and torch's private functions compute them.

    If it should work and does not, that is recorded as a fallback.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        wrong = "" if _computes() else "it computes wrong products"
    except (AttributeError, RuntimeError, TypeError) as error:
        wrong = f"torch {torch.__version__}: {error}"
    if wrong:
        fall_back("onednn", wrong)
    return not wrong


def _computes() -> bool:
    """Whether a packed SwiGLU agrees with plain float32 products."""
    x, weight = (torch.randn(n, 32).bfloat16() for n in (5, 48))
    packed = pack_for_onednn(weight)
    gate = torch.ops.mkldnn._linear_pointwise(x, packed, None, "swish", [], "")
    output = torch.ops.mkldnn._linear_pointwise(x, gate, packed, None, "mul")
    y = F.linear(x.float(), weight.float())
    return bool(((F.silu(y) * y - output).abs() <= 0.05 * (1 + y.square())).all())


def pack_for_onednn(weight: Tensor) -> Tensor:
    """weight (out, in) in oneDNN's own layout, for torch.ops.mkldnn._linear_pointwise only."""
    result: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
    return result


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated on the device now: an NVIDIA GPU's own memory, otherwise the computer's."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else hardware.available_memory()
