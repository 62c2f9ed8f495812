"""The loaded MLX model behind the contract of sapo_backends.base."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sapo_backends.base import (
    BackendError,
    BackendUnavailable,
    CancelToken,
    Completion,
    Engine,
    EngineInfo,
    PolicyUpdate,
    RowSeed,
    Sampling,
    TokenIds,
    TokenSequence,
    TrainSample,
    UpdateStats,
)
from sapo_backends.checkpoints.content import content_id
from sapo_backends.checkpoints.engine_state import OPTIMIZER_FILES
from sapo_backends.checkpoints.tokenizer import HfTokenizer
from sapo_backends.common.update import Tally, plan_micro_batches
from sapo_backends.mlx_backend import generation, parameter_names, save, update
from sapo_backends.mlx_backend.device import computing
from sapo_backends.mlx_backend.kv_cache import SHAPE_STEP
from sapo_backends.mlx_backend.model import MlxModel
from sapo_backends.mlx_backend.packing import pack
from sapo_backends.mlx_backend.update import AdamW

SCORING_BUDGET = 8192
"""Padded tokens scored at once; without a backward pass little is kept."""
TRAINING_BUDGET = 2048
LESS = "Lower group_size, the number of groups, or max_new_tokens."


class MlxEngine(Engine):
    """Without trained tensors the engine only generates."""

    def __init__(self, model: MlxModel, tokenizer: HfTokenizer, info: EngineInfo, folder: Path, device: Any) -> None:
        self.info, self.tokenizer = info, tokenizer
        self._model, self._folder, self._device = model, folder, device
        self._share = 1.0
        self._base = content_id(folder)  # now: the folder may move, or hold another model by the next checkpoint
        self.optimizer_files = OPTIMIZER_FILES
        with computing(device, LESS):
            self._optimizer = AdamW(model.trained) if model.trained else None

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
        self.check_lengths(prompts, sampling)
        with computing(self._device, "Lower group_size or max_new_tokens."):
            return generation.generate(
                self._model, prompts, group_size, sampling, seed, self.tokenizer.eos_ids, cancel, on_tokens
            )

    def logprobs(self, sequences: Sequence[TokenSequence], temperature: float = 1.0) -> list[list[float]]:
        """See Engine.logprobs."""
        result: list[list[float]] = [[] for _ in sequences]
        pairs = [(tuple(s.prompt), tuple(s.completion)) for s in sequences]
        with computing(self._device, LESS):
            for members in plan_micro_batches(pairs, SCORING_BUDGET, step=SHAPE_STEP):
                rows = np.array(self._model.token_logprobs(pack(pairs, members), temperature).logprobs)
                for index, row in zip(members, rows, strict=True):
                    result[index] = row[: len(pairs[index][1])].tolist()
        return result

    def use_share(self, share: float) -> None:
        """See Engine.use_share; MLX's threads are its own."""
        self._share = share

    def _trainer(self) -> AdamW:
        if self._optimizer is None:
            raise BackendUnavailable("This model was loaded to generate only.", "choose the method full or lora")
        return self._optimizer

    def update(
        self,
        batch: Sequence[TrainSample],
        policy: PolicyUpdate,
        seed: int,
        cancel: CancelToken | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> UpdateStats:
        """See Engine.update."""
        optimizer, budget = self._trainer(), int(TRAINING_BUDGET * self._share)
        with computing(self._device, LESS):
            return update.update(
                self._model, optimizer, batch, policy, seed, budget, self.logprobs, cancel, on_progress
            )

    def gradient(self, batch: Sequence[TrainSample], policy: PolicyUpdate) -> dict[str, NDArray[np.float32]]:
        """d loss / d parameters of one minibatch by Hugging Face (or PEFT) name; for the contract tests."""
        self._trainer()
        with computing(self._device, LESS):
            grads = update.gradient(self._model, batch, policy, TRAINING_BUDGET, Tally())
            return parameter_names.to_arrays(grads)

    def adapter(self) -> Mapping[str, object]:
        """See Engine.adapter."""
        return parameter_names.to_arrays(self._model.trained) if self.info.method == "lora" else {}

    def set_adapter(self, tensors: Mapping[str, object], alpha: float) -> None:
        """See Engine.set_adapter."""
        if self.info.method != "lora":
            raise BackendUnavailable("This model was loaded without an adapter.", "choose the method lora")
        try:
            with computing(self._device, LESS):
                self._model.trained = parameter_names.from_arrays(self._model.trained, tensors)
                self._model.settle()
        except ValueError as error:
            raise BackendError(f"The adapter does not fit this model: {error}.") from error
        parameter_names.set_scale(self._model.network, alpha / self._rank)

    @property
    def _rank(self) -> int:
        return next(int(t.shape[1]) for name, t in self._model.trained.items() if name.endswith(".lora_a"))

    def _identity(self) -> dict[str, object]:
        rank = self._rank if self.info.method == "lora" else 0
        return {"model": self.info.model, "base": self._base, "method": self.info.method, "rank": rank}

    def save(self, folder: Path, optimizer: bool = True) -> None:
        """See Engine.save."""
        save.save(folder, self._model, self._trainer(), self._identity(), optimizer)

    def restore(self, folder: Path) -> None:
        """See Engine.restore."""
        optimizer = self._trainer()
        with computing(self._device, LESS):
            save.restore(folder, self._model, optimizer, self._identity())

    def export(self, folder: Path) -> None:
        """See Engine.export."""
        with computing(self._device, LESS):
            save.export(self._model, self._folder, folder)

    def close(self) -> None:
        """See Engine.close."""
        self._model.network = None
        self._model.trained = {}
        self._optimizer = None
