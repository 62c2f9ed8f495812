"""Generating and scoring completions over one llama.cpp context: each prompt is computed once for all its
completions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sapo_backends.base import Cancelled, CancelToken, Completion, RowSeed, Sampling, TokenIds, TokenSequence
from sapo_backends.common.generation import GeneratedRows
from sapo_backends.common.numpy_sampler import chosen_logprobs, sample, uniforms
from sapo_backends.llamacpp_backend.native import Context

Float32 = NDArray[np.float32]
LOGIT_ELEMENTS = 1 << 24
"""Logits held at once: 64 MiB in float32."""


def prefill(context: Context, sequence: int, prompt: TokenIds) -> Float32:
    """Compute a prompt into an empty sequence; logits (V,) of the token after it."""
    logits: Float32 = np.empty((0, 0), np.float32)
    for begin in range(0, len(prompt), context.batch):
        part = prompt[begin : begin + context.batch]
        wanted = [begin + i == len(prompt) - 1 for i in range(len(part))]
        logits = context.decode(part, range(begin, begin + len(part)), [sequence] * len(part), wanted)
    last: Float32 = logits[0].copy()
    return last


def generate(
    context: Context,
    width: int,
    prompts: Sequence[TokenIds],
    group_size: int,
    sampling: Sampling,
    seed: int | Sequence[RowSeed],
    eos_ids: Sequence[int],
    cancel: CancelToken | None = None,
    on_tokens: Callable[[int, int], None] | None = None,
) -> list[list[Completion]]:
    """group_size completions of each prompt, `width` rows at a time; see Engine.generate."""
    owners = [tuple(prompt) for prompt in prompts for _ in range(group_size)]
    generated = GeneratedRows(len(owners), eos_ids)
    uniform = uniforms(len(owners), sampling.max_new_tokens, seed)
    for begin in range(0, len(owners), width):
        wave = list(range(begin, min(begin + width, len(owners))))
        context.clear()
        try:
            _wave(context, owners, generated, wave, sampling, uniform, cancel, on_tokens)
        except Cancelled as error:
            raise Cancelled(str(error), generated.groups(len(prompts), group_size)) from None
    return generated.groups(len(prompts), group_size)


def _start(
    context: Context, owners: Sequence[tuple[int, ...]], wave: Sequence[int], cancel: CancelToken | None
) -> Float32:
    """Prefill each prompt of the wave once; first logits (rows, V). Row wave[i] lives in sequence i."""
    first: dict[tuple[int, ...], tuple[int, Float32]] = {}
    logits = []
    for sequence, row in enumerate(wave):
        if cancel is not None:
            cancel.raise_if_cancelled()
        prompt = owners[row]
        if prompt in first:
            context.share(first[prompt][0], sequence)
        else:
            first[prompt] = sequence, prefill(context, sequence, prompt)
        logits.append(first[prompt][1])
    return np.stack(logits)


def _wave(
    context: Context,
    owners: Sequence[tuple[int, ...]],
    generated: GeneratedRows,
    wave: Sequence[int],
    sampling: Sampling,
    uniform: NDArray[np.float64],
    cancel: CancelToken | None,
    on_tokens: Callable[[int, int], None] | None,
) -> None:
    """Generate the rows of one wave to their end; finished ones are dropped."""
    alive = list(enumerate(wave)) if sampling.max_new_tokens else []
    logits = _start(context, owners, wave, cancel) if alive else np.empty((0, 0), np.float32)
    for step in range(sampling.max_new_tokens):
        if cancel is not None:
            cancel.raise_if_cancelled()
        rows = [row for _, row in alive]
        tokens, logprobs = sample(logits, sampling, uniform[rows, step])
        generated.append(rows, tokens.tolist(), logprobs.tolist())
        if on_tokens is not None:
            on_tokens(generated.finished, generated.count)
        for sequence, row in alive:
            if generated.done[row]:
                context.drop(sequence)
        alive = [(sequence, row) for sequence, row in alive if not generated.done[row]]
        if not alive or step + 1 == sampling.max_new_tokens:
            return
        logits = context.decode(
            [generated.tokens[row][-1] for _, row in alive],
            [len(owners[row]) + step for _, row in alive],
            [sequence for sequence, _ in alive],
            [True] * len(alive),
        )


def logprobs(
    context: Context, sequences: Sequence[TokenSequence], temperature: float, vocabulary: int
) -> list[list[float]]:
    """Log-probability of every completion token; sequences of one prompt share its computation."""
    result: list[list[float]] = [[] for _ in sequences]
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, sequence in enumerate(sequences):
        if sequence.completion:
            groups.setdefault(tuple(sequence.prompt), []).append(index)
    budget = max(1, min(context.batch, LOGIT_ELEMENTS // vocabulary))
    for prompt, members in groups.items():
        context.clear()
        after_prompt = prefill(context, 0, prompt)[None]
        for index in members:
            completion = sequences[index].completion
            context.share(0, 1)
            first = chosen_logprobs(after_prompt, np.array(completion[:1]), temperature)
            result[index] = first.tolist()
            for part, targets, position in _chunks(completion, len(prompt), budget):
                logits = context.decode(
                    part, range(position, position + len(part)), [1] * len(part), [True] * len(part)
                )
                result[index] += chosen_logprobs(logits, np.array(targets), temperature).tolist()
            context.drop(1)
    return result


def _chunks(completion: TokenIds, prompt: int, budget: int) -> Iterator[tuple[TokenIds, TokenIds, int]]:
    """(input tokens, the tokens they predict, position of the first) in parts of at most `budget`."""
    for begin in range(0, len(completion) - 1, budget):
        end = min(begin + budget, len(completion) - 1)
        yield completion[begin:end], completion[begin + 1 : end + 1], prompt + begin
