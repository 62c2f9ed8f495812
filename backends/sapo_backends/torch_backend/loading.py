"""From a LoadRequest to a TorchEngine: files, device, type, memory plan, weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open

from sapo_backends.base import BackendError, BackendUnavailable, EngineInfo, LoadRequest, ModelNotFound, Progress
from sapo_backends.checkpoints.locate import resolve, weight_files
from sapo_backends.checkpoints.safetensors_numpy import elements
from sapo_backends.checkpoints.spec import DecoderSpec, decoder_spec
from sapo_backends.checkpoints.tokenizer import HfTokenizer, read_json
from sapo_backends.common import hardware
from sapo_backends.common.train_method import pick_method
from sapo_backends.torch_backend.causal_lm import DecoderModel, Model
from sapo_backends.torch_backend.engine import TorchEngine
from sapo_backends.torch_backend.model.flat_parameters import Layout, decoder_layout
from sapo_backends.torch_backend.model.lora import initialise, lora_layout
from sapo_backends.torch_backend.native.compiler import is_there
from sapo_backends.torch_backend.native.library import suits
from sapo_backends.torch_backend.paths import why_transformers
from sapo_backends.torch_backend.runtime.allocator import keep_memory
from sapo_backends.torch_backend.runtime.workers import Workers

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Place:
    """Where and in which type to compute."""

    device: torch.device
    compute: torch.dtype


def is_present(kind: str) -> bool:
    """Whether this machine has such a device, and this build of torch can use it: cpu, cuda or mps."""
    if kind == "cuda":
        return torch.cuda.is_available()
    return kind == "cpu" or (kind == "mps" and torch.backends.mps.is_available())


def pick_device(name: str) -> torch.device:
    """The requested device, or the best one present. Raises BackendUnavailable."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BackendUnavailable(f"There is no device {name!r}. Use auto, cpu, cuda, cuda:1 or mps.") from None
    if not is_present(device.type):
        raise BackendUnavailable(f"This computer has no usable {device.type} device.", "use --device cpu")
    return device


def pick_precision(name: str, device: torch.device) -> torch.dtype:
    """The type to compute in. auto: bfloat16 where the processor multiplies it faster than float32.

    For small models too: an update of starter-1m takes 0.62 to 0.79 processor seconds in bfloat16 and 0.91 to 0.93 in
    float32, generation 0.63 to 0.73 and 0.77 to 0.78 (tests/benchmarks/bench_lengths.py, one core with AMX).
    """
    if name == "auto":
        fast = device.type == "cuda" or (device.type == "cpu" and hardware.detect().fast_bfloat16)
        return torch.bfloat16 if fast else torch.float32
    if name not in PRECISIONS:
        raise BackendError(f"There is no precision {name!r}. Use auto, float32 or bfloat16.")
    return PRECISIONS[name]


def _read(folder: Path, layout: Layout, flat: torch.Tensor, progress: Progress | None) -> None:
    """Fill flat from the folder's safetensors, one tensor at a time."""
    wanted = dict(layout.named_parts(flat))
    files = weight_files(folder)
    try:
        for number, file in enumerate(files):
            if progress is not None:
                progress(0.1 + 0.8 * number / len(files), "reading weights")
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys() & wanted.keys():
                    view = wanted.pop(name)
                    tensor = tensors.get_tensor(name)
                    if tensor.shape != view.shape:
                        raise ModelNotFound(
                            f"{name} in {file} has shape {tuple(tensor.shape)}, not {tuple(view.shape)}."
                        )
                    view.copy_(tensor)
    except (OSError, SafetensorError) as error:
        raise ModelNotFound(f"{folder} has damaged weights: {error}. Download the model again.") from error
    if wanted:
        raise ModelNotFound(f"{folder} lacks {len(wanted)} tensors, for one {next(iter(wanted))}.")


def _require(spec: DecoderSpec, parameters: int, trainable: int, compute: torch.dtype) -> None:
    size = hardware.ModelSize(
        parameters, trainable, spec.layers, spec.hidden, spec.intermediate, spec.kv_width, spec.vocabulary
    )
    needed = hardware.bytes_to_load(size, compute_bytes=compute.itemsize)
    hardware.require(needed, "Choose a smaller model, or the method lora.")


def _load_decoder(
    folder: Path, config: dict[str, object], request: LoadRequest, place: Place, progress: Progress | None
) -> Model:
    """A model that our own decoder computes, its adapter laid out."""
    spec = decoder_spec(config)
    layout = decoder_layout(spec)
    method = pick_method(request, layout.size)
    adapter = lora_layout(spec, request.lora_rank) if method == "lora" else None
    trainable = {"full": layout.size, "none": 0}.get(method, adapter.size if adapter else 0)
    if place.device.type == "cpu":
        _require(spec, layout.size, trainable, place.compute)
    stored = torch.float32 if method == "full" else place.compute
    base = torch.empty(layout.size, dtype=stored, device=place.device)
    _read(folder, layout, base, progress)
    if progress is not None and suits(spec, place.device, place.compute, layout.size) and not is_there():
        progress(0.95, "compiling for this processor, once")
    model = DecoderModel(spec, layout, base, place.compute)
    model.adapter_layout = adapter
    return model


def _load_transformers(folder: Path, request: LoadRequest, place: Place) -> Model:
    """Any other architecture, its adapter laid out."""
    stored = sum(file.stat().st_size for file in weight_files(folder))
    if place.device.type == "cpu":
        hardware.require(3 * stored, "Choose a smaller model, or the method lora.")
    # Imported here: it pulls in transformers, which takes seconds.
    from sapo_backends.torch_backend.transformers_lm import TransformersModel, read_module

    method = pick_method(request, elements(folder, packed=1))
    # Read in its type rather than cast afterwards: a cast would take the rotary tables along, which stay in float32.
    module = read_module(folder, torch.float32 if method == "full" else place.compute)
    model = TransformersModel(module, place.device, place.compute)
    if method == "lora":
        model.adapter_layout = model.lora_layout(request.lora_rank)
    return model


def _make_trainable(model: Model, request: LoadRequest) -> Literal["full", "lora", "none"]:
    """Set what is trained; gives the method."""
    if model.adapter_layout is not None:
        model.rank, model.alpha = request.lora_rank, request.lora_alpha
        model.flat = torch.empty(model.adapter_layout.size, device=model.device)
        initialise(model.adapter_layout, model.flat, request.seed)
        return "lora"
    if pick_method(request, model.layout.size) == "none":
        return "none"
    model.flat = model.base
    return "full"


def load_engine(request: LoadRequest, progress: Progress | None = None) -> TorchEngine:
    """Raises ModelNotFound, BackendUnavailable, OutOfMemory."""
    folder = resolve(request.model, progress)
    config = read_json(folder / "config.json")
    device = pick_device(request.device)
    place = Place(device, pick_precision(request.precision, device))
    keep_memory()
    reason = why_transformers(config)
    ours = not reason
    model = (
        _load_decoder(folder, config, request, place, progress) if ours else _load_transformers(folder, request, place)
    )
    method = _make_trainable(model, request)
    info = EngineInfo(
        backend="torch",
        model=request.model,
        device=str(device),
        precision=str(place.compute).removeprefix("torch."),
        parameters=model.layout.size,
        trainable=0 if model.flat is None else model.flat.numel(),
        vocabulary=int(config.get("vocab_size", 0)),
        context_length=int(config.get("max_position_embeddings") or config.get("n_positions") or 2048),
        method=method,
        extra={"computed_by": f"{model.computed_by} ({reason})" if reason else model.computed_by},
    )
    # transformers' modules hold state during a forward pass, so they get one worker, as very large models do.
    size = model.layout.size if ours else hardware.SHARDED_BELOW
    workers = Workers(request.threads or hardware.default_threads(), size, device)
    if progress is not None:
        progress(1.0, "ready")
    budget = hardware.micro_batch(model.layout.size) if ours else hardware.MICRO_BATCH // 4
    return TorchEngine(model, HfTokenizer(folder), info, folder, workers, budget)
