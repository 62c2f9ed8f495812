"""What every engine promises, over all that are installed."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.contract.conftest import Case
from tests.support.device import ROUNDING

from sapo_backends import reference
from sapo_backends.base import (
    Backend,
    CancelToken,
    Completion,
    Engine,
    PolicyUpdate,
    Sampling,
    TokenSequence,
    TrainSample,
)
from sapo_backends.common import hardware
from sapo_backends.errors import BackendUnavailable, Cancelled, CheckpointCorrupt, OutOfMemory

PROMPTS = [list(range(5, 17)), list(range(20, 51)), [7] * 20]
POLICY = PolicyUpdate(learning_rate=1e-3)


def samples(engine: Engine, seed: int = 0) -> list[TrainSample]:
    """Twelve sampled completions with advantages of both signs, one of them 0, four of them external."""
    groups = engine.generate(PROMPTS, 4, Sampling(max_new_tokens=8), seed)
    sampled = [(prompt, c) for prompt, group in zip(PROMPTS, groups, strict=True) for c in group]
    advantages = [1.0, -1.0, 0.5, 0.0, 1.0, -0.3, 0.2, -1.0, 1.5, -0.5, 0.7, -1.0]
    return [
        TrainSample(tuple(prompt), c.tokens, advantage, external=i % 3 == 2)
        for i, ((prompt, c), advantage) in enumerate(zip(sampled, advantages, strict=True))
    ]


def scores(engine: Engine, batch: list[TrainSample]) -> np.ndarray:
    """Log-probabilities of all completion tokens, one after another."""
    rows = engine.logprobs([TokenSequence(s.prompt, s.completion) for s in batch])
    return np.concatenate([np.array(row) for row in rows])


def test_completions_have_the_promised_form(engine: Engine) -> None:
    """A log-probability a token, the end-of-sequence token kept, and "length" only at the limit."""
    groups = engine.generate(PROMPTS, 16, Sampling(max_new_tokens=40), seed=1)
    sampled = [c for group in groups for c in group]
    assert [len(group) for group in groups] == [16] * len(PROMPTS)
    assert {c.finish for c in sampled} >= {"stop"}
    for completion in sampled:
        assert len(completion.tokens) == len(completion.logprobs) <= 40
        ended = [token in engine.tokenizer.eos_ids for token in completion.tokens]
        assert ended.count(True) == ended[-1:].count(True) == (completion.finish == "stop")
        assert completion.finish == "stop" or len(completion.tokens) == 40
        assert all(logprob <= 0.0 for logprob in completion.logprobs)


def test_recorded_logprobs_are_those_of_the_policy(engine: Engine) -> None:
    """What generation records at its temperature equals what scoring gives, also under top_p."""
    for sampling in (Sampling(0.7, 1.0, 8), Sampling(1.3, 0.8, 8)):
        groups = engine.generate(PROMPTS, 3, sampling, seed=2)
        for prompt, group in zip(PROMPTS, groups, strict=True):
            sequences = [TokenSequence(tuple(prompt), c.tokens) for c in group]
            for completion, scored in zip(group, engine.logprobs(sequences, sampling.temperature), strict=True):
                np.testing.assert_allclose(completion.logprobs, scored, atol=2e-5)


def test_same_seed_same_completions(engine: Engine) -> None:
    """Seeds decide everything, and different seeds sample differently."""
    first, again, other = (engine.generate(PROMPTS, 4, Sampling(max_new_tokens=8), seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_greedy_samples_the_most_probable_token(engine: Engine) -> None:
    """Temperature 0 gives equal completions within a group, captured at temperature 1."""
    for prompt, group in zip(PROMPTS, engine.generate(PROMPTS, 3, Sampling(0.0, 1.0, 6), seed=5), strict=True):
        assert len({c.tokens for c in group}) == 1
        scored = engine.logprobs([TokenSequence(tuple(prompt), group[0].tokens)])[0]
        np.testing.assert_allclose(group[0].logprobs, scored, atol=2e-5)


def test_neighbours_do_not_change_a_result(engine: Engine) -> None:
    """Padding invariance: a prompt of another length beside it changes neither greedy tokens nor log-probabilities."""
    together = engine.generate(PROMPTS, 2, Sampling(0.0, 1.0, 10), seed=0)
    alone = [engine.generate([prompt], 1, Sampling(0.0, 1.0, 10), seed=0)[0][0] for prompt in PROMPTS]
    assert [group[0].tokens for group in together] == [c.tokens for c in alone]
    sequences = [TokenSequence(tuple(p), tuple(range(40, 40 + 3 * i + 1))) for i, p in enumerate(PROMPTS)]
    apart = [engine.logprobs([sequence])[0] for sequence in sequences]
    for joint, single in zip(engine.logprobs(sequences), apart, strict=True):
        np.testing.assert_allclose(joint, single, atol=2e-5)


def _excess(observed: np.ndarray, expected: np.ndarray) -> float:
    """Standard deviations by which Pearson's chi-square exceeds its mean; cells below 5 are pooled."""
    rare = expected < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    used = expected > 0
    degrees = max(int(used.sum()) - 1, 1)
    statistic = float((((observed - expected) ** 2)[used] / expected[used]).sum())
    return (statistic - degrees) / math.sqrt(2 * degrees)


def test_a_group_is_sampled_as_independent_samples(engine: Engine) -> None:
    """Completions that share a prefilled prompt follow the policy's distribution and do not depend on each other."""
    count, prompt = 4000, PROMPTS[0]
    group = engine.generate([prompt], count, Sampling(max_new_tokens=2), seed=6)[0]
    first = np.array([c.tokens[0] for c in group])
    size = engine.info.vocabulary
    each = [TokenSequence(tuple(prompt), (token,)) for token in range(size)]
    expected = count * np.exp(np.array(engine.logprobs(each))[:, 0])
    assert _excess(np.bincount(first, minlength=size).astype(float), expected) < 4
    low = np.isin(first, np.argsort(-expected)[np.cumsum(np.sort(expected)[::-1]) < count / 2])  # about half of them
    pairs = np.bincount(2 * low[:-1] + low[1:], minlength=4).astype(float)
    share = low.mean()
    independent = (count - 1) * np.array([(1 - share) ** 2, (1 - share) * share, (1 - share) * share, share**2])
    assert _excess(pairs, independent) < 5


def test_cancel_stops_between_steps(engine: Engine) -> None:
    """Cancelling from the progress report raises Cancelled; the engine then works as before."""
    before = engine.generate(PROMPTS, 2, Sampling(max_new_tokens=8), seed=7)
    cancel, seen = CancelToken(), []

    def report(finished: int, tokens: int) -> None:
        seen.append(tokens)
        cancel.cancel()

    with pytest.raises(Cancelled):
        engine.generate(PROMPTS, 2, Sampling(max_new_tokens=400), 7, cancel, report)
    assert len(seen) < 20
    assert engine.generate(PROMPTS, 2, Sampling(max_new_tokens=8), seed=7) == before


def test_a_cancelled_update_changes_nothing(trainer: Engine) -> None:
    """A token that is already set stops the update before its first step."""
    batch = samples(trainer)
    before = scores(trainer, batch)
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(Cancelled):
        trainer.update(batch, POLICY, 0, cancel)
    np.testing.assert_array_equal(scores(trainer, batch), before)


def test_an_update_moves_the_policy_towards_the_advantage(trainer: Engine) -> None:
    """Tokens of positive advantage become more probable; the end-of-sequence token among them."""
    eos = trainer.tokenizer.eos_ids[0]
    good = TrainSample(tuple(PROMPTS[0]), (60, 61, eos), 1.0)
    bad = TrainSample(tuple(PROMPTS[0]), (62, 63, 64), -1.0)
    before = trainer.logprobs([TokenSequence(s.prompt, s.completion) for s in (good, bad)])
    for seed in range(10):
        stats = trainer.update([good, bad], POLICY, seed)
    after = trainer.logprobs([TokenSequence(s.prompt, s.completion) for s in (good, bad)])
    assert after[0][-1] > before[0][-1]
    assert sum(after[0]) > sum(before[0])
    assert sum(after[1]) < sum(before[1])
    assert (stats.steps, stats.tokens_local, stats.tokens_external) == (1, 6, 0)


def test_an_update_without_advantages_changes_nothing(trainer: Engine) -> None:
    """A batch of equal rewards is skipped as a whole and says so."""
    batch = [TrainSample(tuple(PROMPTS[0]), (60, 61), 0.0), TrainSample(tuple(PROMPTS[1]), (62,), 0.0)]
    before = scores(trainer, batch)
    stats = trainer.update(batch, POLICY, 0)
    assert stats.steps == 0
    np.testing.assert_array_equal(scores(trainer, batch), before)


def test_an_engine_loaded_in_one_thread_works_in_another(trainer: Engine) -> None:
    """Loading, generating and training may each happen in a thread of its own, one at a time."""
    results: list[object] = []
    calls: list[Callable[[], object]] = [
        lambda: samples(trainer),
        lambda: trainer.update(samples(trainer), POLICY, 0).steps,
        lambda: trainer.generate(PROMPTS, 2, Sampling(max_new_tokens=4), seed=0),
        lambda: trainer.update(samples(trainer), POLICY, 1).steps,
    ]
    for call in calls:
        thread = threading.Thread(target=lambda call=call: results.append(call()))
        thread.start()
        thread.join()
    assert len(results) == len(calls)
    assert results[1] == results[3] == 1


def test_statistics_keep_sources_apart(trainer: Engine) -> None:
    """Own and external tokens are counted and averaged separately, over what was trained."""
    batch = [s for s in samples(trainer) if s.advantage != 0.0]
    rows = trainer.logprobs([TokenSequence(s.prompt, s.completion) for s in batch])
    stats = trainer.update(batch, POLICY, 0)
    for external, mean, count in (
        (False, stats.logprob_local, stats.tokens_local),
        (True, stats.logprob_external, stats.tokens_external),
    ):
        tokens = [lp for s, row in zip(batch, rows, strict=True) for lp in row if s.external == external]
        assert count == len(tokens)
        assert mean == pytest.approx(np.mean(tokens), abs=1e-4)
    assert stats.ratio_max == pytest.approx(1.0)
    assert stats.grad_norm > 0
    assert 0 < stats.entropy <= math.log(trainer.info.vocabulary)


def test_several_steps_use_the_policy_before_the_first(trainer: Engine) -> None:
    """With epochs and minibatches the ratio leaves 1 and the number of optimizer steps is their product."""
    stats = trainer.update(samples(trainer), PolicyUpdate(5e-3, epochs=2, minibatches=3), seed=1)
    assert stats.steps == 6
    assert stats.ratio_max > 1.0


def test_a_restored_engine_continues_exactly(
    trainer: Engine, training_case: object, load: Callable[..., Engine], tmp_path: Path
) -> None:
    """Six straight updates equal three, save, restore in a fresh trainer, three: bit for bit."""
    batches = [samples(trainer, seed) for seed in range(6)]
    for seed, batch in enumerate(batches[:3]):
        trainer.update(batch, POLICY, seed)
    trainer.save(tmp_path)
    fresh = load(training_case)
    fresh.restore(tmp_path)
    for seed, batch in enumerate(batches[3:], start=3):
        trainer.update(batch, POLICY, seed)
        fresh.update(batch, POLICY, seed)
    np.testing.assert_allclose(scores(fresh, batches[0]), scores(trainer, batches[0]), rtol=0, atol=ROUNDING)
    trainer.restore(tmp_path)
    assert not np.array_equal(scores(fresh, batches[0]), scores(trainer, batches[0]))


def test_a_damaged_checkpoint_is_refused(trainer: Engine, tmp_path: Path) -> None:
    """A file that is truncated, or nested too deep, raises CheckpointCorrupt and leaves the engine as it was."""
    batch = samples(trainer)
    trainer.save(tmp_path)
    trainer.update(batch, POLICY, 0)
    before = scores(trainer, batch)
    for file in tmp_path.iterdir():
        whole = file.read_bytes()
        for damaged in (whole[: len(whole) // 2], b"[" * 100_000):
            file.write_bytes(damaged)
            with pytest.raises(CheckpointCorrupt):
                trainer.restore(tmp_path)
        file.write_bytes(whole)
        np.testing.assert_array_equal(scores(trainer, batch), before)
    trainer.restore(tmp_path)


def test_too_large_a_model_is_refused_before_loading(
    reader: object, load: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With little memory free, an engine that reads models raises OutOfMemory with sizes and a suggestion."""
    monkeypatch.setattr(hardware, "available_memory", lambda: 100_000)
    with pytest.raises(OutOfMemory, match="smaller model") as caught:
        load(reader)
    assert caught.value.needed > caught.value.available == 100_000


def test_an_engine_loads_where_it_says_it_can_and_refuses_the_rest_with_a_remedy(
    reader: object, reading_backend: type[Backend], load: Callable[..., Engine]
) -> None:
    """devices_here is what the doctor shows."""
    here = reading_backend.devices_here()
    assert "cpu" in here
    assert set(here) <= set(reading_backend.DEVICES)
    for device in reading_backend.DEVICES:
        if device in here:
            load(reader, device=device).close()
        else:
            with pytest.raises(BackendUnavailable, match="--device"):
                load(reader, device=device)


def test_top_p_samples_only_from_the_nucleus(engine: Engine) -> None:
    """No token outside the smallest set of mass top_p is ever sampled."""
    prompt = PROMPTS[1]
    size = engine.info.vocabulary
    each = [TokenSequence(tuple(prompt), (token,)) for token in range(size)]
    allowed = reference.sampling_distribution(np.array(engine.logprobs(each))[:, 0], 1.0, top_p=0.31)
    sampled = {c.tokens[0] for c in engine.generate([prompt], 500, Sampling(1.0, 0.31, 1), seed=8)[0]}
    assert sampled <= set(np.flatnonzero(allowed).tolist())
    assert len(sampled) > 1 or np.count_nonzero(allowed) == 1


def test_the_untrained_model_still_answers_after_updates_of_an_adapter(
    load: Callable[..., Engine], keeping: Case
) -> None:
    """Inside the context samples, greedy answers and log-probabilities are those before the first update; outside, and in
    the midst of training, they are those of the trained weights."""
    engine = load(keeping)
    batch = samples(engine)
    answers = [engine.generate(PROMPTS, 2, Sampling(t, 1.0, 8), seed=8) for t in (1.0, 0.0)]
    scored = scores(engine, batch)
    policy = PolicyUpdate(learning_rate=5e-2)
    assert engine.keeps_untrained
    engine.update(batch, policy, 0)
    trained = engine.generate(PROMPTS, 2, Sampling(1.0, 1.0, 8), seed=8)
    trained_scores = scores(engine, batch)
    with engine.untrained():
        assert _tokens(engine.generate(PROMPTS, 2, Sampling(1.0, 1.0, 8), seed=8)) == _tokens(answers[0])
        longer = engine.generate(PROMPTS * 3, 6, Sampling(0.0, 1.0, 8), seed=8)  # a larger cache than before
        assert _tokens(longer[: len(PROMPTS)]) == [[group[0]] * 6 for group in _tokens(answers[1])]
        np.testing.assert_allclose(scores(engine, batch), scored, atol=2e-5)
    assert np.abs(trained_scores - scored).max() > 1e-3
    np.testing.assert_array_equal(scores(engine, batch), trained_scores)
    assert engine.generate(PROMPTS, 2, Sampling(1.0, 1.0, 8), seed=8) == trained
    engine.update(batch, policy, 1)
    with pytest.raises(RuntimeError, match="stop"), engine.untrained():
        raise RuntimeError("stop")
    assert np.abs(scores(engine, batch) - trained_scores).max() > 1e-4, "an error inside leaves the trained weights"


def test_weights_that_were_trained_themselves_are_not_asked_for_untrained_answers(
    load: Callable[..., Engine],
) -> None:
    """Full fine-tuning overwrites what it was given."""
    engine = load(Case("fake", reads_folders=False))
    assert not engine.keeps_untrained
    with pytest.raises(BackendUnavailable), engine.untrained():
        pass


def _tokens(groups: list[list[Completion]]) -> list[list[tuple[int, ...]]]:
    return [[completion.tokens for completion in group] for group in groups]
