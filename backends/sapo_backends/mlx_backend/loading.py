"""From a LoadRequest to an MlxEngine: files, device, type, memory, weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import gemma3_text
from mlx_lm.utils import _get_classes, load_model

from sapo_backends.base import EngineInfo, LoadRequest, Progress
from sapo_backends.checkpoints import gguf_model as gguf_weights
from sapo_backends.checkpoints.gguf_view import gguf_of
from sapo_backends.checkpoints.locate import resolve_model, weight_files
from sapo_backends.checkpoints.spec import (
    DecoderSpec,
    decoder_spec,
    is_vision_tensor,
    language_config,
    own_name,
    why_not,
)
from sapo_backends.checkpoints.tokenizer import HfTokenizer, read_json
from sapo_backends.common import round_memory
from sapo_backends.common.round_memory import pick_method
from sapo_backends.errors import BackendError, ModelNotFound
from sapo_backends.mlx_backend import device_check
from sapo_backends.mlx_backend.device_check import compute_on_device, limit_memory, pick_device
from sapo_backends.mlx_backend.engine import MlxEngine
from sapo_backends.mlx_backend.model import MlxModel, Tensors, add_adapter

TYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}


def _explicit(spec: DecoderSpec) -> dict[str, Any]:
    """Settings that mlx_lm would otherwise look for elsewhere or silently assume.

    transformers 5 writes rope_parameters; mlx_lm 0.32's Qwen2 and Llama read only a top-level rope_theta and
    rope_scaling, and give wrong tokens without them.
    """
    scaling = {
        "rope_type": spec.rope.kind,
        "factor": spec.rope.factor,
        "low_freq_factor": spec.rope.low_frequency,
        "high_freq_factor": spec.rope.high_frequency,
        "original_max_position_embeddings": spec.rope.original_context,
    }
    known: dict[str, Any] = {
        "rope_theta": spec.rope.theta,
        "rope_scaling": None if spec.rope.kind == "default" else scaling,
        "tie_word_embeddings": spec.tied,
    }
    if spec.architecture == "SmolLM3ForCausalLM":
        known["no_rope_layers"] = [int(rope == 0) for rope in spec.layer_rope]
    if spec.architecture == "Gemma3ForCausalLM":
        local = spec.ropes[-1].theta
        known |= {"model_type": "gemma3_text", "rope_local_base_freq": local, "sliding_window_pattern": _pattern(spec)}
    if spec.architecture in WINDOWED:
        known["sliding_window"] = spec.window or spec.context
    else:
        known["sliding_window"] = None
    return known


def _pattern(spec: DecoderSpec) -> int:
    """n if every n-th layer has full attention; a number greater than the layer count if none has."""
    whole = [layer for layer, windowed in enumerate(spec.layer_windowed) if not windowed]
    return (whole[0] if whole else spec.layers) + 1


def _why_not(spec: DecoderSpec) -> str:
    """Why mlx_lm cannot compute the decoder that the spec describes; empty if it can."""
    every = _pattern(spec)
    regular = tuple((layer + 1) % every != 0 for layer in range(spec.layers))
    if spec.architecture == "Gemma3ForCausalLM" and (spec.layer_windowed != regular or all(spec.layer_windowed)):
        return "another order of layers with a sliding window than mlx_lm's"
    if spec.rope.kind == "longrope" or spec.rotary != spec.head_dim:
        return "rotary embeddings that this engine does not compute"
    if spec.architecture == "Olmo3ForCausalLM" and len(set(spec.layer_windowed)) < 2:
        return "layers of one kind where mlx_lm expects two"
    if spec.architecture in ("Qwen2ForCausalLM", "GraniteForCausalLM", "Phi3ForCausalLM"):
        return "a head size that mlx_lm does not compute" if spec.head_dim * spec.heads != spec.hidden else ""
    return ""


WINDOWED = ("Gemma3ForCausalLM", "Olmo3ForCausalLM")
"""Architectures whose sliding window mlx_lm computes; others are only loaded for texts no longer than their window."""


def _context(spec: DecoderSpec) -> int:
    """The longest text that is computed correctly."""
    return min(spec.context, spec.window) if spec.window and spec.architecture not in WINDOWED else spec.context


def _type(name: str, device: Any) -> Any:
    if name == "auto":
        name = "float32" if device == mx.cpu else "bfloat16"
    if name not in TYPES:
        raise BackendError(f"There is no precision {name!r}. Use auto, float32 or bfloat16.")
    return TYPES[name]


def _is_quantised(config: dict[str, Any]) -> bool:
    return bool(config.get("quantization") or config.get("quantization_config"))


def _check(request: LoadRequest, folder: Path, config: dict[str, Any]) -> DecoderSpec:
    """The spec, if this engine can compute it and there is enough memory."""
    quantised = _is_quantised(config)
    reason = why_not({key: value for key, value in config.items() if key != "quantization_config"})
    if reason:
        raise BackendError(f"{request.model} needs {reason}, which this engine does not compute.")
    if quantised and request.method == "full":
        raise BackendError(f"{request.model} is quantised and cannot be fine-tuned as a whole. Use the method lora.")
    spec = decoder_spec(config)
    reason = _why_not(spec)
    if reason:
        raise BackendError(f"{request.model} has {reason}. Use the torch engine.")
    size = sum(file.stat().st_size for file in weight_files(folder))
    round_memory.require_memory(
        size * (5 if request.method == "full" else 2), "Choose a smaller model, or the method lora."
    )
    return spec


class _Gemma3Decoder(gemma3_text.Gemma3Model):  # type: ignore[misc]
    """mlx_lm's decoder rounds the embedding factor to bfloat16 in every type, 25.25 instead of 25.298 for 640
    dimensions, which is up to 0.19 nats from transformers in float32; this one does not."""

    def __call__(self, inputs: Any, cache: Any = None, input_embeddings: Any = None) -> Any:
        """Hidden states (rows, positions, hidden)."""
        embedded = self.embed_tokens(inputs) if input_embeddings is None else input_embeddings
        if embedded.dtype == mx.float32:
            factor = self.args.hidden_size**0.5
            embedded = embedded * (factor / float(mx.array(factor, mx.bfloat16)))
        return super().__call__(inputs, cache, embedded)


class _Gemma3(gemma3_text.Model):  # type: ignore[misc]
    """mlx_lm's Gemma 3, which can also be read from the files of a model that sees."""

    def __init__(self, args: gemma3_text.ModelArgs) -> None:
        super().__init__(args)
        self.model = _Gemma3Decoder(args)

    def sanitize(self, weights: dict[str, Any]) -> Any:
        """The weights by their names in this model."""
        return super().sanitize(
            {own_name(name): tensor for name, tensor in weights.items() if not is_vision_tensor(name)}
        )


def _classes(config: dict[str, Any]) -> tuple[Any, Any]:
    """mlx_lm's classes for this config, including Gemma 3's language part, for which mlx_lm would expect the whole
    model."""
    if config["model_type"] == "gemma3_text":
        return _Gemma3, gemma3_text.ModelArgs
    classes: tuple[Any, Any] = _get_classes(config)
    return classes


def _network(folder: Path, spec: DecoderSpec) -> Any:
    try:
        full_config = read_json(folder / "config.json")
        if (file := gguf_of(folder)) is not None:
            return _from_gguf(file, spec, full_config)
        settings = {**language_config(full_config), **_explicit(spec)}
        network, _ = load_model(folder, lazy=False, strict=True, model_config=settings, get_model_classes=_classes)
    except (ValueError, KeyError, RuntimeError, FileNotFoundError) as error:
        raise ModelNotFound(f"MLX cannot read {folder}: {error}. Copy or download the model again.") from error
    return network


def _from_gguf(file: Path, spec: DecoderSpec, config: dict[str, Any]) -> Any:
    """mlx_lm reads only safetensors, so its classes are filled from the GGUF file, a tensor at a time."""
    settings = {**config, **_explicit(spec)}
    classes, arguments = _classes(settings)
    network = classes(arguments.from_dict(settings))
    weights = {name: mx.array(tensor) for name, tensor in gguf_weights.iter_gguf_tensors(file)}
    if hasattr(network, "sanitize"):
        weights = network.sanitize(weights)
    network.eval()
    network.load_weights(list(weights.items()), strict=True)
    mx.eval(network.parameters())
    return network


def _trained(network: Any, method: str, request: LoadRequest) -> Tensors:
    """The float32 tensors to train, by mlx_lm's names."""
    if method == "lora":
        return add_adapter(network, request.lora_rank, request.lora_alpha, request.seed)
    if method == "full":
        return {name: tensor.astype(mx.float32) for name, tensor in tree_flatten(network.parameters())}
    return {}


def load_bundled_model(device: Any, compute: Any) -> MlxModel:
    """The bundled model, all of it trained; used for checking a device."""
    folder = resolve_model("starter-1m")
    with mx.stream(device):
        network = _network(folder, spec := decoder_spec(read_json(folder / "config.json")))
        network.set_dtype(mx.float32)
        return MlxModel(network, spec, _trained(network, "full", LoadRequest()), compute)


def load_engine(request: LoadRequest, progress: Progress | None = None) -> MlxEngine:
    """Raises ModelNotFound, BackendUnavailable, BackendError, OutOfMemory."""
    folder = resolve_model(request.model, progress)
    config = read_json(folder / "config.json")
    spec = _check(request, folder, config)
    device = pick_device(request.device)
    limit_memory(device)
    compute = _type(request.precision, device)
    if device != mx.cpu:
        device_check.ensure_device_checked(device, compute, load_bundled_model)
    if progress is not None:
        progress(0.1, "reading weights")
    with compute_on_device(device, "Choose a smaller model."):
        network = _network(folder, spec)
        parameters = _count(network)
        method = pick_method(request, parameters, quantised=_is_quantised(config))
        if not _is_quantised(config):
            network.set_dtype(mx.float32 if method == "full" else compute)
        trained = _trained(network, method, request)
        model = MlxModel(network, spec, trained, compute)
    info = EngineInfo(
        backend="mlx",
        model=request.model,
        device="cpu" if device == mx.cpu else "mps",
        precision=str(compute).removeprefix("mlx.core."),
        parameters=parameters,
        trainable=sum(int(tensor.size) for tensor in trained.values()),
        vocabulary=spec.vocabulary,
        context_length=_context(spec),
        method=method,
        extra={"computed_by": "mlx_lm, quantised weights" if _is_quantised(config) else "mlx_lm"},
    )
    if progress is not None:
        progress(1.0, "loaded")
    return MlxEngine(model, HfTokenizer(folder, request.thinking), info, folder, device)


def _count(network: Any) -> int:
    """Number of weights; a 4-bit model packs eight into each element."""
    from mlx_lm.utils import get_total_parameters

    return int(get_total_parameters(network))
