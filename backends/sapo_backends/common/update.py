"""What every trainer shares: minibatches, micro-batches whose completions share their prompt, the order of an update's
steps, and its statistics."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from sapo_backends.base import CancelToken, PolicyUpdate, TokenSequence, TrainSample, UpdateStats

Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""(prompt, completion)"""
Mask = tuple[bool, ...] | None
"""TrainSample.loss_mask"""


def bucket_size(count: int) -> int:
    """The smallest bucket size >= count. Buckets are powers of two up to 32, multiples of 32 up to 512, then spaced a
    sixteenth of the next power of two apart.

    Matrix products in bfloat16 on a CPU are compiled for each size (milliseconds and a megabyte each, which oneDNN
    keeps), so products get one of these numbers of rows.
    """
    above = 1 << max(count - 1, 0).bit_length()
    step = min(above, max(32, above // 16))
    return -(-count // step) * step


def plan_micro_batches(
    pairs: Sequence[Pair], budget: int, workers: int = 1, step: int = 1, *, flat: bool = False
) -> list[list[int]]:
    """Indices of non-empty completions, grouped into micro-batches of at most `budget` tokens including padding and of
    at least one sequence.

    Sequences of one prompt stay together and lengths are sorted, so that little padding is computed. The budget
    shrinks so that micro-batches are about equal and their number is about a multiple of the workers. step: lengths are
    padded to multiples of it. flat: no padding, because sequences are concatenated.
    """
    texts = [completion for _, completion in pairs] + list({prompt for prompt, _ in pairs})
    total = sum(_rounded(len(text), step) for text in texts)
    rounds = max(1, math.ceil(total / (budget * workers)))
    budget = min(budget, math.ceil(1.1 * total / (rounds * workers)))
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, (prompt, completion) in enumerate(pairs):
        if completion:
            groups.setdefault(prompt, []).append(index)
    for members in groups.values():
        members.sort(key=lambda i: len(pairs[i][1]))
    order = sorted(groups.values(), key=lambda members: (len(pairs[members[-1]][1]), members))

    def tokens(members: Sequence[int]) -> int:
        return flat_tokens(pairs, members) if flat else padded_tokens(pairs, members, step)

    batches: list[list[int]] = []
    for index in (i for members in order for i in members):
        if batches and tokens([*batches[-1], index]) <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def padded_tokens(pairs: Sequence[Pair], members: Sequence[int], step: int = 1) -> int:
    """Tokens of a micro-batch including its padding."""
    prompts = {pairs[i][0] for i in members}
    widest = max(map(len, prompts)), max(len(pairs[i][1]) for i in members)
    prompt, completion = (_rounded(width, step) for width in widest)
    return len(prompts) * prompt + len(members) * completion


def flat_tokens(pairs: Sequence[Pair], members: Sequence[int]) -> int:
    """Tokens of a micro-batch: each prompt once, and each completion without its last token, which predicts nothing."""
    return sum(len(prompt) for prompt in {pairs[i][0] for i in members}) + sum(len(pairs[i][1]) - 1 for i in members)


def _rounded(length: int, step: int) -> int:
    """The next multiple of step, at least one step."""
    return max(1, math.ceil(length / step)) * step


LogprobFn = Callable[[Sequence[TokenSequence], float], list[list[float]]]


def with_old_logprobs(batch: Sequence[TrainSample], policy: PolicyUpdate, logprob_fn: LogprobFn) -> list[TrainSample]:
    """The batch with old_logprobs filled in where they are needed.

    With a single optimizer step the ratio is 1 and nothing is computed; with more, one scoring pass runs under the
    policy before the first step.
    """
    missing = [i for i, s in enumerate(batch) if s.old_logprobs is None and s.advantage != 0.0]
    filled = list(batch)
    if policy.epochs * policy.minibatches > 1 and missing:
        scored = logprob_fn([TokenSequence(batch[i].prompt, batch[i].completion) for i in missing], policy.temperature)
        for i, logprobs in zip(missing, scored, strict=True):
            filled[i] = replace(batch[i], old_logprobs=tuple(logprobs))
    return filled


def split_minibatches(
    batch: Sequence[TrainSample], policy: PolicyUpdate, seed: int, logprob_fn: LogprobFn
) -> list[list[TrainSample]]:
    """epochs x minibatches lists of samples, each epoch in its own seeded order; empty lists are left out."""
    filled = with_old_logprobs(batch, policy, logprob_fn)
    if policy.epochs * policy.minibatches == 1:
        return [filled] if filled else []
    rng = np.random.default_rng(seed)
    parts: list[list[TrainSample]] = []
    for _ in range(policy.epochs):
        order = rng.permutation(len(filled))
        parts += [[filled[int(i)] for i in part] for part in np.array_split(order, policy.minibatches) if len(part)]
    return parts


def token_mean(samples: Sequence[TrainSample], logprobs: Sequence[ArrayLike], *, external: bool) -> float:
    """Mean log-probability over the completion tokens of local or external samples; NaN when there are none."""
    chosen = [np.asarray(lp) for s, lp in zip(samples, logprobs, strict=True) if s.external == external]
    tokens = np.concatenate(chosen) if chosen else np.empty(0)
    return float(tokens.mean()) if tokens.size else float("nan")


Gradient = TypeVar("Gradient")
Report = Callable[[float], None]


@dataclass(slots=True)
class UpdateTally:
    """Sums over micro-batches, as Python numbers so that no tensor of a micro-batch stays alive. By source: [local,
    external]."""

    loss: float = 0.0
    entropy: float = 0.0
    clipped: int = 0
    ratio_max: float = 0.0
    logprob: list[float] = field(default_factory=lambda: [0.0, 0.0])
    tokens: list[int] = field(default_factory=lambda: [0, 0])

    def add(
        self,
        samples: Sequence[TrainSample],
        logprobs: Sequence[float],
        *,
        loss: float,
        entropy: float,
        clipped: int,
        ratio_max: float,
    ) -> None:
        """Add one micro-batch. logprobs: the sum over each sample's tokens; entropy, clipped: sums over all tokens."""
        self.loss += loss
        self.entropy += entropy
        self.clipped += clipped
        self.ratio_max = max(self.ratio_max, ratio_max)
        for sample, total in zip(samples, logprobs, strict=True):
            self.logprob[sample.external] += total
            self.tokens[sample.external] += sample.learned

    def merge(self, other: UpdateTally) -> None:
        """Add another worker's sums."""
        self.loss += other.loss
        self.entropy += other.entropy
        self.clipped += other.clipped
        self.ratio_max = max(self.ratio_max, other.ratio_max)
        for source in (0, 1):
            self.logprob[source] += other.logprob[source]
            self.tokens[source] += other.tokens[source]


def has_gradient(sample: TrainSample) -> bool:
    """Whether the sample contributes a gradient: it has an advantage and tokens that carry loss."""
    return sample.advantage != 0.0 and sample.learned > 0


SHARED_PREFIX, WORTH = 16, 0.9
"""Leading tokens that prompts must share before they are computed only once, and the largest share of the tokens that may
be left for it to pay off: attention to them is less regular."""


def condense(part: Sequence[TrainSample]) -> list[TrainSample]:
    """The same minibatch, with the same loss and gradient, in fewer tokens.

    The completions of a short answer are often the same text. The first of several equal samples gets their advantages
    together and the others none: the surrogate is proportional to the advantage, and its denominators count samples
    without one. Then the prompts' common prefix is computed once, if that takes fewer tokens; see share_prefix.
    """
    counts = Counter(filter(has_gradient, part))
    merged = [replace(s, advantage=s.advantage * counts.pop(s, 0)) if has_gradient(s) else s for s in part]
    places = [i for i, sample in enumerate(merged) if has_gradient(sample)]
    for i, sample in zip(places, share_prefix([merged[i] for i in places]), strict=True):
        merged[i] = sample
    return merged


def share_prefix(samples: Sequence[TrainSample]) -> list[TrainSample]:
    """The same samples with the common prefix of all prompts as the one prompt, and the rest of each prompt masked, before
    its completion; unchanged where that is not worth it.

    An engine computes a prompt once for all completions that continue it. The rows of a table share their instruction, 49
    of 68 tokens with the usual wording, so that a step on 96 answers takes 19 instead of 52 processor seconds
    (SmolLM2-135M). Where each prompt has many completions that differ, its rest would be computed again for each.
    """
    if len(samples) < 2:
        return list(samples)
    prompts = [sample.prompt for sample in samples]
    first, last = min(prompts), max(prompts)
    common = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    everything = range(len(samples))
    rests = [(p[:common], (*p[common:], *s.completion)) for p, s in zip(prompts, samples, strict=True)]
    before = flat_tokens([(s.prompt, s.completion) for s in samples], everything)
    if common < SHARED_PREFIX or flat_tokens(rests, everything) > WORTH * before:
        return list(samples)
    return [
        replace(sample, prompt=prompt, completion=text, **_masked_rest(sample, len(sample.prompt) - common))
        for sample, (prompt, text) in zip(samples, rests, strict=True)
    ]


def _masked_rest(sample: TrainSample, rest: int) -> dict[str, Any]:
    """The fields of a sample that have one entry per completion token, with `rest` masked tokens before it."""
    filled: dict[str, Any] = {"loss_mask": (False,) * rest + (sample.loss_mask or (True,) * len(sample.completion))}
    for name in ("old_logprobs", "behaviour_logprobs"):
        if (values := getattr(sample, name)) is not None:
            filled[name] = (0.0,) * rest + tuple(values)
    return filled


def run_update(
    batch: Sequence[TrainSample],
    policy: PolicyUpdate,
    seed: int,
    logprob_fn: LogprobFn,
    gradient: Callable[[Sequence[TrainSample], UpdateTally, Report], Gradient],
    step: Callable[[Gradient], float],
    cancel: CancelToken | None = None,
    on_progress: Report | None = None,
) -> UpdateStats:
    """One gradient and one optimizer step per minibatch; see Engine.update.

    gradient: computes a minibatch's gradient, adds to the tally and reports after every micro-batch; until the first
    step is done, that report may raise Cancelled. step: applies the gradient and returns its norm before clipping.
    """
    if cancel is not None:
        cancel.raise_if_cancelled()
    began = time.perf_counter()
    parts = split_minibatches(batch, policy, seed, logprob_fn)
    tally, norms = UpdateTally(), list[float]()
    for done, part in enumerate(parts):
        if not any(map(has_gradient, part)):
            continue
        grad = gradient(condense(part), tally, _between(on_progress, None if norms else cancel, done, len(parts)))
        norms.append(step(grad))
    return _stats(batch, tally, norms, max(len(parts), 1), time.perf_counter() - began)


def _between(report: Report | None, cancel: CancelToken | None, done: int, parts: int) -> Report:
    def told(fraction: float) -> None:
        if cancel is not None:
            cancel.raise_if_cancelled()
        if report is not None:
            report((done + fraction) / parts)

    return told


def _ratio(total: float, count: int) -> float:
    return total / count if count else float("nan")


def _stats(
    batch: Sequence[TrainSample], tally: UpdateTally, norms: list[float], parts: int, seconds: float
) -> UpdateStats:
    trained = sum(tally.tokens)
    return UpdateStats(
        loss=tally.loss / parts,
        grad_norm=sum(norms) / len(norms) if norms else 0.0,
        steps=sum(math.isfinite(norm) for norm in norms),
        clip_fraction=_ratio(tally.clipped, trained),
        entropy=_ratio(tally.entropy, trained),
        ratio_max=tally.ratio_max if trained else float("nan"),
        logprob_local=_ratio(tally.logprob[0], tally.tokens[0]),
        logprob_external=_ratio(tally.logprob[1], tally.tokens[1]),
        tokens_local=sum(s.learned for s in batch if not s.external),
        tokens_external=sum(s.learned for s in batch if s.external),
        seconds=seconds,
    )
