"""Which precision a model computes faster in on this processor: a short measurement before its first run.

Neither the processor's name nor its instructions tell: on one machine float32 with the compiled kernels generates twice
as fast as bfloat16 for a model of 1M parameters, and a whole round takes two thirds of the time in bfloat16 for 5M.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from sapo_backends import registry
from sapo_backends.base import BackendError, LoadRequest, PolicyUpdate, Progress, Sampling
from sapo_backends.checkpoints.locate import resolve
from sapo_backends.checkpoints.spec import why_not
from sapo_backends.checkpoints.tokenizer import read_json
from sapo_backends.common import round_memory
from sapo_backends.measure.choice import TIE, TORCH
from sapo_backends.measure.samples import GROUP, batch, prompts
from sapo_backends.measure.sizing import model_size

GROUPS, NEW_TOKENS = 2, 16
REPEATS = 1
"""Runs behind a first one, which compiles; the quickest counts."""
ROWS = (64, 1024)
"""Of the products that stand for a large model's decode steps and micro-batches."""


def measure(request: LoadRequest, progress: Progress | None = None) -> dict[str, float]:
    """Processor seconds by precision of the same work on one thread, in about a second.

    Of a model that the own decoder computes with a shard a thread: a small round. Of others, whose loading alone takes
    longer than that: products of the model's widths. Raises BackendError.
    """
    if progress is not None:
        progress(0.01, "finding the faster precision, once")
    folder = resolve(request.model, progress)
    size, _ = model_size(folder, request)
    config = read_json(folder / "config.json")
    if not why_not(config) and size.parameters < round_memory.SHARDED_BELOW:
        compiling = threading.Thread(
            target=compile_kernels
        )  # float32 needs them, and a compiler is a process of its own
        compiling.start()
        rounds = {"bfloat16": _round(request, "bfloat16")}
        compiling.join()
        return rounds | {"float32": _round(request, "float32")}
    return {name: _products(size, name) for name in TORCH}


def compile_kernels() -> None:
    """Have the torch engine's C kernels compiled, if there is a compiler and they are not yet."""
    try:
        from sapo_backends.torch_backend.native.library import kernels
    except ImportError:
        return
    kernels()


def faster(seconds: Mapping[str, float]) -> str:
    """The precision to use; float32, which rounds less, when there is little between them. "auto" without figures."""
    if not seconds:
        return "auto"
    best = min(seconds, key=lambda name: seconds[name])
    return "float32" if seconds.get("float32", float("inf")) <= TIE * seconds[best] else best


def _quickest(work: Callable[[], object]) -> float:
    times = []  # of the processor, which other programs do not change much
    for _ in range(1 + REPEATS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times[1:])


def _round(request: LoadRequest, precision: str) -> float:
    """Seconds of generating some groups and of an update on them."""
    engine = registry.backend("torch")().load(replace(request, precision=precision, device="cpu", threads=1))
    try:
        asked, sampling = prompts(engine, GROUPS), Sampling(max_new_tokens=NEW_TOKENS)
        generation = _quickest(lambda: engine.generate(asked, GROUP, sampling, 0))
        if engine.info.method == "none":
            return generation
        samples, policy = batch(engine, GROUPS, NEW_TOKENS), PolicyUpdate(learning_rate=0.0)
        return generation + _quickest(lambda: engine.update(samples, policy, 0))
    finally:
        engine.close()


def _products(size: round_memory.ModelSize, precision: str) -> float:
    """Seconds of products with the widest projection."""
    try:
        import torch
    except ImportError as error:
        raise BackendError(f"PyTorch cannot be loaded: {error}.") from error

    kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
    weight = torch.randn(2 * size.intermediate, size.hidden).to(kind)
    inputs = [torch.randn(rows, size.hidden).to(kind) for rows in ROWS]
    with torch.inference_mode():
        return sum(_quickest(lambda x=x: torch.nn.functional.linear(x, weight)) for x in inputs)  # type: ignore[misc]
