"""The memory of a round, planned before anything is loaded: a model's widths, which parameters are trained, and whether
it fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from sapo_backends.base import LoadRequest
from sapo_backends.common import hardware
from sapo_backends.common.update import bucket_size
from sapo_backends.errors import OutOfMemory

# Widths of a model of any architecture, read from the usual names in its config.

DELTA_RULE, STATE_SPACE = 80, 208
"""Float32 numbers that a layer keeps per token when transformers computes it without kernels: per value of linear
attention, and per head times state of Mamba 2; fitted (docs/benchmarks/memory.md)."""
BY_KERNELS = 64
"""The same per value of either kind when compiled kernels compute it."""


def language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of the config: text_config of a multimodal one, else all of it."""
    part = config.get("text_config")
    return part if isinstance(part, Mapping) else config


def usual_widths(config: Mapping[str, Any]) -> dict[str, int]:
    """The widths as a dict; the widest where layers differ.

    layers, hidden, key_value, vocabulary, heads; intermediate: of one expert. experts: how many a token passes through
    (0: no mixture). idle: weights of the experts that it does not pass through. recurrent: float32 numbers that a
    layer with a state keeps per token when transformers computes it; by_kernels: the same with compiled kernels;
    state: numbers of one row's state in all of these layers.
    """

    def first(*names: str, otherwise: int) -> int:
        value: Any = next((config[name] for name in names if config.get(name)), otherwise)
        return int(max(value) if isinstance(value, list) else value)

    hidden = first("hidden_size", "n_embd", otherwise=1024)
    heads = first("num_attention_heads", "n_head", otherwise=1)
    experts = first("num_experts_per_tok", otherwise=0)
    one_expert = ("moe_intermediate_size",) if experts else ()
    others = first("num_local_experts", "num_experts", "n_routed_experts", otherwise=experts) - experts
    layers = first("num_hidden_layers", "n_layer", otherwise=24)
    intermediate = first(*one_expert, "intermediate_size", "n_inner", otherwise=4 * hidden)
    kinds = list(config.get("layer_types") or config.get("layers_block_type") or ())
    values = first("linear_num_value_heads", otherwise=0) * first("linear_value_head_dim", otherwise=0)
    heads_of_mamba = first("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", otherwise=0)
    inner = heads_of_mamba * first("mamba_d_state", "ssm_state_size", otherwise=0)
    head = first("mamba_d_head", "mamba_head_dim", "mamba_headdim", otherwise=0)
    state = values * first("linear_key_head_dim", otherwise=0) + inner * head
    with_state = sum(kind in ("linear_attention", "mamba") for kind in kinds) if kinds else layers
    return {
        "layers": layers,
        "hidden": hidden,
        "intermediate": intermediate,
        "key_value": first("head_dim", otherwise=hidden // heads) * first("num_key_value_heads", otherwise=heads),
        "vocabulary": first("vocab_size", otherwise=50_000),
        "heads": heads,
        "experts": experts,
        "idle": layers * max(others, 0) * 3 * hidden * intermediate if experts else 0,
        "recurrent": DELTA_RULE * values + STATE_SPACE * inner if with_state else 0,
        "by_kernels": BY_KERNELS * (values + heads_of_mamba * head) if with_state else 0,
        "state": state * with_state,
    }


# Which parameters are trained by default.

FULL_BELOW = 50_000_000
"""method "auto": smaller models have all their weights trained, larger ones get an adapter."""


def pick_method(request: LoadRequest, parameters: int, *, quantised: bool = False) -> Literal["full", "lora", "none"]:
    """The requested method, or for "auto" the one that suits; a quantised model cannot have all its weights trained."""
    if request.method != "auto":
        return request.method
    return "full" if parameters < FULL_BELOW and not quantised else "lora"


# Memory planning, without a numerical library. Planned and measured memory: docs/benchmarks/memory.md.

SPARE = 0.9
"""Share of the free memory that a plan may use."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The figures of a decoder that determine its memory and speed. tied: the embedding is also the output layer.
    heads: query heads. experts, idle, recurrent, by_kernels, state: see usual_widths; with experts, intermediate is
    that of one expert."""

    parameters: int
    trainable: int
    layers: int
    hidden: int
    intermediate: int
    key_value: int
    vocabulary: int
    tied: bool = True
    heads: int = 0
    experts: int = 0
    idle: int = 0
    recurrent: int = 0
    by_kernels: int = 0
    state: int = 0

    @property
    def multiplied(self) -> int:
        """Weights that every token is multiplied with: all except idle experts and an embedding that is only looked up."""
        return self.parameters - (0 if self.tied else self.vocabulary * self.hidden) - self.idle


FOUR_BIT_BYTES = 0.5625
"""Bytes per 4-bit weight, including its share of the float32 scale that 64 weights share."""
INTEGER_BYTES = 1.25
"""Bytes per weight rounded for 8-bit products, including its share of the scale and the lowest value of 32 weights."""


def bytes_to_load(size: ModelSize, *, compute_bytes: int, four_bit: bool = False) -> int:
    """Bytes of the weights, plus, for those that are trained, float32 gradients, two Adam moments and a copy to compute
    with.

    four_bit: all weights but the embeddings are in 4 bits; the widest projection (gate and up) is held dense while in use.
    """
    trained = size.trainable * (16 + compute_bytes)
    if not four_bit:
        return max(0, size.parameters - size.trainable) * compute_bytes + trained
    tables = size.vocabulary * size.hidden * (1 if size.tied else 2)
    widest = 2 * size.intermediate * size.hidden
    return int((size.parameters - tables) * FOUR_BIT_BYTES) + (tables + widest) * compute_bytes + trained


@dataclass(frozen=True, slots=True)
class RoundShape:
    """What determines a round's memory. rows = groups * group_size completions; prompt, new_tokens: the longest."""

    groups: int
    group_size: int
    prompt: int
    new_tokens: int

    @property
    def rows(self) -> int:
        """Completions per round."""
        return self.groups * self.group_size

    def micro_batch(self, budget: int) -> list[int]:
        """Completions of each group in a micro-batch of at most `budget` tokens. It holds whole completions, at least
        one, and each group's prompt once."""
        groups, left = divmod(budget, self.prompt + self.group_size * self.new_tokens)
        if groups >= self.groups:
            return [self.group_size] * self.groups
        rest = max((left - self.prompt) // self.new_tokens, 0 if groups else 1)
        return [self.group_size] * groups + [rest] * (rest > 0)


PROGRAM, SMALL_PROGRAM = 350 << 20, 220 << 20
"""Bytes of the interpreter with a numerical library before any model is loaded; SMALL_PROGRAM for small models, whose
own kernels avoid what large matrix products load in addition."""
MLX = 160 << 20
"""Bytes that MLX holds beyond what is counted (graphs, freed buffers), measured on a CPU with the bundled starter."""
LLAMA_CPP_BATCH = 512
"""Tokens that llama.cpp computes at once, all with room for their float32 logits."""
TRANSFORMERS = 250 << 20
"""Bytes of transformers and its imports."""
FALLBACK_MICRO_BATCH, FALLBACK_ACTIVATIONS = 1024, 3 << 30
"""Limits of a micro-batch that transformers computes: tokens, and bytes of activations."""
TOKENIZER = 400
"""Bytes per vocabulary token of a tokenizer, including the merge that makes the token
(tests/benchmarks/tokenizer_memory.py)."""
MICRO_BATCH, LARGE_MICRO_BATCH = 2048, 1400
"""Tokens of a training micro-batch; LARGE_MICRO_BATCH for a large model, whose matrix products are big enough with
fewer: a third less activation memory, no slower."""
CHUNK = 1 << 25
"""Logits held at once in an update, in the compute type: enough rows that reading the unembedding once per chunk does
not dominate the time."""
KEPT_PROBABILITIES = 1 << 22
"""Probabilities are kept from an update's forward pass to its backward pass up to this many tokens times vocabulary."""
SHARDED_BELOW = 100_000_000
"""Below this many parameters torch gives each thread its own micro-batch; with larger models each shard would stream
the weights from memory again, and single operations take long anyway."""


FULL_SCORES = 1 << 23
"""On a CPU, attention scores of a group with up to this many elements are materialised in float32: batched matrix
products beat the fused kernel several times over, and in float32 they are not compiled for each shape. Longer
sequences use the fused kernel, which needs less memory."""
KV_BUDGET = 2 << 30
"""Bytes of keys and values, at full length, of the rows generated at once; further rows wait. A fixed number: sizing it
by the currently free memory would change the batch, and so the rounding, from run to run."""


def kv_budget_of(card: int) -> int:
    """KV_BUDGET for a GPU with `card` bytes of memory: a third of them, however much is in use."""
    return card // 3


def micro_batch(parameters: int) -> int:
    """Tokens of a training micro-batch for a model with this many parameters."""
    return MICRO_BATCH if parameters < SHARDED_BELOW else LARGE_MICRO_BATCH


def bytes_to_generate(size: ModelSize, shape: RoundShape, *, kv_bytes: int = 4, kv_budget: int = KV_BUDGET) -> int:
    """Keys and values (float32 on a processor) at full length for the rows generated at once, with each prompt stored
    once per group; one layer's again while ended rows leave the batch; one step's logits and their probabilities."""
    token = 2 * size.layers * size.key_value * kv_bytes
    whole = token * (shape.rows * shape.new_tokens + shape.groups * shape.prompt)
    at_once = min(whole, max(kv_budget, token * (shape.prompt + shape.new_tokens)))
    return int(1.25 * at_once) + 12 * shape.rows * size.vocabulary


COMPILED = 50 << 20
"""Bytes of the products that oneDNN compiles for an update's shapes, and of TorchScript; fitted
(docs/benchmarks/memory.md)."""


def bytes_to_update(size: ModelSize, shape: RoundShape, *, compute_bytes: int, workers: int = 1) -> int:
    """Per worker: the activations of one micro-batch, padded as it is computed, its logits, and a copy of the gradient.

    Per token a layer keeps about ten hidden-sized and four intermediate-sized rows for the backward pass, two of these
    with an adapter. Micro-batches are about equal (update.plan_micro_batches).
    """
    everything = shape.groups * shape.prompt + shape.rows * shape.new_tokens
    budget = micro_batch(size.parameters)
    batches = -(-everything // budget)
    parts, workers = shape.micro_batch(min(budget, 11 * everything // (10 * batches))), min(workers, batches)
    tokens = bucket_size(len(parts) * shape.prompt + sum(parts) * shape.new_tokens)
    wide = 2 if size.trainable < size.parameters else 4
    saved = size.layers * compute_bytes * (10 * size.hidden + wide * size.intermediate) + 16 * size.hidden
    logits = compute_bytes * min(CHUNK, tokens * size.vocabulary) + 4 * min(
        KEPT_PROBABILITIES, tokens * size.vocabulary
    )
    small = size.parameters < SHARDED_BELOW
    own_kernels = small and compute_bytes == 4
    kernels, scores = (0, 0) if own_kernels else (COMPILED, bytes_of_scores(size, shape, parts) * (2 if small else 1))
    scores += 0 if own_kernels else compute_bytes * elements_of_masks(size, shape, parts)
    return kernels + workers * (tokens * saved + logits + scores + 4 * size.trainable)


def bytes_of_scores(size: ModelSize, shape: RoundShape, parts: Sequence[int]) -> int:
    """Attention scores of all layers, kept in float32 for the backward pass where a group's are small enough. A small
    model's own kernels recompute them in float32; in bfloat16, temporary copies leave as many holes between them (its
    engine keeps freed memory). parts: completions of each group."""
    in_full = [rows for rows in parts if _has_full_scores(size, shape, rows)]
    return 4 * size.layers * size.heads * sum(in_full) * shape.new_tokens * (shape.prompt + shape.new_tokens)


def elements_of_masks(size: ModelSize, shape: RoundShape, parts: Sequence[int]) -> int:
    """Elements of the mask that tells the fused kernel, used for the other groups, which tokens a token sees; one mask
    serves all layers."""
    fused = [rows for rows in parts if not _has_full_scores(size, shape, rows)]
    return sum(fused) * shape.new_tokens * (shape.prompt + shape.new_tokens)


def _has_full_scores(size: ModelSize, shape: RoundShape, rows: int) -> bool:
    return rows * size.heads * shape.new_tokens * (shape.prompt + shape.new_tokens) <= FULL_SCORES


def bytes_of_round(
    size: ModelSize,
    shape: RoundShape,
    *,
    compute_bytes: int,
    workers: int = 1,
    fallback: bool = False,
    four_bit: bool = False,
    card: int = 0,
) -> int:
    """Peak of a whole round: the program, the loaded model, and the larger of generation and the update.

    fallback: transformers computes the model, with its own cache and logits. card: bytes of the GPU's own memory, if
    there is one; the same sum, which was measured on processors only.
    """
    small = size.parameters < SHARDED_BELOW and not fallback
    program = SMALL_PROGRAM if small else PROGRAM
    loaded = program + bytes_to_load(size, compute_bytes=compute_bytes, four_bit=four_bit)
    update = 0
    if size.trainable:
        plan = bytes_to_update
        if fallback:
            plan = partial(bytes_to_update_by_transformers, kernels=not card and hardware.c_compiler() is not None)
        update = plan(size, shape, compute_bytes=compute_bytes, workers=workers)
    if fallback:
        generated = bytes_to_generate_by_transformers(size, shape, compute_bytes)
        loaded += TRANSFORMERS
        return loaded + (generated + update if size.parameters < SHARDED_BELOW else max(generated, update))
    is_packed = not four_bit and (compute_bytes == 2 or size.parameters < SHARDED_BELOW)
    rounds = not four_bit and not card and 0 < size.trainable < size.parameters
    laid_out = int((compute_bytes if is_packed else INTEGER_BYTES if rounds else 0) * size.multiplied)
    held = {"kv_bytes": compute_bytes, "kv_budget": kv_budget_of(card)} if card else {}
    generated = laid_out + bytes_to_generate(size, shape, **held)
    # A small model's engine keeps freed memory for speed (hardware.keep_freed).
    return loaded + (generated + update if small else max(generated, update))


def bytes_to_generate_by_transformers(size: ModelSize, shape: RoundShape, compute_bytes: int) -> int:
    """Linear attention's states in float32 and a cache in the compute type for the rows generated at once, each with
    its own copy of its prompt; one layer's twice while a step appends to it; one step's logits. KV_BUDGET sets how
    many rows run at once, counting a prompt once per group (generation._shard)."""
    token = 2 * size.layers * size.key_value * compute_bytes
    row = token * shape.new_tokens + token * shape.prompt // shape.group_size
    rows = min(shape.rows, max(1, KV_BUDGET // row))
    cache = token * rows * (shape.prompt + shape.new_tokens)
    return cache + cache // size.layers + 4 * rows * size.state + (compute_bytes + 8) * rows * size.vocabulary


def bytes_to_update_by_transformers(
    size: ModelSize, shape: RoundShape, *, compute_bytes: int, workers: int, kernels: bool
) -> int:
    """Activations of one micro-batch, the states of its prompts with their gradients, and a chunk of its logits; one
    worker."""
    length = shape.prompt + shape.new_tokens
    budget, everything = fallback_micro_batch(size, compute_bytes, kernels=kernels), shape.rows * length
    tokens = max(length, min(budget, 11 * everything // (10 * -(-everything // budget))))
    prompts = min(shape.groups, -(-tokens // (shape.prompt + shape.group_size * shape.new_tokens)))
    saved = bytes_of_token_by_transformers(size, compute_bytes, kernels=kernels)
    logits = compute_bytes * min(CHUNK, tokens * size.vocabulary)
    return tokens * saved + 8 * prompts * size.state + logits + 4 * size.trainable * min(workers, 1)


def bytes_of_token_by_transformers(size: ModelSize, compute_bytes: int, *, kernels: bool) -> int:
    """Bytes that the layers keep per token for the backward pass. Each expert gets its own copy of the token and
    returns one. Layers with a state keep their input, and the rest for one layer at a time, which is less with
    compiled kernels."""
    wide = (4 if size.trainable >= size.parameters else 3) * size.intermediate
    inner = size.experts * (2 * size.hidden + wide) if size.experts else wide
    layer = compute_bytes * (16 * size.hidden + inner)
    if size.recurrent:
        rest = size.by_kernels if kernels else size.recurrent
        return size.layers * compute_bytes * size.hidden + layer + 4 * rest
    return size.layers * layer


def fallback_micro_batch(size: ModelSize, compute_bytes: int, *, kernels: bool) -> int:
    """Tokens of a micro-batch when transformers computes the model."""
    saved = bytes_of_token_by_transformers(size, compute_bytes, kernels=kernels)
    return min(FALLBACK_MICRO_BATCH, FALLBACK_ACTIVATIONS // saved)


def smaller_round(
    needed: Callable[[RoundShape], int], shape: RoundShape, available: int, *, shorten: bool = True
) -> RoundShape | None:
    """The largest round that fits after halving: groups down to 4, then group size down to 4, then, if it may shorten,
    completions down to 32, and then groups again. None if not even that fits."""
    while needed(shape) > SPARE * available:
        if shape.groups > 4:
            shape = replace(shape, groups=max(4, shape.groups // 2))
        elif shape.group_size > 4:
            shape = replace(shape, group_size=max(4, shape.group_size // 2))
        elif not shorten:
            return None
        elif shape.new_tokens > 32:
            shape = replace(shape, new_tokens=max(32, shape.new_tokens // 2))
        elif shape.groups > 1:
            shape = replace(shape, groups=shape.groups // 2)
        else:
            return None
    return shape


def require_memory(needed: int, suggestion: str, available: int | None = None) -> None:
    """Raise OutOfMemory unless `needed` bytes are free with a tenth to spare."""
    free = hardware.available_memory() if available is None else available
    if needed > SPARE * free:
        raise OutOfMemory(needed, free, suggestion)
