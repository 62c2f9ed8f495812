"""What a node relies on when something is interrupted or refused: completions that can be continued, weights without their
optimizer, an adapter that stays, memory that is given back."""

from __future__ import annotations

import gc
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.contract.conftest import Case, require_backend

from sapo_backends.base import (
    CancelToken,
    Engine,
    LoadRequest,
    PolicyUpdate,
    RowSeed,
    Sampling,
    TokenSequence,
    TrainSample,
)
from sapo_backends.errors import BackendError, Cancelled, CheckpointCorrupt

POLICY = PolicyUpdate(learning_rate=1e-3)


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


def test_a_checkpoint_that_was_saved_while_the_base_s_folder_was_away_restores_when_it_is_back(
    full: Any, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """And one that was saved when another model lay there does not restore on that one."""
    base, saved = tmp_path / "base", tmp_path / "saved"
    shutil.copytree(model_folder("qwen2"), base)
    saved.mkdir()
    builder = require_backend(full)
    request = LoadRequest(str(base), full.method, "float32", device="cpu", threads=1)
    engine = builder().load(request)
    base.rename(tmp_path / "elsewhere")
    engine.save(saved)
    shutil.copytree(model_folder("qwen3"), base)
    engine.restore(saved)
    other = builder().load(request)
    with pytest.raises(CheckpointCorrupt, match=r"another base\. .*base was changed or replaced since\. Put back"):
        other.restore(saved)
    shutil.rmtree(base)
    (tmp_path / "elsewhere").rename(base)
    back = builder().load(request)
    back.restore(saved)
    for one in (engine, other, back):
        one.close()


def test_an_adapter_that_does_not_fit_leaves_the_one_that_is_there(lora: Any, load: Callable[..., Engine]) -> None:
    """Whether a tensor is missing, has another shape or another name, and however many fit; the error says which."""
    engine = load(lora)
    there = {name: np.array(tensor) for name, tensor in engine.adapter().items()}
    other = {name: tensor + 1.0 for name, tensor in there.items()}
    last = list(other)[-1]
    kept = {name: tensor for name, tensor in other.items() if name != last}
    for unfit, named in (
        (kept, f"{last} is missing"),
        ({**kept, last: other[last][:, :-1]}, f"{last} has "),
        ({**other, "surplus": other[last]}, "surplus is unknown"),
    ):
        with pytest.raises(BackendError, match=f"does not fit.*{re.escape(named)}"):
            engine.set_adapter(unfit, 8.0)
        assert {name: np.array_equal(found, there[name]) for name, found in engine.adapter().items()} == dict.fromkeys(
            there, True
        )
    engine.close()


@pytest.mark.parametrize(
    ("architecture", "case"),
    [
        ("qwen2", Case("torch")),
        ("gpt2", Case("torch")),
        ("qwen2", Case("torch", method="lora", precision="4bit-float32", needs="bitsandbytes")),
    ],
    ids=["own decoder", "transformers", "4 bits"],
)
def test_a_closed_engine_holds_no_weights(architecture: str, case: Case, load: Callable[..., Engine]) -> None:
    """Not even while somebody holds the engine."""
    reductions = pytest.importorskip("torch.multiprocessing.reductions")
    engine = load(case, architecture)
    model = engine._model  # type: ignore[attr-defined]
    held = [model.base, *(w.codes for w in getattr(model, "four_bit", {}).values())]
    stored = [reductions.StorageWeakRef(tensor.untyped_storage()) for tensor in held]
    del model, held
    engine.close()
    gc.collect()
    assert [one.expired() for one in stored] == [True] * len(stored)
