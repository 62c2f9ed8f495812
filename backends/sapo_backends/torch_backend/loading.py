"""From a LoadRequest to a TorchEngine: files, device, type, memory plan, weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch

from sapo_backends.base import EngineInfo, LoadRequest, Progress
from sapo_backends.checkpoints.locate import resolve_model, weight_files
from sapo_backends.checkpoints.safetensors_numpy import count_weights, raw_pieces
from sapo_backends.checkpoints.spec import DecoderSpec, decoder_spec, language_config
from sapo_backends.checkpoints.tokenizer import HfTokenizer, read_json
from sapo_backends.common import hardware, round_memory
from sapo_backends.common.round_memory import language_part, pick_method, usual_widths
from sapo_backends.errors import BackendError, BackendUnavailable, ModelNotFound
from sapo_backends.torch_backend import decoder, device_check, ops
from sapo_backends.torch_backend.causal_lm import CausalModel, DecoderModel
from sapo_backends.torch_backend.decoder import TensorLayout, decoder_layout, initialise_lora, lora_layout
from sapo_backends.torch_backend.engine import TorchEngine
from sapo_backends.torch_backend.native import is_there, load_kernels
from sapo_backends.torch_backend.paths import why_transformers
from sapo_backends.torch_backend.runtime import ShardWorkers, free_memory

ADAPTER_SHARE = 50
"""Until the module is loaded and its linear layers can be counted, an adapter is assumed to have at most 1/50 of the
weights."""
BFLOAT16_CAPABILITY = 8
"""Major compute capability from which NVIDIA GPUs multiply bfloat16 natively; older ones emulate it."""
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class ComputeTarget:
    """The device and type to compute in."""

    device: torch.device
    compute: torch.dtype
    four_bit: bool = False

    @property
    def precision(self) -> str:
        """The precision's name in EngineInfo."""
        kind = str(self.compute).removeprefix("torch.")
        return f"{hardware.FOUR_BIT}-{kind}" if self.four_bit else kind


def is_present(kind: str) -> bool:
    """Whether this machine has such a device and this build of torch can use it: cpu, cuda or mps."""
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
        raise BackendUnavailable(
            f"This computer has no usable {device.type} device.", "sapo-desktop node NAME --device auto"
        )
    return device


def pick_precision(name: str, device: torch.device) -> torch.dtype:
    """The type to compute in. auto: bfloat16 if the processor multiplies it faster than float32.

    This holds for small models too: an update of starter-1m takes 0.62 to 0.79 processor seconds in bfloat16 and 0.91
    to 0.93 in float32; generation takes 0.63 to 0.73 and 0.77 to 0.78 (tests/benchmarks/bench_lengths.py, one core
    with AMX).
    """
    if name == "auto":
        fast = device.type == "cpu" and hardware.detect_hardware().fast_bfloat16
        if device.type == "cuda":
            fast = torch.cuda.get_device_capability(device)[0] >= BFLOAT16_CAPABILITY
        return torch.bfloat16 if fast else torch.float32
    if name not in PRECISIONS:
        raise BackendError(f"There is no precision {name!r}. Use auto, float32, bfloat16 or 4bit.")
    return PRECISIONS[name]


def pick_place(request: LoadRequest) -> ComputeTarget:
    """Device and type. "4bit" computes in the type that auto would choose, "4bit-float32" in float32.

    Raises BackendError, BackendUnavailable.
    """
    device = pick_device(request.device)
    compute = request.precision.partition("-")[2]
    if not hardware.is_four_bit(request.precision):
        return ComputeTarget(device, pick_precision(request.precision, device))
    if request.method == "full":
        raise BackendError("Weights in 4 bits cannot be trained themselves. Use --method lora.")
    ops.require_bitsandbytes(device)
    return ComputeTarget(device, pick_precision(compute or "auto", device), four_bit=True)


_STORED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def _read(
    folder: Path,
    layout: TensorLayout,
    flat: torch.Tensor,
    progress: Progress | None,
    quantised: Mapping[str, ops.FourBit] = MappingProxyType({}),
) -> None:
    """Fill flat and the 4-bit weights from the folder's safetensors, a piece at a time, so that nothing is held twice."""
    wanted = dict(layout.without(quantised).named_parts(flat))
    rooms = decoder.four_bit_places(quantised, layout.entries)
    known = frozenset({*wanted, *rooms})
    missing, files = set(known), weight_files(folder)
    try:
        for number, file in enumerate(files):
            if progress is not None:
                progress(0.1 + 0.8 * number / len(files), "reading weights")
            for name, kind, shape, at, piece in raw_pieces(file):
                if name not in known or kind not in _STORED:
                    continue
                expected = rooms[name][2] if name in rooms else tuple(wanted[name].shape)
                if shape != expected:
                    raise ModelNotFound(f"{name} in {file} has shape {shape}, not {expected}.")
                values = torch.frombuffer(piece, dtype=_STORED[kind])
                if name in rooms:
                    rooms[name][0].write(rooms[name][1] + at, values)
                else:
                    wanted[name].view(-1)[at : at + len(values)].copy_(values)
                missing.discard(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ModelNotFound(f"{folder} has damaged weights: {error}. Copy or download the model again.") from error
    if missing:
        raise ModelNotFound(f"{folder} lacks {len(missing)} tensors, for one {min(missing)}.")


def _require(spec: DecoderSpec, parameters: int, trainable: int, place: ComputeTarget) -> None:
    size = round_memory.ModelSize(
        *(parameters, trainable, spec.layers, spec.hidden, spec.intermediate, spec.kv_width, spec.vocabulary),
        tied=spec.tied,
    )
    needed = round_memory.bytes_to_load(size, compute_bytes=place.compute.itemsize, four_bit=place.four_bit)
    suggestion = "Choose a smaller model, or the method lora with --precision 4bit."
    round_memory.require_memory(needed, suggestion, free_memory(place.device))


def _load_decoder(
    folder: Path, config: dict[str, object], request: LoadRequest, place: ComputeTarget, progress: Progress | None
) -> CausalModel:
    """A model that our own decoder computes, with its adapter laid out."""
    spec = decoder_spec(config)
    layout = decoder_layout(spec)
    method = pick_method(request, layout.size, quantised=place.four_bit)
    adapter = lora_layout(spec, request.lora_rank) if method == "lora" else None
    trainable = {"full": layout.size, "none": 0}.get(method, adapter.size if adapter else 0)
    _require(spec, layout.size, trainable, place)
    device_check.ensure_device_checked(place.device, place.compute)
    stored = torch.float32 if method == "full" else place.compute
    quantised = decoder.reserve_four_bit(layout, place.compute, place.device) if place.four_bit else {}
    base = torch.empty(layout.without(quantised).size, dtype=stored, device=place.device)
    _read(folder, layout, base, progress, quantised)
    model = DecoderModel(spec, layout, base, place.compute, quantised)
    model.adapter_layout = adapter
    return model


def _load_transformers(folder: Path, request: LoadRequest, place: ComputeTarget) -> CausalModel:
    """A model of any other architecture, with its adapter laid out."""
    parameters = count_weights(folder, packed=1)
    method = pick_method(request, parameters)
    trainable = {"full": parameters, "none": 0}.get(method, parameters // ADAPTER_SHARE)
    size = round_memory.ModelSize(parameters, trainable, 0, 0, 0, 0, 0)
    needed = round_memory.bytes_to_load(size, compute_bytes=place.compute.itemsize)
    round_memory.require_memory(needed, "Choose a smaller model, or the method lora.", free_memory(place.device))
    # Imported here: it pulls in transformers, which takes seconds.
    from sapo_backends.torch_backend.transformers_lm import TransformersModel, read_module

    # Loaded in the compute type rather than cast afterwards: a cast would include the rotary tables, which stay in
    # float32.
    module = read_module(folder, torch.float32 if method == "full" else place.compute)
    model = TransformersModel(module, place.device, place.compute)
    if method == "lora":
        model.adapter_layout = model.lora_layout(request.lora_rank)
    return model


def _make_trainable(model: CausalModel, request: LoadRequest) -> Literal["full", "lora", "none"]:
    """Set what is trained and return the method."""
    if model.adapter_layout is not None:
        model.rank, model.alpha = request.lora_rank, request.lora_alpha
        model.flat = torch.empty(model.adapter_layout.size, device=model.device)
        initialise_lora(model.adapter_layout, model.flat, request.seed)
        return "lora"
    if request.method == "none":
        return "none"
    model.flat = model.base
    return "full"


def load_engine(request: LoadRequest, progress: Progress | None = None) -> TorchEngine:
    """Raises ModelNotFound, BackendUnavailable, OutOfMemory."""
    folder = resolve_model(request.model, progress)
    config = read_json(folder / "config.json")
    place = pick_place(request)
    device = place.device
    reason = why_transformers(config)
    ours = not reason
    language = language_part(language_config(config))
    # Each step's intermediate values of a state are large, and their pages would fault in again every time.
    if ours or usual_widths(language)["recurrent"]:
        hardware.keep_freed()
    else:
        hardware.return_freed(hardware.ACTIVATIONS)
    if device.type == "cpu":
        if progress is not None and not is_there():
            progress(0.05, "compiling for this processor, once")
        load_kernels()
    if reason and place.four_bit:
        raise BackendUnavailable(f"Only the own decoder has weights in 4 bits ({reason}).", "use --precision auto")
    model = (
        _load_decoder(folder, config, request, place, progress) if ours else _load_transformers(folder, request, place)
    )
    method = _make_trainable(model, request)
    info = EngineInfo(
        backend="torch",
        model=request.model,
        device=str(device),
        precision=place.precision,
        parameters=model.layout.size,
        trainable=0 if model.flat is None else model.flat.numel(),
        vocabulary=int(language.get("vocab_size", 0)),
        context_length=decoder_spec(config).context
        if ours
        else int(language.get("max_position_embeddings") or language.get("n_positions") or 2048),
        method=method,
        extra={"computed_by": f"{model.computed_by} ({reason})" if reason else model.computed_by},
    )
    # transformers' modules hold state during a forward pass, so they get a single worker, as do very large models.
    size = model.layout.size if ours else round_memory.SHARDED_BELOW
    workers = ShardWorkers(request.threads or hardware.default_threads(), size, device)
    if progress is not None:
        progress(1.0, "loaded")
    budget = round_memory.micro_batch(model.layout.size)
    if not ours:
        shape = round_memory.ModelSize(model.layout.size, info.trainable, **usual_widths(language), tied=True)
        fast = device.type == "cpu" and load_kernels() is not None
        budget = round_memory.fallback_micro_batch(shape, place.compute.itemsize, kernels=fast)
    return TorchEngine(model, HfTokenizer(folder, request.thinking), info, folder, workers, budget)
