"""The memory of a round, planned before anything is loaded: a model's widths, what of it is trained, and whether it fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from sapo_backends.base import LoadRequest
from sapo_backends.common import hardware
from sapo_backends.errors import OutOfMemory

# The widths of a model of any architecture, by the usual names in its config.

DELTA_RULE, STATE_SPACE = 80, 208
"""Float32 numbers that one layer keeps of a token for each value of linear attention, and for each number of Mamba 2's heads
times state: what transformers computes without kernels; fitted (docs/benchmarks/memory.md)."""
BY_KERNELS = 64
"""The same for each value of either where compiled kernels compute it."""


def language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of the config; of a multimodal one that is its text_config."""
    part = config.get("text_config")
    return part if isinstance(part, Mapping) else config


def usual_widths(config: Mapping[str, Any]) -> dict[str, int]:
    """Layers, hidden, intermediate (of one expert), key_value, vocabulary, heads, experts that a token goes through (0: no
    mixture), idle, the weights of the experts that it does not; recurrent, float32 numbers of a token that a layer with a state
    keeps while transformers computes it, by_kernels, while compiled kernels do, and state, numbers of a row in all of these. Of
    layers that differ, the widest."""

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


# Which parameters of a model are trained when nobody said so.

FULL_BELOW = 50_000_000
"""method "auto": models with fewer parameters are fine-tuned as a whole, larger ones get an adapter."""


def pick_method(request: LoadRequest, parameters: int, *, quantised: bool = False) -> Literal["full", "lora", "none"]:
    """The requested method, or the one that suits; a quantised model cannot be trained as a whole."""
    if request.method != "auto":
        return request.method
    return "full" if parameters < FULL_BELOW and not quantised else "lora"


# The memory of a round, planned before anything is loaded, and whether it fits; without a numerical library.
#
# What was planned and what was used: docs/benchmarks/memory.md.

SPARE = 0.9
"""Share of the free memory that may be planned with."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The figures of a decoder that decide its memory and speed. tied: the embedding is the output layer too. heads: of
    queries. experts, idle, recurrent, by_kernels, state: see usual_widths; with experts intermediate is of one."""

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
        """Weights that every token is multiplied with: all but an embedding that is only looked up, and idle experts."""
        return self.parameters - (0 if self.tied else self.vocabulary * self.hidden) - self.idle


FOUR_BIT_BYTES = 0.5625
"""Of a weight in 4 bits, with its share of a float32 scale for each 64."""


def bytes_to_load(size: ModelSize, *, compute_bytes: int, four_bit: bool = False) -> int:
    """Weights; for what is trained also float32 gradients and two Adam moments, beside a copy to compute with.

    four_bit: all but the embeddings, of which two are held while one projection is dense, the widest.
    """
    trained = size.trainable * (16 + compute_bytes)
    if not four_bit:
        return max(0, size.parameters - size.trainable) * compute_bytes + trained
    tables = size.vocabulary * size.hidden * (1 if size.tied else 2)
    widest = 2 * size.intermediate * size.hidden
    return int((size.parameters - tables) * FOUR_BIT_BYTES) + (tables + widest) * compute_bytes + trained


@dataclass(frozen=True, slots=True)
class RoundShape:
    """What decides a round's memory: rows = groups * group_size completions; prompt, new_tokens: the longest."""

    groups: int
    group_size: int
    prompt: int
    new_tokens: int

    @property
    def rows(self) -> int:
        """Completions of a round."""
        return self.groups * self.group_size

    def micro_batch(self, budget: int) -> list[int]:
        """Completions of each group in a micro-batch of at most `budget` tokens, which holds whole ones and each group's prompt
        once; one completion at least."""
        groups, left = divmod(budget, self.prompt + self.group_size * self.new_tokens)
        if groups >= self.groups:
            return [self.group_size] * self.groups
        rest = max((left - self.prompt) // self.new_tokens, 0 if groups else 1)
        return [self.group_size] * groups + [rest] * (rest > 0)


PROGRAM, SMALL_PROGRAM = 350 << 20, 220 << 20
"""Bytes of the interpreter with a numerical library, before any model, and of that alone: a small model's own kernels leave
alone what a large one's products load besides."""
MLX = 160 << 20
"""Bytes that MLX holds beside what is counted (graphs, freed buffers), measured on a CPU with the bundled starter."""
TRANSFORMERS = 250 << 20
"""Bytes of transformers and what it imports."""
FALLBACK_MICRO_BATCH, FALLBACK_ACTIVATIONS = 1024, 3 << 30
"""Tokens and bytes that a micro-batch of a model may have and keep which transformers computes."""
TOKENIZER = 400
"""Bytes of a tokenizer for each token of its vocabulary, with the merge that makes it (tests/benchmarks/tokenizer_memory.py)."""
MICRO_BATCH, LARGE_MICRO_BATCH = 2048, 1400
"""Tokens of a training micro-batch, and of one of a large model, whose products are long enough with fewer: a third of
the activations less, no slower."""
CHUNK = 1 << 25
"""Logits held at once in an update, in the compute type: so many rows that the unembedding, which is read once for each
chunk, is not what takes the time."""
KEPT_PROBABILITIES = 1 << 22
"""Probabilities of up to so many tokens times vocabulary are kept from an update's forward pass to its backward
pass."""
SHARDED_BELOW = 100_000_000
"""Parameters under which torch gives each thread a micro-batch of its own; of larger models each shard would stream the
weights from memory again, and operations are long."""


FULL_SCORES = 1 << 23
"""On a CPU, a group's attention scores of up to this many elements are made in full, in float32: batched matrix products beat
the fused kernel several times over, and in float32 they are not compiled for each shape. Longer sequences take the fused
kernel, which needs less memory."""
KV_BUDGET = 2 << 30
"""Bytes of keys and values that the rows which are generated at once may need at full length; further rows wait. A fixed
number: what fits into the memory that happens to be free would make another batch, and other rounding, each time."""


def kv_budget_of(card: int) -> int:
    """KV_BUDGET of a GPU with so many bytes: a third, whatever is in use of it."""
    return card // 3


def micro_batch(parameters: int) -> int:
    """Tokens of a training micro-batch of a model of that size."""
    return MICRO_BATCH if parameters < SHARDED_BELOW else LARGE_MICRO_BATCH


def bucket_size(count: int) -> int:
    """The next of few sizes, at least count: powers of two to 32, multiples of 32 to 512, then a sixteenth of the next
    power of two apart.

    Matrix products in bfloat16 on a CPU are compiled for each size (milliseconds and a megabyte each, which oneDNN
    keeps), so what is multiplied has one of these numbers of rows.
    """
    above = 1 << max(count - 1, 0).bit_length()
    step = min(above, max(32, above // 16))
    return -(-count // step) * step


def bytes_to_generate(size: ModelSize, shape: RoundShape, *, kv_bytes: int = 4, kv_budget: int = KV_BUDGET) -> int:
    """Keys and values, on a processor in float32, at full length of the rows that are generated at once (a prompt's once for its
    group), again those of a layer while rows that ended leave the batch; one step's logits and their probabilities."""
    token = 2 * size.layers * size.key_value * kv_bytes
    whole = token * (shape.rows * shape.new_tokens + shape.groups * shape.prompt)
    at_once = min(whole, max(kv_budget, token * (shape.prompt + shape.new_tokens)))
    return int(1.25 * at_once) + 12 * shape.rows * size.vocabulary


COMPILED = 50 << 20
"""Of products that oneDNN compiled for the shapes of an update, and TorchScript's; fitted (docs/benchmarks/memory.md)."""


def bytes_to_update(size: ModelSize, shape: RoundShape, *, compute_bytes: int, workers: int = 1) -> int:
    """Activations of one micro-batch a worker, filled up as it is computed, its logits, and its own copy of the gradient.

    A layer keeps about ten hidden-sized and four intermediate-sized rows a token for the backward pass, two of these
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
    """Attention of all layers, kept in float32 for the backward pass where a group's is small enough for that; a small model's
    own kernels in float32 make it anew, and in bfloat16 copies on the way leave as much free between it (its engine keeps what it
    freed). parts: completions of each group."""
    in_full = [rows for rows in parts if _has_full_scores(size, shape, rows)]
    return 4 * size.layers * size.heads * sum(in_full) * shape.new_tokens * (shape.prompt + shape.new_tokens)


def elements_of_masks(size: ModelSize, shape: RoundShape, parts: Sequence[int]) -> int:
    """Of what tells the fused kernel, which takes the other groups, which tokens a token sees: one mask for all layers."""
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
    """Peak of a whole round: the program, the loaded model, and generation or the update, whichever needs more.

    fallback: transformers computes the model, with a cache and logits of its own. card: bytes of the GPU that has memory of its
    own, where there is one; the same sum, measured on processors only.
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
    laid_out = compute_bytes * size.multiplied if is_packed else 0
    held = {"kv_bytes": compute_bytes, "kv_budget": kv_budget_of(card)} if card else {}
    generated = laid_out + bytes_to_generate(size, shape, **held)
    # A small model's engine keeps what it freed, for speed (allocator.keep_freed).
    return loaded + (generated + update if small else max(generated, update))


def bytes_to_generate_by_transformers(size: ModelSize, shape: RoundShape, compute_bytes: int) -> int:
    """Linear attention's states in float32, and a cache in the compute type, of the rows that are generated at once, each with
    its own copy of its prompt, a layer's twice while a step appends to it, and a step's logits. So many go at once as KV_BUDGET
    holds with a prompt counted once a group (generation._shard)."""
    token = 2 * size.layers * size.key_value * compute_bytes
    row = token * shape.new_tokens + token * shape.prompt // shape.group_size
    rows = min(shape.rows, max(1, KV_BUDGET // row))
    cache = token * rows * (shape.prompt + shape.new_tokens)
    return cache + cache // size.layers + 4 * rows * size.state + (compute_bytes + 8) * rows * size.vocabulary


def bytes_to_update_by_transformers(
    size: ModelSize, shape: RoundShape, *, compute_bytes: int, workers: int, kernels: bool
) -> int:
    """Activations of a micro-batch, its prompts' states with their gradients, and a chunk of its logits; one worker."""
    length = shape.prompt + shape.new_tokens
    budget, everything = fallback_micro_batch(size, compute_bytes, kernels=kernels), shape.rows * length
    tokens = max(length, min(budget, 11 * everything // (10 * -(-everything // budget))))
    prompts = min(shape.groups, -(-tokens // (shape.prompt + shape.group_size * shape.new_tokens)))
    saved = bytes_of_token_by_transformers(size, compute_bytes, kernels=kernels)
    logits = compute_bytes * min(CHUNK, tokens * size.vocabulary)
    return tokens * saved + 8 * prompts * size.state + logits + 4 * size.trainable * min(workers, 1)


def bytes_of_token_by_transformers(size: ModelSize, compute_bytes: int, *, kernels: bool) -> int:
    """What its layers keep of a token for the backward pass. Each expert gets a copy of it and gives one back. Where layers have
    a state they keep what goes in, and one at a time the rest, which is less by compiled kernels."""
    wide = (4 if size.trainable >= size.parameters else 3) * size.intermediate
    inner = size.experts * (2 * size.hidden + wide) if size.experts else wide
    layer = compute_bytes * (16 * size.hidden + inner)
    if size.recurrent:
        rest = size.by_kernels if kernels else size.recurrent
        return size.layers * compute_bytes * size.hidden + layer + 4 * rest
    return size.layers * layer


def fallback_micro_batch(size: ModelSize, compute_bytes: int, *, kernels: bool) -> int:
    """Tokens of a micro-batch of a model that transformers computes."""
    saved = bytes_of_token_by_transformers(size, compute_bytes, kernels=kernels)
    return min(FALLBACK_MICRO_BATCH, FALLBACK_ACTIVATIONS // saved)


def smaller_round(
    needed: Callable[[RoundShape], int], shape: RoundShape, available: int, *, shorten: bool = True
) -> RoundShape | None:
    """The largest halved round that fits: fewer groups down to 4, smaller groups down to 4, and, to shorten, completions down
    to 32, and then fewer groups again. None when not even that fits."""
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
    """Raise OutOfMemory unless that many bytes are free, with a tenth to spare."""
    free = hardware.available_memory() if available is None else available
    if needed > SPARE * free:
        raise OutOfMemory(needed, free, suggestion)
