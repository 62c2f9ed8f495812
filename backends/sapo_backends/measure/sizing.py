"""How large a model on disk is, read from its config and the headers of its weight files; nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from sapo_backends.base import LoadRequest
from sapo_backends.checkpoints.safetensors_numpy import elements
from sapo_backends.checkpoints.spec import DecoderSpec, decoder_spec, why_not
from sapo_backends.checkpoints.tokenizer import read_json
from sapo_backends.common.round_memory import ModelSize
from sapo_backends.common.train_method import pick_method
from sapo_backends.common.widths import language_part, usual_widths

Method = Literal["full", "lora", "none"]


def model_size(folder: Path, request: LoadRequest, parameters: int = 0) -> tuple[ModelSize, Method]:
    """The size of a Hugging Face folder and how much of it `request` trains.

    Architectures that our own decoder does not compute are estimated from the usual names in their config. parameters:
    where the folder has no weights yet. Raises ModelNotFound.
    """
    config = read_json(folder / "config.json")
    quantised = "quantization" in config or "quantization_config" in config
    count = parameters or elements(folder, packed=_packed(config))
    tied = bool(config.get("tie_word_embeddings")) if why_not(config) else decoder_spec(config).tied
    return sized(count, _widths(config), request, tied=tied, quantised=quantised)


def sized(
    parameters: int, widths: Mapping[str, int], request: LoadRequest, *, tied: bool, quantised: bool = False
) -> tuple[ModelSize, Method]:
    """The same of a model that is known by its figures. widths: layers, hidden, intermediate, key_value, vocabulary, heads,
    and what usual_widths tells besides."""
    method = pick_method(request, parameters, quantised=quantised)
    trainable = {"full": parameters, "none": 0}.get(method, _adapter(widths, request.lora_rank))
    return ModelSize(parameters, trainable, **widths, tied=tied), method


def _packed(config: Mapping[str, Any]) -> int:
    """Weights in one stored 32-bit element of a quantised model."""
    settings = config.get("quantization") or {}
    return 32 // int(settings.get("bits") or 4)


def _widths(config: Mapping[str, Any]) -> dict[str, int]:
    if not why_not(config):
        return _of_decoder(decoder_spec(config))
    return usual_widths(language_part(config))


def _of_decoder(spec: DecoderSpec) -> dict[str, int]:
    return {
        "layers": spec.layers,
        "hidden": spec.hidden,
        "intermediate": spec.intermediate,
        "key_value": spec.kv_width,
        "vocabulary": spec.vocabulary,
        "heads": spec.heads,
    }


def _adapter(widths: Mapping[str, int], rank: int) -> int:
    """LoRA parameters on every linear layer, of which experts have none; the queries count as wide as the model."""
    hidden, kv, inner = widths["hidden"], widths["key_value"], widths["intermediate"]
    sides = 2 * (hidden + hidden) + 2 * (hidden + kv) + (0 if widths.get("experts") else 3 * (hidden + inner))
    return rank * widths["layers"] * sides
