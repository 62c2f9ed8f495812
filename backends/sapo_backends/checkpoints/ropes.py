"""Rotary embeddings as a config.json tells of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]
ROPE_KINDS = ("default", "linear", "llama3", "longrope")


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """theta: base of the wavelengths. The rest belongs to the kinds "linear", "llama3" and "longrope" (scaled wavelengths);
    of the last one each pair of coordinates has its factor, other ones in texts beyond original_context, and cos and sin
    are multiplied by `attention`. Kind "none": positions rotate nothing."""

    kind: str
    theta: float
    factor: float = 1.0
    low_frequency: float = 1.0
    high_frequency: float = 4.0
    original_context: int = 8192
    factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    attention: float = 1.0


NO_ROPE = RopeSpec("none", 1.0)


def _rope(config: Json, scaling: Json) -> RopeSpec:
    """scaling: its settings; what it lacks may stand in the config itself."""
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    if kind == "longrope":
        return _longrope(config, scaling, theta)
    return RopeSpec(
        kind=kind,
        theta=theta,
        factor=float(scaling.get("factor") or 1.0),
        low_frequency=float(scaling.get("low_freq_factor") or 1.0),
        high_frequency=float(scaling.get("high_freq_factor") or 4.0),
        original_context=int(scaling.get("original_max_position_embeddings") or 8192),
    )


def _longrope(config: Json, scaling: Json, theta: float) -> RopeSpec:
    """As transformers reads it: what scales cos and sin follows from how much longer than the original context texts may be."""
    context = int(config["max_position_embeddings"])
    original = int(
        scaling.get("original_max_position_embeddings") or config.get("original_max_position_embeddings") or context
    )
    longer = float(scaling.get("factor") or context / original)
    usual = math.sqrt(1 + math.log(longer) / math.log(original)) if longer > 1 else 1.0
    return RopeSpec(
        "longrope",
        theta,
        original_context=original,
        factors=tuple(map(float, scaling.get("short_factor") or ())),
        long_factors=tuple(map(float, scaling.get("long_factor") or ())),
        attention=float(scaling.get("attention_factor") or usual),
    )


def read_ropes(config: Json, windowed: tuple[bool, ...]) -> tuple[tuple[RopeSpec, ...], tuple[int, ...]]:
    """The ropes, that of full attention first, and the number of each layer's.

    transformers 5 writes rope_parameters with rope_theta inside, or one of these for each kind of layer; 4 a top-level
    rope_theta and rope_scaling, and Gemma 3's rope_local_base_freq for layers with a window.
    """
    settings = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    kinds = {kind: settings.pop(kind) for kind in ("full_attention", "sliding_attention") if kind in settings}
    whole = _rope(config, {**settings, **kinds.get("full_attention", {})})
    used = config.get("no_rope_layers")
    if used is None and config["architectures"][0] == "SmolLM3ForCausalLM":
        every = int(config.get("no_rope_layer_interval") or 4)
        used = [(layer + 1) % every for layer in range(len(windowed))]
    if used is not None:
        return (whole, NO_ROPE), tuple(0 if rotates else 1 for rotates in used)
    if "sliding_attention" in kinds:
        local = _rope(config, kinds["sliding_attention"])
    elif config["architectures"][0] == "Gemma3ForCausalLM":
        local = RopeSpec("default", float(config.get("rope_local_base_freq") or 10_000.0))
    elif config["architectures"][0] == "Olmo3ForCausalLM":
        local = RopeSpec("default", whole.theta)
    else:
        local = whole
    if local == whole or not any(windowed):
        return (whole,), (0,) * len(windowed)
    return (whole, local), tuple(int(is_windowed) for is_windowed in windowed)
