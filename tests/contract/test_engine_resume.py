"""What a node relies on when it is interrupted: completions that can be continued, weights without their optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapo_backends.base import (
    Cancelled,
    CancelToken,
    Engine,
    PolicyUpdate,
    RowSeed,
    Sampling,
    TokenSequence,
    TrainSample,
)

POLICY = PolicyUpdate("grpo", learning_rate=1e-3)


def chats(engine: Engine) -> list[list[int]]:
    texts = ("How much is 3 + 4?", "Which weekday comes after Monday?")
    return [engine.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in texts]


def test_a_completion_with_a_seed_of_its_own_depends_on_no_other(engine: Engine) -> None:
    """Alone or in a batch, in this order or that: each row reads its own stream."""
    prompts, seeds = chats(engine), [RowSeed(n) for n in range(4)]
    sampling = Sampling(max_new_tokens=8)
    both = engine.generate(prompts, 2, sampling, seeds)
    other = engine.generate(prompts[::-1], 2, sampling, [*seeds[2:], *seeds[:2]])[::-1]
    assert [[c.tokens for c in group] for group in both] == [[c.tokens for c in group] for group in other]
    assert engine.generate(prompts[:1], 1, sampling, [RowSeed(1)])[0][0].tokens == both[0][1].tokens


def test_a_cancelled_call_hands_over_what_it_had_and_it_is_continued_to_the_same_end(engine: Engine) -> None:
    prompts, sampling = chats(engine), Sampling(max_new_tokens=8)
    seeds = [RowSeed(n) for n in range(4)]
    whole = [c for group in engine.generate(prompts, 2, sampling, seeds) for c in group]
    cancel = CancelToken()
    with pytest.raises(Cancelled) as stopped:
        engine.generate(prompts, 2, sampling, seeds, cancel, lambda _, tokens: cancel.cancel() if tokens >= 8 else None)
    partial = [c for group in stopped.value.partial for c in group]
    assert 0 < sum(len(c.tokens) for c in partial) < sum(len(c.tokens) for c in whole)
    for number, (begun, wanted) in enumerate(zip(partial, whole, strict=True)):
        used = len(begun.tokens)
        assert begun.tokens == wanted.tokens[:used]
        if begun.finish == "stop":
            continue
        prompt = [*prompts[number // 2], *begun.tokens]
        rest = engine.generate([prompt], 1, Sampling(max_new_tokens=8 - used), [RowSeed(number, used)])[0][0]
        assert (*begun.tokens, *rest.tokens) == wanted.tokens


def test_weights_without_the_optimizer_restore_with_a_fresh_one(trainer: Engine, tmp_path: Path) -> None:
    prompt = tuple(chats(trainer)[0])
    batch = [TrainSample(prompt, tuple(prompt[:4]), 1.0), TrainSample(prompt, tuple(prompt[4:8]), -1.0)]
    asked = [TokenSequence(s.prompt, s.completion) for s in batch]
    trainer.update(batch, POLICY, 0)
    folder = tmp_path / "saved"
    folder.mkdir()
    trainer.save(folder)
    assert trainer.optimizer_files
    for name in trainer.optimizer_files:
        (folder / name).unlink()
    before = trainer.logprobs(asked)
    trainer.update(batch, POLICY, 1)
    trainer.restore(folder)
    assert trainer.logprobs(asked) == before
    assert trainer.update(batch, POLICY, 2).steps == 1
