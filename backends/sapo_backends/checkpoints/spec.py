"""The shape of a decoder as its config.json tells it, for the architectures this engine computes itself.

A family is a row of families.FAMILIES: what its config does not say. Nothing but this table and what reads a config knows a
family's name; the decoder reads the spec.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sapo_backends.base import ModelNotFound
from sapo_backends.checkpoints.families import ACTIVATIONS, ALL_LAYERS, FAMILIES, NORMS, Family, Norms, language_config
from sapo_backends.checkpoints.ropes import NO_ROPE, ROPE_KINDS, RopeSpec, read_ropes
from sapo_backends.checkpoints.sane_sizes import require_sane_numbers

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """hidden, intermediate: widths. heads, kv_heads of head_dim each, of which the first `rotary` are rotated. context:
    longest sequence in tokens; with a longrope that of its short factors.

    ropes: the different ones; layer_rope: the number of each layer's. window: tokens that the layers marked in
    layer_windowed see, the newest included; 0 without such layers. scale: of attention's scores; softcap, logit_softcap:
    c tanh(x / c) of scores and logits, 0 for none. embed_scale, residual_scale, logit_scale: factors of the embedding,
    of what attention and MLP add, and of the logits. norms, qk_norm, norm_offset, fused: see Family.
    """

    architecture: str
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary: int
    context: int
    norm_eps: float
    ropes: tuple[RopeSpec, ...]
    layer_rope: tuple[int, ...]
    window: int
    layer_windowed: tuple[bool, ...]
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    activation: str
    norms: Norms
    qk_norm: str
    norm_offset: float
    fused: bool
    scale: float
    softcap: float
    logit_softcap: float
    embed_scale: float
    residual_scale: float
    logit_scale: float

    @property
    def query_width(self) -> int:
        """Columns of all query heads."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of all key heads, which is also that of the value heads."""
        return self.kv_heads * self.head_dim

    @property
    def rope(self) -> RopeSpec:
        """Of the layers that see everything."""
        return self.ropes[0]

    @property
    def layer_norms(self) -> Mapping[str, str]:
        """Our name of a layer's norm -> the file's."""
        return NORMS[self.norms]

    @property
    def plain(self) -> bool:
        """Whether nothing but widths, biases and norms of each head distinguishes it from Llama."""
        usual = (self.window, self.softcap, self.logit_softcap, self.norm_offset) == (0, 0.0, 0.0, 0.0)
        factors = (self.embed_scale, self.residual_scale, self.logit_scale) == (1.0, 1.0, 1.0)
        form = (self.norms, self.activation, len(self.ropes)) == ("before", "silu", 1)
        turned = self.rotary == self.head_dim and self.rope.kind != "longrope"
        return usual and factors and form and turned and self.qk_norm != "all" and self.scale == self.head_dim**-0.5

    def window_of(self, layer: int, longest: int) -> int:
        """Tokens that a layer sees of texts of up to `longest`; 0 for all of them."""
        return self.window if self.layer_windowed[layer] and longest > self.window else 0


def linears(spec: DecoderSpec, layer: int) -> list[tuple[str, int, list[tuple[str, int]], bool]]:
    """(fused name, input width, [(module, output width)], has bias) of a layer's four fused projections."""
    attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
    qkv = [
        (f"{attention}.q_proj", spec.query_width),
        (f"{attention}.k_proj", spec.kv_width),
        (f"{attention}.v_proj", spec.kv_width),
    ]
    gate_up = [(f"{mlp}.gate_proj", spec.intermediate), (f"{mlp}.up_proj", spec.intermediate)]
    if spec.fused:
        qkv = [(f"{attention}.qkv_proj", spec.query_width + 2 * spec.kv_width)]
        gate_up = [(f"{mlp}.gate_up_proj", 2 * spec.intermediate)]
    return [
        (f"{layer}.qkv", spec.hidden, qkv, spec.qkv_bias),
        (f"{layer}.o", spec.query_width, [(f"{attention}.o_proj", spec.hidden)], spec.output_bias),
        (f"{layer}.gate_up", spec.hidden, gate_up, spec.mlp_bias),
        (f"{layer}.down", spec.intermediate, [(f"{mlp}.down_proj", spec.hidden)], spec.mlp_bias),
    ]


def _windows(config: Json, family: Family, layers: int) -> tuple[int, tuple[bool, ...]]:
    """(window, which layers have it); (0, none) where no text is longer."""
    name, none = config["architectures"][0], (0, (False,) * layers)
    default = {"MistralForCausalLM": 4096, "Olmo3ForCausalLM": 4096}.get(name)
    default = 4096 if name.startswith("Gemma") and family.windowed else default
    window = int(config.get("sliding_window", default) or 0)
    if not window or config.get("use_sliding_window") is False:
        return none
    types = config.get("layer_types")
    if family.windowed == ALL_LAYERS:
        marked = [True] * layers
    elif types:
        marked = [kind == "sliding_attention" for kind in types]
    elif family.windowed:
        every = int(config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or family.windowed)
        marked = [(layer + 1) % every != 0 for layer in range(layers)]
    elif config.get("use_sliding_window"):
        marked = [layer >= int(config.get("max_window_layers", 28)) for layer in range(layers)]
    else:
        return none
    return (window, tuple(marked)) if any(marked) else none


def _activation(config: Json) -> str:
    """Of the MLP. Gemma's configs name it hidden_activation."""
    usual = "gelu_pytorch_tanh" if str(config["architectures"][0]).startswith("Gemma") else "silu"
    return str(config.get("hidden_activation") or config.get("hidden_act") or usual)


@contextmanager
def _damage_in_words() -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        raise ModelNotFound(f"The model's config.json lacks {error}. Copy or download the model again.") from error
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ModelNotFound(
            f"The model's config.json is damaged: {error}. Copy or download the model again."
        ) from error


@_damage_in_words()
def why_not(config: Json) -> str:
    """Why this engine's own decoder cannot compute the model; empty when it can. Raises ModelNotFound as decoder_spec does."""
    return next(_reasons(language_config(config)), "")


def _reasons(config: Json) -> Iterator[str]:
    name = next(iter(config.get("architectures") or []), "unknown")
    if name not in FAMILIES:
        yield f"architecture {name}"
    if _activation(config) not in ACTIVATIONS:
        yield f"activation {_activation(config)}"
    if config.get("quantization_config"):
        yield "quantised weights"
    if config.get("use_bidirectional_attention"):
        yield "bidirectional attention"
    for kind in sorted(set(config.get("layer_types") or ()) - {"full_attention", "sliding_attention"}):
        yield f"layers of type {kind}"
    spec = decoder_spec(config)
    if len(spec.layer_rope) != spec.layers or len(spec.layer_windowed) != spec.layers:
        yield "a list of layers of another length"
    yield from _rope_reasons(spec)


def _rope_reasons(spec: DecoderSpec) -> Iterator[str]:
    phi3 = spec.architecture == "Phi3ForCausalLM"
    if spec.rotary != spec.head_dim and not phi3:
        yield "rotary embeddings of a part of each head"
    for rope in spec.ropes:
        if rope.kind not in (*ROPE_KINDS, NO_ROPE.kind) or (rope.kind == "longrope" and not phi3):
            yield f"rope type {rope.kind}"
        if rope.kind == "longrope" and {len(rope.factors), len(rope.long_factors)} != {spec.rotary // 2}:
            yield "a longrope of another width"


def _embed_scale(config: Json, family: Family) -> float:
    if family.scaled_embedding:
        return math.sqrt(config["hidden_size"])
    granite = config["architectures"][0] == "GraniteForCausalLM"
    return float(config.get("embedding_multiplier") or 1.0) if granite else 1.0


@_damage_in_words()
def decoder_spec(config: Json) -> DecoderSpec:
    """Read a config for which why_not() is empty. Raises ModelNotFound when a width is missing, or is none."""
    config = language_config(config)
    require_sane_numbers(config)
    name = config["architectures"][0]
    family = FAMILIES[name]
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    layers, bias = int(config["num_hidden_layers"]), bool(config.get("attention_bias", False))
    gemma = name.startswith("Gemma")
    head_dim = int(config.get("head_dim") or (256 if gemma else hidden // heads))
    window, windowed = _windows(config, family, layers)
    ropes, layer_rope = read_ropes(config, windowed)
    context = int(config.get("max_position_embeddings") or 2048)
    if ropes[0].kind == "longrope":
        context = min(context, ropes[0].original_context)
    settings = dict(config.get("rope_parameters") or {})
    share = float(config.get("partial_rotary_factor") or settings.get("partial_rotary_factor") or 1.0)
    if window >= context:
        window, windowed = 0, (False,) * layers
    scalar = float(config.get("query_pre_attn_scalar") or 256) if gemma and family.norms == "both" else head_dim
    granite = name == "GraniteForCausalLM"
    caps = (50.0, 30.0) if name == "Gemma2ForCausalLM" else (0.0, 0.0)
    return DecoderSpec(
        architecture=name,
        vocabulary=int(config["vocab_size"]),
        hidden=hidden,
        intermediate=int(config["intermediate_size"]),
        layers=layers,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        rotary=int(head_dim * share),
        context=context,
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        ropes=ropes,
        layer_rope=layer_rope,
        window=window,
        layer_windowed=windowed,
        tied=bool(config.get("tie_word_embeddings", family.tied)),
        qkv_bias=family.qkv_bias or (bias and not family.fused),
        output_bias=bias and not family.qkv_bias and not family.fused,
        mlp_bias=bool(config.get("mlp_bias", False)),
        activation=ACTIVATIONS.get(_activation(config), ""),
        norms=family.norms,
        qk_norm=family.qk_norm,
        norm_offset=family.norm_offset,
        fused=family.fused,
        scale=float(config.get("attention_multiplier") or 1.0) if granite else scalar**-0.5,
        softcap=float(config.get("attn_logit_softcapping", caps[0]) or 0.0) if gemma else 0.0,
        logit_softcap=float(config.get("final_logit_softcapping", caps[1]) or 0.0) if gemma else 0.0,
        embed_scale=_embed_scale(config, family),
        residual_scale=float(config.get("residual_multiplier") or 1.0) if granite else 1.0,
        logit_scale=1.0 / float(config.get("logits_scaling") or 1.0) if granite else 1.0,
    )
