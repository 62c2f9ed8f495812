"""The engine that ships for tests, demos and plug-in authors: NumPy only, loads in a millisecond, really learns.

To write an engine of your own: subclass Backend and Engine from `sapo_backends.base`, point the entry-point group
`sapo_desktop.backends` at the Backend, and run `tests/contract/test_engine.py` over it. This file does all that a
trainer must do. `LoadRequest.model` may be "fake:slow" or "fake:0.05" (seconds a decode step) to imitate a real one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from sapo_backends import reference
from sapo_backends.base import (
    Backend,
    BackendError,
    Cancelled,
    CancelToken,
    CheckpointCorrupt,
    Completion,
    Engine,
    EngineInfo,
    LoadRequest,
    PolicyUpdate,
    Progress,
    RowSeed,
    Sampling,
    TokenIds,
    TokenSequence,
    TrainSample,
    UpdateStats,
)
from sapo_backends.common.generation import GeneratedRows
from sapo_backends.common.numpy_sampler import uniforms
from sapo_backends.common.update import minibatches, token_mean
from sapo_backends.fake import tokenizer as vocab
from sapo_backends.fake.policy import Policy, features, last_written, previous_class

STEP_SCALE = 2e4
"""Adam steps are this much larger than learning_rate: a table needs bigger steps than a transformer's weights."""
LARGEST_STEP = 0.5
SLOW_SECONDS = 0.1
OPTIMIZER_FILE = "fake-optimizer.safetensors"


def _latency(model: str) -> float:
    """Seconds a decode step: "fake" 0, "fake:slow" 0.1, "fake:0.02" 0.02; any other model name 0."""
    name, _, option = model.partition(":")
    if name != "fake" or not option:
        return 0.0
    if option == "slow":
        return SLOW_SECONDS
    try:
        return float(option)
    except ValueError:
        raise BackendError(f"Unknown fake model {model!r}: use fake, fake:slow or fake:<seconds a step>.") from None


def _classes(completion: TokenIds) -> NDArray[np.int64]:
    """Class of the token before each completion token (T,)."""
    return np.array([previous_class(t) for t in (None, *completion[:-1])][: len(completion)], dtype=np.int64)


class FakeEngine(Engine):
    """See the module's docstring."""

    def __init__(self, request: LoadRequest) -> None:
        self.tokenizer = vocab.FakeTokenizer()
        self._latency = _latency(request.model)
        self._trains = request.method != "none"
        self._policy = Policy.initial(request.seed)
        self._first_moment, self._second_moment = self._policy.zeros_like(), self._policy.zeros_like()
        self._steps = 0
        self.optimizer_files = (OPTIMIZER_FILE,)
        size = sum(array.size for array in self._policy.arrays().values())
        self.info = EngineInfo(
            backend="fake",
            model="fake",
            device="cpu",
            precision="float64",
            parameters=size,
            trainable=size if self._trains else 0,
            vocabulary=vocab.VOCABULARY,
            context_length=4096,
            method="full" if self._trains else "none",
        )

    def generate(
        self,
        prompts: Sequence[TokenIds],
        group_size: int,
        sampling: Sampling,
        seed: int | Sequence[RowSeed],
        cancel: CancelToken | None = None,
        on_tokens: Callable[[int, int], None] | None = None,
    ) -> list[list[Completion]]:
        """See Engine.generate."""
        seen = [features(tuple(prompt)) for prompt in prompts for _ in range(group_size)]
        begun = [last_written(prompt) for prompt in prompts for _ in range(group_size)]
        rows = GeneratedRows(len(seen), self.tokenizer.eos_ids)
        uniform = uniforms(len(seen), sampling.max_new_tokens, seed)
        for step in range(sampling.max_new_tokens):
            alive = [row for row, done in enumerate(rows.done) if not done]
            if not alive:
                break
            if cancel is not None and cancel.cancelled:
                raise Cancelled("Stopped on request.", rows.groups(len(prompts), group_size))
            if self._latency:
                time.sleep(self._latency)
            for row in alive:
                last = previous_class(rows.tokens[row][-1] if rows.tokens[row] else begun[row])
                logits = self._policy.logits(seen[row], np.array([last]))[0]  # (V,)
                distribution = reference.sampling_distribution(logits, sampling.temperature, sampling.top_p)
                token = int(
                    np.searchsorted(np.cumsum(distribution), uniform[row, step] * distribution.sum(), side="right")
                )
                token = min(token, vocab.VOCABULARY - 1)
                logprob = float(reference.log_softmax(logits, sampling.temperature or 1.0)[token])
                rows.append([row], [token], [logprob])
            if on_tokens is not None:
                on_tokens(rows.finished, rows.count)
        return rows.groups(len(prompts), group_size)

    def _logits(self, prompt: TokenIds, completion: TokenIds) -> NDArray[np.float64]:
        """(T, V) logits that predict the completion's tokens."""
        return self._policy.logits(features(tuple(prompt)), _classes(completion))

    def logprobs(self, sequences: Sequence[TokenSequence], temperature: float = 1.0) -> list[list[float]]:
        """See Engine.logprobs."""
        result = []
        for sequence in sequences:
            table = reference.log_softmax(self._logits(sequence.prompt, sequence.completion), temperature)
            result.append([float(row[token]) for row, token in zip(table, sequence.completion, strict=True)])
        return result

    def update(
        self,
        batch: Sequence[TrainSample],
        policy: PolicyUpdate,
        seed: int,
        cancel: CancelToken | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> UpdateStats:
        """See Engine.update."""
        if not self._trains:
            return super().update(batch, policy, seed, cancel, on_progress)
        began = time.perf_counter()
        if cancel is not None:
            cancel.raise_if_cancelled()
        parts = minibatches(batch, policy, seed, self.logprobs)
        losses: list[reference.Surrogate] = []
        norms: list[float] = []
        trained = [sample for part in parts for sample in part]
        for done, part in enumerate(parts):
            if self._latency:
                time.sleep(self._latency)
            losses.append(reference.surrogate([self._logits(s.prompt, s.completion) for s in part], part, policy))
            norms.append(self._step(part, losses[-1], policy))
            if on_progress is not None:
                on_progress((done + 1) / len(parts))
        chosen = [logprobs for loss in losses for logprobs in loss.logprobs]
        local, external = (token_mean(trained, chosen, external=flag) for flag in (False, True))
        return UpdateStats(
            loss=float(np.mean([loss.loss for loss in losses])) if losses else float("nan"),
            grad_norm=float(np.mean(norms)) if norms else float("nan"),
            steps=sum(norm > 0.0 for norm in norms),
            clip_fraction=float(np.nanmean([loss.clip_fraction for loss in losses])) if any(norms) else float("nan"),
            entropy=float(np.nanmean([loss.entropy for loss in losses])) if losses else float("nan"),
            ratio_max=max((loss.ratio_max for loss in losses), default=float("nan")),
            logprob_local=local,
            logprob_external=external,
            tokens_local=sum(s.learned for s in batch if not s.external),
            tokens_external=sum(s.learned for s in batch if s.external),
            seconds=time.perf_counter() - began,
        )

    def gradient(self, batch: Sequence[TrainSample], policy: PolicyUpdate) -> dict[str, NDArray[np.float64]]:
        """d loss / d parameters of one minibatch, by name; for the contract tests."""
        loss = reference.surrogate([self._logits(s.prompt, s.completion) for s in batch], batch, policy)
        return self._gradient(batch, loss).arrays()

    def _gradient(self, part: Sequence[TrainSample], loss: reference.Surrogate) -> Policy:
        total = self._policy.zeros_like()
        for sample, gradient in zip(part, loss.gradients, strict=True):
            if sample.advantage != 0.0:
                self._policy.backward(features(sample.prompt), _classes(sample.completion), gradient, total)
        return total

    def _step(self, part: Sequence[TrainSample], loss: reference.Surrogate, policy: PolicyUpdate) -> float:
        """One AdamW step; returns the gradient's norm before clipping. No step when nothing has an advantage."""
        if all(sample.advantage == 0.0 for sample in part):
            return 0.0
        gradient = self._gradient(part, loss)
        norm = float(np.sqrt(sum((array**2).sum() for array in gradient.arrays().values())))
        shrink = min(1.0, policy.max_grad_norm / (norm + 1e-6))
        beta1, beta2 = policy.adam_betas
        self._steps += 1
        rate = min(policy.learning_rate * STEP_SCALE, LARGEST_STEP)
        for name, weights in self._policy.arrays().items():
            grad = gradient.arrays()[name] * shrink
            first, second = self._first_moment.arrays()[name], self._second_moment.arrays()[name]
            first *= beta1
            first += (1 - beta1) * grad
            second *= beta2
            second += (1 - beta2) * grad**2
            corrected = np.sqrt(second / (1 - beta2**self._steps)) + policy.adam_eps
            weights *= 1.0 - policy.learning_rate * policy.weight_decay
            weights -= rate * (first / (1 - beta1**self._steps)) / corrected
        return norm

    def _weights(self) -> dict[str, NDArray[np.float64]]:
        return {f"policy.{name}": array for name, array in self._policy.arrays().items()}

    def _moments(self) -> dict[str, NDArray[np.float64]]:
        sets = {"first_moment": self._first_moment, "second_moment": self._second_moment}
        return {f"{prefix}.{name}": array for prefix, part in sets.items() for name, array in part.arrays().items()}

    def save(self, folder: Path, optimizer: bool = True) -> None:
        """See Engine.save."""
        save_file(self._weights(), folder / "fake.safetensors")
        if optimizer:
            save_file(self._moments(), folder / OPTIMIZER_FILE)
        (folder / "fake.json").write_text(json.dumps({"steps": self._steps}), encoding="utf-8")

    def restore(self, folder: Path) -> None:
        """Folders from before the optimizer had a file of its own restore too."""
        try:
            saved = load_file(folder / "fake.safetensors")
            steps = int(json.loads((folder / "fake.json").read_text(encoding="utf-8"))["steps"])
            if (folder / OPTIMIZER_FILE).exists():
                saved |= load_file(folder / OPTIMIZER_FILE)
            whole = all(name in saved for name in self._moments())
            for name, array in self._weights().items():
                np.copyto(array, saved[name])
            for name, array in self._moments().items():
                np.copyto(array, saved[name] if whole else 0.0)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointCorrupt(f"The checkpoint in {folder} does not restore: {error}") from error
        self._steps = steps if whole else 0


class FakeBackend(Backend):
    """Builds FakeEngine; always available."""

    NAME: ClassVar[str] = "fake"
    CAN_TRAIN: ClassVar[bool] = True
    DEVICES: ClassVar[tuple[str, ...]] = ("cpu",)

    @classmethod
    def check(cls) -> None:
        """NumPy is a base dependency, so there is nothing to miss."""

    def load(self, request: LoadRequest, progress: Progress | None = None) -> Engine:
        """See Backend.load."""
        engine = FakeEngine(request)
        if progress is not None:
            progress(1.0, "ready")
        return engine
