"""The loaded MLX model behind the contract of sapo_backends.base, and what it writes to disk."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.tuner.lora import LoRALinear
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from sapo_backends.base import (
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
from sapo_backends.checkpoints.locate import content_id
from sapo_backends.checkpoints.tokenizer import HfTokenizer
from sapo_backends.checkpoints.write_folder import (
    MOMENTS,
    OPTIMIZER_FILES,
    TRAINED,
    read_moments,
    read_state,
    with_moments,
    write_settings,
    write_state,
)
from sapo_backends.common.update import UpdateTally, plan_micro_batches
from sapo_backends.errors import BackendError, BackendUnavailable, CheckpointCorrupt
from sapo_backends.mlx_backend import generation, update
from sapo_backends.mlx_backend import model as parameter_names
from sapo_backends.mlx_backend.device_check import compute_on_device
from sapo_backends.mlx_backend.model import SHAPE_STEP, MlxModel, Tensors, from_arrays, pad_micro_batch, to_arrays
from sapo_backends.mlx_backend.update import AdamW

# What the engine writes to disk.
#
# Checkpoints: trained tensors and Adam's moments by outside names, and what they belong to. Exports: the trained model
# as a Hugging Face folder.

LOG = logging.getLogger(__name__)


def _whole(module: Any) -> Any:
    """The unquantised weight of a quantised module."""
    return mx.dequantize(
        module.weight, module.scales, module.biases, group_size=module.group_size, bits=module.bits, mode=module.mode
    )


def merged_weights(model: MlxModel) -> dict[str, Any]:
    """Weights by Hugging Face name: trained ones in float32, adapters merged, 4-bit ones dequantised."""
    weights: dict[str, Any] = {}
    inside: tuple[str, ...] = ()
    for name, module in model.network.named_modules():
        if isinstance(module, LoRALinear):
            fused = module.fuse(dequantize=True)
            weights |= {f"{name}.{key}": tensor for key, tensor in tree_flatten(fused.parameters())}
            inside += (f"{name}.",)
        elif isinstance(module, (nn.QuantizedLinear, nn.QuantizedEmbedding)):
            weights[f"{name}.weight"] = _whole(module)
            if "bias" in module:
                weights[f"{name}.bias"] = module.bias
            inside += (f"{name}.",)
    for name, tensor in tree_flatten(model.network.parameters()):
        if not name.startswith(inside or ("\0",)):
            weights[name] = tensor
    whole = {name: tensor for name, tensor in weights.items() if ".linear." not in name}
    return whole | {name: tensor for name, tensor in model.trained.items() if ".lora_" not in name}


def export_model(model: MlxModel, source: Path, folder: Path) -> None:
    """Write model.safetensors, config.json and the tokenizer."""
    weights = merged_weights(model)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "pt"})
    kind = str(next(iter(weights.values())).dtype).removeprefix("mlx.core.")
    write_settings(source, folder, kind)


def save_checkpoint(
    folder: Path, model: MlxModel, optimizer: AdamW, identity: dict[str, Any], with_optimizer: bool = True
) -> None:
    """Write trained.safetensors and optimizer.safetensors by Hugging Face or PEFT names, and state.json."""
    save_file(to_arrays(model.trained), folder / TRAINED)
    if with_optimizer:
        moments = {"first": to_arrays(optimizer.first), "second": to_arrays(optimizer.second)}
        save_file(with_moments(moments), folder / OPTIMIZER_FILES[0])
    write_state(folder, identity, steps=optimizer.steps)


def restore_checkpoint(folder: Path, model: MlxModel, optimizer: AdamW, identity: dict[str, Any]) -> None:
    """Read what save_checkpoint, or another engine with the same names, wrote; nothing changes unless everything fits.
    Raises CheckpointCorrupt.

    Without the optimizer's file the moments are zero and the step count starts at 0.
    """
    try:
        state = read_state(folder, identity)
        trained = from_arrays(model.trained, load_file(folder / TRAINED))
        moments = _moments(folder, model)
        steps = int(state["steps"]) if moments is not None else 0
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointCorrupt(f"The checkpoint in {folder} does not restore: {error}") from error
    fresh = AdamW(trained)
    model.trained = trained
    optimizer.first, optimizer.second = (fresh.first, fresh.second) if moments is None else moments
    optimizer.steps = steps
    model.settle()


def _moments(folder: Path, model: MlxModel) -> tuple[Tensors, Tensors] | None:
    """None if there are none, or if they are in an order that only the torch engine knows."""
    read = read_moments(folder, load_file)
    if read is None:
        return None
    moments, named = read
    if not named:
        LOG.warning(
            "The optimizer starts anew: its state in %s has no names, as the torch engine wrote it before. Train one "
            "round with torch, and it goes along.",
            folder,
        )
        return None
    first, second = (from_arrays(model.trained, moments[moment]) for moment in MOMENTS)
    return first, second


# The loaded MLX model behind the contract of sapo_backends.base.

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
        with compute_on_device(device, LESS):
            self._optimizer = AdamW(model.trained) if model.trained else None

    @property
    def keeps_untrained(self) -> bool:
        """See Engine.keeps_untrained."""
        return self.info.method == "lora"

    @contextlib.contextmanager
    def untrained(self) -> Iterator[None]:
        """See Engine.untrained."""
        if not self.keeps_untrained:
            raise BackendUnavailable("These weights were trained themselves.", "choose the method lora")
        scale = parameter_names.adapter_scale(self._model.network)
        parameter_names.set_scale(self._model.network, 0.0)
        try:
            yield
        finally:
            parameter_names.set_scale(self._model.network, scale)

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
        with compute_on_device(self._device, "Lower group_size or max_new_tokens."):
            return generation.generate_completions(
                self._model, prompts, group_size, sampling, seed, self.tokenizer.eos_ids, cancel, on_tokens
            )

    def logprobs(self, sequences: Sequence[TokenSequence], temperature: float = 1.0) -> list[list[float]]:
        """See Engine.logprobs."""
        result: list[list[float]] = [[] for _ in sequences]
        pairs = [(tuple(s.prompt), tuple(s.completion)) for s in sequences]
        with compute_on_device(self._device, LESS):
            for members in plan_micro_batches(pairs, SCORING_BUDGET, step=SHAPE_STEP):
                rows = np.array(self._model.token_logprobs(pad_micro_batch(pairs, members), temperature).logprobs)
                for index, row in zip(members, rows, strict=True):
                    result[index] = row[: len(pairs[index][1])].tolist()
        return result

    def use_share(self, share: float) -> None:
        """See Engine.use_share; only micro-batches shrink, since MLX manages its own threads."""
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
        with compute_on_device(self._device, LESS):
            return update.run_policy_update(
                self._model, optimizer, batch, policy, seed, budget, self.logprobs, cancel, on_progress
            )

    def gradient(self, batch: Sequence[TrainSample], policy: PolicyUpdate) -> dict[str, NDArray[np.float32]]:
        """d loss / d parameters of one minibatch by Hugging Face (or PEFT) name; for the contract tests."""
        self._trainer()
        with compute_on_device(self._device, LESS):
            grads = update.minibatch_gradient(self._model, batch, policy, TRAINING_BUDGET, UpdateTally())
            return parameter_names.to_arrays(grads)

    def adapter(self) -> Mapping[str, object]:
        """See Engine.adapter."""
        return parameter_names.to_arrays(self._model.trained) if self.info.method == "lora" else {}

    def set_adapter(self, tensors: Mapping[str, object], alpha: float) -> None:
        """See Engine.set_adapter."""
        if self.info.method != "lora":
            raise BackendUnavailable("This model was loaded without an adapter.", "choose the method lora")
        try:
            with compute_on_device(self._device, LESS):
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
        save_checkpoint(folder, self._model, self._trainer(), self._identity(), optimizer)

    def restore(self, folder: Path) -> None:
        """See Engine.restore."""
        optimizer = self._trainer()
        with compute_on_device(self._device, LESS):
            restore_checkpoint(folder, self._model, optimizer, self._identity())

    def export(self, folder: Path) -> None:
        """See Engine.export."""
        with compute_on_device(self._device, LESS):
            export_model(self._model, self._folder, folder)

    def close(self) -> None:
        """See Engine.close."""
        self._model.network = None
        self._model.trained = {}
        self._optimizer = None
