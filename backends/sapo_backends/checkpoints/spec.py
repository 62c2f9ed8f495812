"""The shape of a decoder as given by its config.json: families, rotary embeddings, and bounds on what a file may
contain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sapo_backends.errors import ModelNotFound, size_text

# Bounds on a model's small files, checked before anything is built from them.
#
# A config.json is a few numbers, but every list of layers, every table of a plan and every allocation follows from
# them: 1e9 layers took 8 GB before a plan could say that they do not fit. The bounds are meant to be far beyond any
# model that a laptop holds.

LARGEST_NUMBERS = {
    "num_hidden_layers": 1024,
    "n_layer": 1024,
    "num_layers": 1024,
    "hidden_size": 1 << 17,
    "n_embd": 1 << 17,
    "intermediate_size": 1 << 20,
    "moe_intermediate_size": 1 << 20,
    "vocab_size": 1 << 22,
    "num_attention_heads": 4096,
    "n_head": 4096,
    "num_key_value_heads": 4096,
    "head_dim": 1 << 14,
    "num_experts": 1 << 14,
    "num_local_experts": 1 << 14,
    "n_routed_experts": 1 << 14,
    "max_position_embeddings": 1 << 28,
    "sliding_window": 1 << 28,
}
"""Entry of a config -> the largest number it may hold; the smallest is 0."""
MANY = 1 << 16
"""Maximum entries of a list or object in a config: of layers, factors, labels."""
LARGEST_FILES = {"tokenizer.json": 100_000_000, "tokenizer_config.json": 40_000_000}
LARGEST_FILE = 16_000_000
"""Maximum bytes of any other JSON file of a model."""


def largest_file(name: str) -> int:
    """Maximum bytes of a model's JSON file with this name."""
    return LARGEST_FILES.get(name, LARGEST_FILE)


def require_file_size(path: Path) -> None:
    """Raise ModelNotFound if a JSON file is larger than any real model's."""
    most, size = largest_file(path.name), path.stat().st_size
    if size > most:
        raise ModelNotFound(
            f"{path} has {size_text(size)}, and at most {size_text(most)} are read. Copy or download the model again."
        )


def require_sane_numbers(config: object) -> None:
    """Raise ModelNotFound if a config, or a nested config of a part of the model, has a number beyond LARGEST_NUMBERS."""
    waiting = [config]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (Mapping, list)) and len(part) > MANY:
            raise ModelNotFound(
                f"The model's config.json holds a list of {len(part):,} entries. Copy or download the model again."
            )
        if isinstance(part, list):
            waiting += [value for value in part if isinstance(value, (Mapping, list))]
        elif isinstance(part, Mapping):
            for name, value in part.items():
                _require_sane(str(name), value)
            waiting += [value for value in part.values() if isinstance(value, (Mapping, list))]


def _require_sane(name: str, value: object) -> None:
    most = LARGEST_NUMBERS.get(name)
    if most is None or not isinstance(value, (int, float)) or 0 <= value <= most:
        return
    raise ModelNotFound(
        f"The model's config.json says {name} {_brief(value)}, and a model has from 0 to {most:,}. Copy or "
        "download the model again."
    )


def _brief(value: float) -> str:
    return f"{value:,}" if isinstance(value, float) or value.bit_length() < 64 else f"of {value.bit_length():,} bits"


# The families that our own decoder computes: what their configs leave implicit.

ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}
Norms = Literal["before", "after", "both"]


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """norms: where a layer's RMSNorms are, before or after attention and MLP. qk_norm: none, per head, or over all
    heads together. norm_offset: added to a norm's stored weight. fused: q, k, v and gate, up are one tensor in the
    file.
    scaled_embedding: embeddings are multiplied by sqrt(hidden). windowed: which layers only see sliding_window tokens
    if the config has no layer_types: none, all, or all but every n-th. tied: the default if the config does not say."""

    norms: Norms = "before"
    qk_norm: Literal["", "head", "all"] = ""
    norm_offset: float = 0.0
    fused: bool = False
    qkv_bias: bool = False
    scaled_embedding: bool = False
    windowed: int = 0
    tied: bool = False


ALL_LAYERS = -1
FAMILIES = {
    "LlamaForCausalLM": ModelFamily(),
    "Qwen2ForCausalLM": ModelFamily(qkv_bias=True),
    "Qwen3ForCausalLM": ModelFamily(qk_norm="head"),
    "MistralForCausalLM": ModelFamily(windowed=ALL_LAYERS),
    "Phi3ForCausalLM": ModelFamily(fused=True, windowed=ALL_LAYERS),
    "SmolLM3ForCausalLM": ModelFamily(tied=True),
    "GraniteForCausalLM": ModelFamily(),
    "Olmo2ForCausalLM": ModelFamily(norms="after", qk_norm="all"),
    "Olmo3ForCausalLM": ModelFamily(norms="after", qk_norm="all", windowed=4),
    "GemmaForCausalLM": ModelFamily(norm_offset=1.0, scaled_embedding=True, tied=True),
    "Gemma2ForCausalLM": ModelFamily("both", norm_offset=1.0, scaled_embedding=True, windowed=2, tied=True),
    "Gemma3ForCausalLM": ModelFamily("both", "head", norm_offset=1.0, scaled_embedding=True, windowed=6, tied=True),
}
"""Architecture -> what its config leaves implicit."""
NORMS: dict[Norms, dict[str, str]] = {
    "before": {"norm1": "input_layernorm", "norm2": "post_attention_layernorm"},
    "after": {"after1": "post_attention_layernorm", "after2": "post_feedforward_layernorm"},
    "both": {
        "norm1": "input_layernorm",
        "after1": "post_attention_layernorm",
        "norm2": "pre_feedforward_layernorm",
        "after2": "post_feedforward_layernorm",
    },
}


@dataclass(frozen=True, slots=True)
class LanguagePart:
    """For a model that also sees: the architecture of its language part, and the defaults that its config may leave
    out."""

    architecture: str
    defaults: Mapping[str, Any]


LANGUAGE_PARTS = {
    "Gemma3ForConditionalGeneration": LanguagePart(
        "Gemma3ForCausalLM",
        {
            "model_type": "gemma3_text",
            "vocab_size": 262_208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131_072,
            "rope_theta": 1_000_000.0,
        },
    ),
}
"""Architecture of the whole model -> its language part. The defaults are those of transformers' Gemma3TextConfig."""
_PART, _OF_MODEL = "language_model.", "model."
_SEES = ("vision_tower.", "multi_modal_projector.")


def language_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the language part alone, if our own decoder computes that; else the config itself."""
    part = LANGUAGE_PARTS.get(next(iter(config.get("architectures") or []), ""))
    text = config.get("text_config")
    if part is None or not isinstance(text, Mapping):
        return config
    of_both = ("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype", "quantization_config")
    shared = {key: config[key] for key in of_both if config.get(key) is not None}
    return {**part.defaults, **text, **shared, "architectures": [part.architecture]}


def own_name(tensor: str) -> str:
    """A tensor's name in a file of the language part alone; unchanged if the file holds nothing else."""
    whole = tensor.removeprefix(_OF_MODEL)
    if not whole.startswith(_PART):
        return tensor
    return whole.removeprefix(_PART) if whole == tensor else _OF_MODEL + whole.removeprefix(_PART)


def is_vision_tensor(tensor: str) -> bool:
    """Whether a tensor belongs to the vision part."""
    return tensor.removeprefix(_OF_MODEL).startswith(_SEES)


# Rotary embeddings as given by a config.json.

Json = Mapping[str, Any]
ROPE_KINDS = ("default", "linear", "llama3", "longrope")


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """theta: base of the wavelengths. The rest belongs to the kinds "linear", "llama3" and "longrope" (scaled
    wavelengths). With longrope each pair of coordinates has its own factor, a different one in texts beyond
    original_context, and cos and sin are multiplied by `attention`. Kind "none": no rotation."""

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
    """scaling: the rope settings; entries missing there may be in the config itself."""
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
    """As transformers reads it: the scale of cos and sin depends on how much longer than the original context texts may
    be."""
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
    """The ropes, full attention's first, and for each layer the number of its rope.

    transformers 5 writes rope_parameters with rope_theta inside, or one of these per kind of layer; 4 wrote a top-level
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


# The shape of a decoder as given by its config.json, for the architectures this engine computes itself.
#
# A family is a row of FAMILIES: what its config leaves implicit. Only this table and the code that reads configs know
# family names; the decoder reads the spec.


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """hidden, intermediate: widths. heads, kv_heads of head_dim each, of which the first `rotary` are rotated. context:
    longest sequence in tokens; with a longrope that of its short factors.

    ropes: the distinct ones; layer_rope: each layer's index into them. window: how many tokens, including the newest,
    the layers marked in layer_windowed see; 0 without such layers. scale: of attention scores; softcap, logit_softcap:
    c tanh(x / c) of scores and logits, 0 for none. embed_scale, residual_scale, logit_scale: factors of the embedding,
    of what attention and MLP add, and of the logits. norms, qk_norm, norm_offset, fused: see ModelFamily.
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
        """Columns of all key heads, and also of the value heads."""
        return self.kv_heads * self.head_dim

    @property
    def rope(self) -> RopeSpec:
        """The rope of the layers with full attention."""
        return self.ropes[0]

    @property
    def layer_norms(self) -> Mapping[str, str]:
        """Our name of a layer's norm -> the file's."""
        return NORMS[self.norms]

    @property
    def plain(self) -> bool:
        """Whether it differs from Llama only in widths, biases and per-head norms."""
        usual = (self.window, self.softcap, self.logit_softcap, self.norm_offset) == (0, 0.0, 0.0, 0.0)
        factors = (self.embed_scale, self.residual_scale, self.logit_scale) == (1.0, 1.0, 1.0)
        form = (self.norms, self.activation, len(self.ropes)) == ("before", "silu", 1)
        turned = self.rotary == self.head_dim and self.rope.kind != "longrope"
        return usual and factors and form and turned and self.qk_norm != "all" and self.scale == self.head_dim**-0.5

    def window_of(self, layer: int, longest: int) -> int:
        """Tokens that a layer sees in texts of up to `longest`; 0 for all of them."""
        return self.window if self.layer_windowed[layer] and longest > self.window else 0


def fused_projections(spec: DecoderSpec, layer: int) -> list[tuple[str, int, list[tuple[str, int]], bool]]:
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


def _windows(config: Json, family: ModelFamily, layers: int) -> tuple[int, tuple[bool, ...]]:
    """(window, which layers have it); (0, none) if no text is longer than the window."""
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
    """The MLP's activation. Gemma's configs name it hidden_activation."""
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
    """Why our own decoder cannot compute the model; empty if it can. Raises ModelNotFound as decoder_spec does."""
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


def _embed_scale(config: Json, family: ModelFamily) -> float:
    if family.scaled_embedding:
        return math.sqrt(config["hidden_size"])
    granite = config["architectures"][0] == "GraniteForCausalLM"
    return float(config.get("embedding_multiplier") or 1.0) if granite else 1.0


@_damage_in_words()
def decoder_spec(config: Json) -> DecoderSpec:
    """Read a config for which why_not() is empty. Raises ModelNotFound if a width is missing or impossible."""
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
    spec = DecoderSpec(
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
    _require_computable(spec)
    return spec


def _require_computable(spec: DecoderSpec) -> None:
    """Raise ModelNotFound if a factor is infinite, NaN or of the wrong sign: everything computed with it would be NaN,
    and sampling would fail in the middle of a round."""
    figures = {
        "scale of attention": (spec.scale,),
        "multiplier": (spec.embed_scale, spec.residual_scale, spec.logit_scale),
        "rope_theta": tuple(rope.theta for rope in spec.ropes),
        "rope scaling": tuple(
            value
            for rope in spec.ropes
            for value in (rope.factor, rope.attention, rope.original_context, *rope.factors, *rope.long_factors)
        ),
    }
    not_below_zero = {"rms_norm_eps": (spec.norm_eps,), "softcapping": (spec.softcap, spec.logit_softcap)}
    wrong = [
        (name, value)
        for names, least in ((figures, math.ulp(0.0)), (not_below_zero, 0.0))
        for name, values in names.items()
        for value in values
        if not least <= value < math.inf
    ]
    if wrong:
        name, value = wrong[0]
        raise ModelNotFound(
            f"The model's config.json has a {name} of {value}, with which nothing can be computed. "
            "Copy or download the model again."
        )
