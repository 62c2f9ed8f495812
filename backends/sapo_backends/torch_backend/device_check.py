"""Checks the engine's results on a device that it has not used before against float64 on the processor.

Runs by itself before the first model of our own decoder is loaded there: it takes seconds on a GPU, about half of one
on a processor. The result is remembered for this device, type, torch version and C kernels.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sapo_backends.base import Sampling
from sapo_backends.checkpoints.hub_cache import cache_folder
from sapo_backends.checkpoints.spec import DecoderSpec, decoder_spec
from sapo_backends.common import hardware
from sapo_backends.errors import BackendUnavailable
from sapo_backends.torch_backend.causal_lm import DecoderModel
from sapo_backends.torch_backend.decoder import decoder_layout
from sapo_backends.torch_backend.generation import GenerationMonitor, GenerationRequest, generate_completions
from sapo_backends.torch_backend.native import load_kernels
from sapo_backends.torch_backend.packing import pack_micro_batch
from sapo_backends.torch_backend.paths import check_fast_paths
from sapo_backends.torch_backend.runtime import PATHS, ShardWorkers, fall_back, is_left_out, leave_out, without_paths

FORMAT = 2
"""Increased when more is checked, so that every device is checked again."""
OPTIONAL = {"cuda": ("cuda-graph",), "cpu": ("native", "onednn", "torchscript")}
"""Paths that can be left out, by device type."""
LOGPROB_ERROR = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Mean error of a log-probability that rounding explains."""
GRADIENT_ERROR = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Error of the gradient, relative to its length, that rounding explains."""
PROMPTS = ((5, 9, 200, 31, 17), (7, 7, 12), (40, 3, 8, 250, 17, 60, 2))
GROUP, TOKENS = 3, 12
_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 304,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True, slots=True)
class DeviceCheckResult:
    """failed: what the device computes wrongly, in words; "" if nothing. without: paths that had to be left out."""

    failed: str
    without: tuple[str, ...] = ()


def _model(device: torch.device, compute: torch.dtype) -> DecoderModel:
    """A small model whose weights are always the same."""
    spec: DecoderSpec = decoder_spec(_CONFIG)
    layout = decoder_layout(spec)
    base = torch.randn(layout.size, generator=torch.Generator().manual_seed(0)) * 0.1
    stored = torch.float64 if compute == torch.float64 else torch.float32
    return DecoderModel(spec, layout, base.to(device, stored), compute)


def _scored(model: DecoderModel, pairs: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the pairs' completions, and the gradient of their sum with alternating signs, in float64."""
    leaf = model.base.to(model.compute).requires_grad_()
    packed = pack_micro_batch(pairs, list(range(len(pairs))), model.device)
    logprobs = model.token_logprobs(packed, model.weights(model.layout.views(leaf)), 1.0).logprobs
    signs = 1.0 - 2.0 * (torch.arange(len(logprobs), device=logprobs.device) % 2)
    (gradient,) = torch.autograd.grad((logprobs * signs.to(logprobs.dtype)).sum(), leaf)
    return logprobs.detach().cpu().double(), gradient.cpu().double()


def _wrong(device: torch.device, compute: torch.dtype) -> Iterator[str]:
    """Where the device differs from float64: sampling, scoring, the gradient of an update."""
    model, exact, workers = (
        _model(device, compute),
        _model(torch.device("cpu"), torch.float64),
        ShardWorkers(1, 0, device),
    )
    request = GenerationRequest(PROMPTS, GROUP, Sampling(max_new_tokens=TOKENS), ())
    groups = generate_completions(
        model, model.decode_weights(None), request, 0, workers, GenerationMonitor(1, None, None)
    )
    workers.close()
    pairs = [(prompt, c.tokens) for prompt, group in zip(PROMPTS, groups, strict=True) for c in group]
    expected, gradient = _scored(exact, pairs)
    sampled = torch.tensor([p for group in groups for c in group for p in c.logprobs], dtype=torch.float64)
    logprobs, device_gradient = _scored(model, pairs)
    errors = {"sampling": (sampled - expected).abs().mean(), "scoring": (logprobs - expected).abs().mean()}
    for name, error in errors.items():
        if not float(error) <= LOGPROB_ERROR[compute]:
            yield f"{name} (log-probabilities are off by {float(error):.1e})"
    off = float((device_gradient - gradient).norm() / gradient.norm())
    if not off <= GRADIENT_ERROR[compute]:
        yield f"an update (its gradient is off by {off:.1e} of its length)"


def _failure(device: torch.device, compute: torch.dtype, left_out: Sequence[str] = ()) -> str:
    threads = torch.get_num_threads()
    try:
        with without_paths(*left_out):
            return next(_wrong(device, compute), "")
    except (RuntimeError, NotImplementedError) as error:
        return str(error).strip().partition("\n")[0] or type(error).__name__
    finally:
        torch.set_num_threads(threads)


def check_device(device: torch.device, compute: torch.dtype) -> DeviceCheckResult:
    """Check the device; if it fails, find the path without which it passes, and disable that from now on."""
    failed = _failure(device, compute)
    if not failed:
        return DeviceCheckResult("")
    for name in OPTIONAL.get(device.type, ()):
        if not is_left_out(name) and not _failure(device, compute, (name,)):
            leave_out(name)
            fall_back(name, f"{device} computes {failed} differently with it")
            return DeviceCheckResult("", (name,))
    return DeviceCheckResult(failed)


def _record(device: torch.device, compute: torch.dtype) -> Path:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    if device.type == "cpu":  # the folder may be shared between machines
        compiled = load_kernels()
        left_out = sorted(filter(is_left_out, PATHS))
        name = f"{hardware.processor_name()} {left_out} {Path(compiled.library._name).name if compiled else ''}"
    known = f"{FORMAT} {torch.__version__} {name} {device.index} {compute}"
    return cache_folder() / f"met-{hashlib.sha256(known.encode()).hexdigest()[:16]}.json"


def ensure_device_checked(device: torch.device, compute: torch.dtype) -> None:
    """Check a device the first time it is used, and disable paths that failed an earlier check. Raises
    BackendUnavailable if no disabled path helps."""
    record = _record(device, compute)
    try:
        for name in json.loads(record.read_text(encoding="utf-8")):
            if name in PATHS and not is_left_out(name):
                leave_out(name)
                fall_back(name, f"it failed when {device} was first met")
        return
    except (OSError, ValueError, TypeError):
        pass  # not met yet
    result = check_device(device, compute)
    if result.failed:
        others = (device.type != "cpu", "--device cpu"), (compute != torch.float32, "--precision float32")
        fix = ", or ".join(flag for may_help, flag in others if may_help)
        raise BackendUnavailable(f"{device} was checked and computes wrongly: {result.failed}.", fix and f"use {fix}")
    with contextlib.suppress(OSError):  # a full or read-only disk means only that the check runs again next time
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(result.without), encoding="utf-8")


def on_processor() -> dict[str, str]:
    """Check the processor in both types unless that was done before; name -> why a fast path cannot be used here.
    Raises BackendUnavailable."""
    for compute in LOGPROB_ERROR:
        ensure_device_checked(torch.device("cpu"), compute)
    return check_fast_paths()
