"""Differences between Metal and the CPU device, and a check of what MLX computes on a GPU that it has not used before."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import chain
from typing import Any

import mlx.core as mx
import numpy as np

from sapo_backends.base import PolicyUpdate, Sampling, TrainSample
from sapo_backends.checkpoints.hub_cache import cache_folder
from sapo_backends.common.hardware import available_memory
from sapo_backends.common.update import UpdateTally
from sapo_backends.errors import BackendUnavailable, OutOfMemory
from sapo_backends.mlx_backend.generation import generate_completions
from sapo_backends.mlx_backend.model import MlxModel, pad_micro_batch
from sapo_backends.mlx_backend.update import minibatch_gradient

# Differences between Metal and the CPU device.

CACHE_SHARE = 0.1
"""Share of Metal's working set that freed buffers may keep occupied."""


def has_metal() -> bool:
    """Whether this machine has a GPU that MLX can use."""
    return bool(mx.metal.is_available())


def pick_device(name: str) -> Any:
    """The mlx device for a LoadRequest's device; Metal is called mps there. Raises BackendUnavailable."""
    if name == "auto":
        name = "mps" if has_metal() else "cpu"
    if name not in ("cpu", "mps"):
        raise BackendUnavailable(f"MLX has no device {name!r} here.", "use --device auto, cpu or mps")
    if name == "mps" and not has_metal():
        raise BackendUnavailable("This computer has no Metal device.", "sapo-desktop node NAME --device auto")
    return mx.gpu if name == "mps" else mx.cpu


def limit_memory(device: Any) -> None:
    """On Metal: keep weights wired and bound what freed buffers hold, which otherwise grows with every new shape."""
    if device != mx.cpu:
        working_set = int(mx.device_info(device).get("max_recommended_working_set_size", 0))
        if working_set:
            mx.set_wired_limit(working_set)
            mx.set_cache_limit(int(CACHE_SHARE * working_set))


@contextlib.contextmanager
def compute_on_device(device: Any, suggestion: str) -> Iterator[None]:
    """Compute on the device; free its cached buffers afterwards and turn a failed allocation into OutOfMemory."""
    try:
        with mx.stream(device):
            yield
    except RuntimeError as error:
        text = str(error).lower()
        if "alloc" not in text and "memory" not in text:
            raise
        raise OutOfMemory(0, available_memory(), suggestion) from error
    finally:
        if device != mx.cpu:
            mx.clear_cache()


# Compares MLX on a GPU that it has not used before with float32 on the processor, using the bundled model.
#
# Runs by itself before the first model is loaded there, takes seconds, and is remembered for this chip, type and MLX
# version.

PROMPTS = ((5, 9, 200, 31, 17), (7, 7, 12), (40, 3, 8, 250, 17, 60, 2))
SAMPLING, POLICY, BUDGET = Sampling(max_new_tokens=8), PolicyUpdate(learning_rate=0.0), 2048
ERROR = {mx.float32: 1e-3, mx.bfloat16: 0.1}
"""Mean error of a log-probability, and error of the gradient relative to its length, that rounding explains."""
Make = Callable[[Any, Any], MlxModel]
"""(device, type to compute in) -> the bundled model, all of it trained."""


def find_device_failure(device: Any, compute: Any, make: Make) -> str:
    """What the device computes wrongly, in words; "" if nothing."""
    with mx.stream(device):
        groups = generate_completions(make(device, compute), PROMPTS, 2, SAMPLING, 0, ())
    pairs = [(prompt, completion) for prompt, group in zip(PROMPTS, groups, strict=True) for completion in group]
    batch = [
        TrainSample(prompt, completion.tokens, 1.0 - number % 2 * 2)
        for number, (prompt, completion) in enumerate(pairs)
    ]
    sampled = np.array(list(chain.from_iterable(completion.logprobs for _, completion in pairs)))
    scored, grad = _computed(make, device, compute, batch)
    expected, exact = _computed(make, mx.cpu, mx.float32, batch)
    errors = {
        "sampling": np.abs(sampled - expected).mean(),
        "scoring": np.abs(scored - expected).mean(),
        "an update": np.linalg.norm(grad - exact) / np.linalg.norm(exact),
    }
    return next((f"{name} (off by {error:.1e})" for name, error in errors.items() if not error <= ERROR[compute]), "")


def _computed(make: Make, device: Any, compute: Any, batch: list[TrainSample]) -> tuple[Any, Any]:
    """Log-probabilities of the completions' tokens, and the gradient of an update, concatenated."""
    with mx.stream(device):
        model = make(device, compute)
        packed = pad_micro_batch([(sample.prompt, sample.completion) for sample in batch], list(range(len(batch))))
        scores = np.array(model.token_logprobs(packed, 1.0).logprobs)[np.array(packed.valid)]
        grads = minibatch_gradient(model, batch, POLICY, BUDGET, UpdateTally())
        return scores, np.concatenate([np.array(grads[name]).ravel() for name in sorted(grads)])


def ensure_device_checked(device: Any, compute: Any, make: Make) -> None:
    """Check a device the first time it is used. Raises BackendUnavailable if its results are wrong."""
    known = f"{version('mlx')} {mx.device_info(device).get('device_name', device)} {compute}"
    record = cache_folder() / f"met-mlx-{hashlib.sha256(known.encode()).hexdigest()[:16]}"
    if record.exists():
        return
    if failed := find_device_failure(device, compute, make):
        raise BackendUnavailable(f"MLX computes {failed} wrongly on this GPU.", "use --device cpu, or another engine")
    record.parent.mkdir(parents=True, exist_ok=True)
    record.touch()
