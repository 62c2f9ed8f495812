"""One update of any engine: where it ends early, and what a pair does whose generator cannot follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapo_backends.base import CancelToken, Engine, LoadRequest, PolicyUpdate, Sampling, TrainSample
from sapo_backends.common.update import Report, UpdateTally, condense, run_update, share_prefix
from sapo_backends.composite import CompositeEngine
from sapo_backends.errors import Cancelled
from sapo_backends.fake import FakeBackend, FakeEngine

BATCH = [TrainSample((1, 2), (3, 4), 1.0), TrainSample((1, 2), (5, 4), -1.0)]
POLICY = PolicyUpdate(1e-3)


@pytest.mark.parametrize(("minibatch", "computed", "steps"), [(0, 3, 0), (1, 12, 2)])
def test_a_cancel_ends_an_update_between_micro_batches_and_not_once_weights_moved(
    minibatch: int, computed: int, steps: int
) -> None:
    cancel, done, taken = CancelToken(), list[int](), list[float]()

    def gradient(part: object, tally: UpdateTally, report: Report) -> float:
        for number in range(6):
            done.append(number)
            if number == 2 and len(taken) == minibatch:
                cancel.cancel()
            report((number + 1) / 6)
        return 1.0

    def step(grad: float) -> float:
        taken.append(grad)
        return grad

    policy = PolicyUpdate(1e-3, minibatches=2)
    if minibatch:
        run_update(BATCH, policy, 0, lambda them, _: [[0.0, 0.0]] * len(them), gradient, step, cancel)
    else:
        with pytest.raises(Cancelled):
            run_update(BATCH, policy, 0, lambda them, _: [[0.0, 0.0]] * len(them), gradient, step, cancel)
    assert (len(done), len(taken)) == (computed, steps)


def test_a_generator_that_cannot_follow_does_not_repeat_the_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update is applied and reported; what is in the way is raised by the next generation, until it is gone."""
    full = True

    def reload(folder: Path) -> Engine:
        if full:
            raise OSError(28, "No space left on device")
        return FakeBackend().load(LoadRequest("fake"))

    monkeypatch.setattr(FakeEngine, "export", lambda *_: None)
    trainer = FakeBackend().load(LoadRequest("fake"))
    pair = CompositeEngine(FakeBackend().load(LoadRequest("fake")), trainer, reload, 8.0)
    assert pair.update(BATCH, POLICY, 0).steps == 1
    with pytest.raises(OSError, match="No space"):
        pair.generate([[1, 2]], 2, Sampling(max_new_tokens=2), 0)
    full = False
    pair.generate([[1, 2]], 2, Sampling(max_new_tokens=2), 0)
    monkeypatch.setattr(CompositeEngine, "_sync_generator", lambda _: pytest.fail("it has the newest weights"))
    pair.generate([[1, 2]], 2, Sampling(max_new_tokens=2), 0)
    pair.close()


def test_what_all_prompts_begin_with_is_the_one_prompt_and_the_rest_is_masked() -> None:
    """The same tokens in the same order; only the completions' own carry loss, with their log-probabilities. Prompts with
    little in common stay as they are, and so do those whose rest would be computed more often than it saves."""
    common = tuple(range(100, 120))
    samples = [
        TrainSample((*common, 1, 2), (7, 8), 1.0, old_logprobs=(-1.0, -2.0)),
        TrainSample((*common, 3), (9,), 1.0),
        TrainSample(common, (5,), 1.0, loss_mask=(True,)),
    ]
    shared = share_prefix(samples)
    assert [sample.prompt for sample in shared] == [common] * 3
    assert [(*a.prompt, *a.completion) for a in shared] == [(*b.prompt, *b.completion) for b in samples]
    assert [a.masked(a.completion) for a in shared] == [(7, 8), (9,), (5,)]
    assert [a.learned for a in shared] == [2, 1, 1]
    assert shared[0].masked(shared[0].old_logprobs or ()) == (-1.0, -2.0)
    apart = [TrainSample((1, *common), (7,), 1.0), TrainSample((2, *common), (8,), 1.0)]
    assert share_prefix(apart) == apart
    assert share_prefix(samples[:1]) == samples[:1]
    many = [TrainSample((*common, *(number,) * 30), (answer,), 1.0) for number in (1, 2) for answer in range(8)]
    assert share_prefix(many) == many


def test_equal_samples_are_computed_once_with_their_advantages_together() -> None:
    """They keep their place and their tokens in the denominators; a different text, advantage or source stays apart."""
    twice, other = TrainSample((1, 2), (3, 4), 0.5), TrainSample((1, 2), (3, 4), 0.5, external=True)
    condensed = condense([twice, BATCH[1], twice, other, twice])
    assert [sample.advantage for sample in condensed] == [1.5, -1.0, 0.0, 0.5, 0.0]
    assert [sample.completion for sample in condensed] == [(3, 4), (5, 4), (3, 4), (3, 4), (3, 4)]
