"""What one decode step works with, as TorchScript knows it: weights, caches, shapes and constants."""

from typing import NamedTuple

from torch import Tensor


class Projection(NamedTuple):
    """A linear layer, weight (out, in) or oneDNN's own form of it, and its adapter: scale * B A x.

    scales: none, or one: weight then holds the codes of model.four_bit, (out, in / 2).
    lora_a: none, or one (parts * rank, in); lora_b: none, or one (out, parts * rank), 0 but for each part's own rank.
    """

    weight: Tensor
    bias: Tensor | None
    lora_a: list[Tensor]
    lora_b: list[Tensor]
    scale: float
    scales: list[Tensor]


class Layer(NamedTuple):
    """One layer's weights. mlp: gate and up, or one fused projection. head_norms: none, or those of queries and
    keys, of each head or of all together. norm1, norm2: before attention and MLP; after1, after2: behind them. rope: number
    of its tables; windowed: whether it sees the window alone."""

    norm1: Tensor | None
    qkv: Projection
    head_norms: list[Tensor]
    out: Projection
    after1: Tensor | None
    norm2: Tensor | None
    mlp: list[Projection]
    down: Projection
    after2: Tensor | None
    rope: int
    windowed: bool


class LayerKVCache(NamedTuple):
    """One layer's cache for E entries of W places each; see kv_cache.KVCache.

    prompt_k (E' * kv_heads, d, p) and prompt_v (E' * kv_heads, p, d) of each length bucket of E' entries are shared by
    an entry's places; keys are transposed. completion_k (E, kv_heads, W, d, slots) and completion_v (E, kv_heads, W,
    slots, d) are those of the places' sampled tokens.
    """

    prompt_k: list[Tensor]
    prompt_v: list[Tensor]
    completion_k: Tensor
    completion_v: Tensor


class Style(NamedTuple):
    """Constants of a model; see spec.DecoderSpec. window: 0 where no text is longer."""

    norm_eps: float
    scale: float
    softcap: float
    window: int
    gelu: bool
    embed_scale: float
    residual_scale: float
    logit_scale: float
    logit_softcap: float


class Shape(NamedTuple):
    """entries * width places; slot is where the new token's keys go."""

    heads: int
    kv_heads: int
    entries: int
    width: int
    slot: int
    style: Style


class Sight(NamedTuple):
    """What hides tokens from layers: of each length bucket (E' * kv_heads, 1, p), and of the places' own (slots,)."""

    prompts: list[Tensor | None]
    own: Tensor | None


class Frame(NamedTuple):
    """What lies around the layers: embedding (V, hidden), last norm, unembedding, and fused_ops.RopeTable's tables."""

    embed: Tensor
    norm: Tensor
    head: Projection
    tables: list[tuple[Tensor, Tensor]]
