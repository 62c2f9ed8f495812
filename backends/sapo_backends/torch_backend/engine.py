"""The loaded torch model behind the contract of sapo_backends.base, and what it writes to disk."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

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
from sapo_backends.checkpoints.spec import fused_projections
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
from sapo_backends.common import hardware, round_memory
from sapo_backends.common.hardware import available_memory
from sapo_backends.common.update import UpdateTally, share_prefix
from sapo_backends.errors import BackendError, BackendUnavailable, CheckpointCorrupt, OutOfMemory
from sapo_backends.torch_backend import generation
from sapo_backends.torch_backend.causal_lm import CausalModel, DecoderModel, trained_tensors
from sapo_backends.torch_backend.decoder import TensorLayout
from sapo_backends.torch_backend.packing import pack_micro_batch
from sapo_backends.torch_backend.runtime import ShardWorkers, free_memory
from sapo_backends.torch_backend.update import FlatAdamW, PolicyTrainer

INPUT_BYTES = 2**30
"""Most bytes of `linear_inputs`."""
LARGEST_HALF = 65504.0
"""The largest float16."""

# What an engine writes to disk: the trained tensor, Adam's moments, and a JSON file that says what they belong to.


def _by_name(layout: TensorLayout, flat: Tensor) -> dict[str, Tensor]:
    return {name: view.contiguous().cpu() for name, view in layout.named_parts(flat)}


def save_checkpoint(
    folder: Path,
    layout: TensorLayout,
    flat: Tensor,
    optimizer: FlatAdamW,
    identity: dict[str, Any],
    with_optimizer: bool = True,
) -> None:
    """Write trained.safetensors and optimizer.safetensors by Hugging Face or PEFT names, and state.json."""
    save_file(_by_name(layout, flat), folder / TRAINED)
    if with_optimizer:
        moments = {"first": _by_name(layout, optimizer.first), "second": _by_name(layout, optimizer.second)}
        save_file(with_moments(moments), folder / OPTIMIZER_FILES[0])
    write_state(folder, identity, steps=optimizer.steps)


def restore_checkpoint(
    folder: Path, layout: TensorLayout, flat: Tensor, optimizer: FlatAdamW, identity: dict[str, Any]
) -> None:
    """Read what save_checkpoint, or another engine with the same names, wrote into the given tensors; they change only
    if everything fits. Raises CheckpointCorrupt.

    Without the optimizer's file the moments are zero and the step count starts at 0.
    """
    try:
        state = read_state(folder, identity)
        fresh = torch.empty(layout.size)
        layout.fill(fresh, load_file(folder / TRAINED))
        moments = _moments(folder, layout)
        steps = int(state["steps"]) if moments is not None else 0
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointCorrupt(f"The checkpoint in {folder} does not restore: {error}") from error
    with torch.no_grad():
        flat.copy_(fresh)
        for tensor, moment in zip((optimizer.first, optimizer.second), moments or (None, None), strict=True):
            tensor.zero_() if moment is None else tensor.copy_(moment)
    optimizer.steps = steps


def _moments(folder: Path, layout: TensorLayout) -> list[Tensor] | None:
    """The two moments, flat like the parameters. Raises RuntimeError, OSError, SafetensorError."""
    read = read_moments(folder, load_file)
    if read is None:
        return None
    moments, named = read
    if not named:
        flat = [moments[moment][""] for moment in MOMENTS]
        if any(tensor.shape != (layout.size,) for tensor in flat):
            raise RuntimeError("the optimizer's state does not fit the model")
        return flat
    fresh = [torch.empty(layout.size) for _ in MOMENTS]
    for tensor, moment in zip(fresh, MOMENTS, strict=True):
        layout.fill(tensor, moments[moment])
    return fresh


# The trained model as a Hugging Face folder.


def export_model(model: CausalModel, source: Path, folder: Path) -> None:
    """Write model.safetensors (an adapter merged into the weights), config.json and the tokenizer. Raises OutOfMemory."""
    round_memory.require_memory(
        model.layout.size * model.base.element_size(),
        "Close other programs, or export the adapter alone (--format adapter).",
    )
    save_file(
        {n: t.contiguous().cpu() for n, t in model.merged().items()}, folder / "model.safetensors", {"format": "pt"}
    )
    write_settings(source, folder, str(model.base.dtype).removeprefix("torch."), model.config)


# The loaded torch model behind the contract of sapo_backends.base.

SCORING_BUDGET = 8192
"""Tokens scored at once; without a backward pass little is kept."""


@contextlib.contextmanager
def _memory(device: torch.device, suggestion: str) -> Iterator[None]:
    """Turn the allocator's error into OutOfMemory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(0, free_memory(device), suggestion) from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error) and "not enough memory" not in str(error):
            raise
        raise OutOfMemory(0, available_memory(), suggestion) from error


class TorchEngine(Engine):
    """model.flat is the single trained tensor; without it the engine only generates."""

    def __init__(
        self,
        model: CausalModel,
        tokenizer: HfTokenizer,
        info: EngineInfo,
        folder: Path,
        workers: ShardWorkers,
        budget: int,
    ) -> None:
        self.info = info
        self.tokenizer = tokenizer
        self._model, self._folder, self._workers = model, folder, workers
        self._base = content_id(folder)  # now: the folder may move, or hold another model by the next checkpoint
        self._trainer: PolicyTrainer | None = None
        self._returned = time.monotonic()
        self._as_loaded = False
        self.optimizer_files, self.separate_generator = OPTIMIZER_FILES, model.rounds_rollouts
        if model.flat is not None:
            self._trainer = PolicyTrainer(model, model.flat, FlatAdamW(model.flat, workers), workers, budget)

    @property
    def _layout(self) -> TensorLayout:
        return self._model.adapter_layout or self._model.layout

    @property
    def keeps_untrained(self) -> bool:
        """See Engine.keeps_untrained."""
        return self._model.adapter_layout is not None

    @contextlib.contextmanager
    def untrained(self) -> Iterator[None]:
        """See Engine.untrained."""
        if not self.keeps_untrained:
            raise BackendUnavailable("These weights were trained themselves.", "choose the method lora")
        self._as_loaded = True
        try:
            yield
        finally:
            self._as_loaded = False

    def _trained_tensors(self) -> dict[str, Tensor] | None:
        """See causal_lm.trained_tensors. Where the model answers as it was loaded, an adapter of zeros: without one
        bfloat16 rounds elsewhere, and answers would differ from those before the first update, and by more than
        learning from those after it."""
        model = self._model
        if self._as_loaded and model.flat is not None and model.adapter_layout is not None:
            return model.adapter_layout.views(torch.zeros_like(model.flat, dtype=model.compute))
        return trained_tensors(model)

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
        request = generation.GenerationRequest(prompts, group_size, sampling, self.tokenizer.eos_ids)
        monitor = generation.GenerationMonitor(self._workers.count, cancel, on_tokens)
        try:
            with _memory(self._model.device, "Lower group_size or max_new_tokens."), torch.inference_mode():
                weights = self._model.decode_weights(self._trained_tensors(), sampling.for_training)
                return generation.generate_completions(self._model, weights, request, seed, self._workers, monitor)
        finally:
            weights = None
            self._give_back()

    def logprobs(self, sequences: Sequence[TokenSequence], temperature: float = 1.0) -> list[list[float]]:
        """See Engine.logprobs."""
        result: list[list[float]] = [[] for _ in sequences]
        known = [i for i, sequence in enumerate(sequences) if sequence.completion]
        scored = share_prefix(
            [TrainSample(tuple(sequences[i].prompt), tuple(sequences[i].completion), 1.0) for i in known]
        )
        pairs = [(sample.prompt, sample.completion) for sample in scored]
        masks = [sample.loss_mask for sample in scored]

        weights = self._model.weights(self._trained_tensors())

        @torch.inference_mode()
        def score(members: list[int]) -> None:
            packed = pack_micro_batch(pairs, members, self._model.device, masks)
            chosen = self._model.token_logprobs(packed, weights, temperature).logprobs
            pieces = torch.split(chosen, [scored[i].learned for i in members])
            for index, piece in zip(members, pieces, strict=True):
                result[known[index]] = piece.tolist()

        self._workers.map(score, self._model.micro_batches(pairs, SCORING_BUDGET, self._workers.count))
        return result

    def linear_inputs(self, sequences: Sequence[TokenSequence]) -> Mapping[str, object]:
        """See Engine.linear_inputs. Evenly spread tokens, as many as INPUT_BYTES hold."""
        model, trained = self._model, self._trained_tensors()
        if not isinstance(model, DecoderModel) or model.adapter_layout is None or trained is None:
            raise BackendUnavailable("The inputs of this model's layers are not known here.")
        fused = [part for layer in range(model.spec.layers) for part in fused_projections(model.spec, layer)]
        pairs = [(tuple(s.prompt), tuple(s.completion)) for s in sequences]
        token_bytes = 2 * sum(width for _, width, _, _ in fused)
        spread = -(-sum(len(prompt) + len(rest) for prompt, rest in pairs) * token_bytes // INPUT_BYTES) or 1
        inputs: dict[str, list[NDArray[np.float16]]] = {name: [] for name, *_ in fused}

        def observe(name: str, x: Tensor) -> None:
            inputs[name].append(x[::spread].clamp(-LARGEST_HALF, LARGEST_HALF).half().cpu().numpy())

        weights = model.weights(trained)
        assert weights.adapter is not None
        weights = replace(weights, adapter=replace(weights.adapter, observe=observe))
        with torch.inference_mode():
            for members in model.micro_batches(pairs, SCORING_BUDGET, 1):
                model.token_logprobs(pack_micro_batch(pairs, members, model.device), weights, 1.0)
        joined = {name: np.concatenate(parts) for name, parts in inputs.items()}
        return {module: joined[name] for name, _, modules, _ in fused for module, _ in modules}

    def use_share(self, share: float) -> None:
        """See Engine.use_share. With half the threads, half the micro-batches run at a time; a single worker gets
        smaller ones."""
        self._workers.use_share(share)
        if self._trainer is not None and self._workers.count == 1:
            self._trainer.share = share

    def _trained(self) -> PolicyTrainer:
        if self._trainer is None:
            raise BackendUnavailable("This model was loaded to generate only.", "choose the method full or lora")
        return self._trainer

    def update(
        self,
        batch: Sequence[TrainSample],
        policy: PolicyUpdate,
        seed: int,
        cancel: CancelToken | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> UpdateStats:
        """See Engine.update."""
        trainer = self._trained()
        with _memory(self._model.device, "Lower group_size, the number of groups, or max_new_tokens."):
            stats = trainer.update(batch, policy, seed, self.logprobs, cancel, on_progress)
        self._give_back()
        return stats

    def _give_back(self) -> None:
        """Free memory that generation needed and an update does not: for a large model the round's peak is then the
        larger of the two, not the sum. A small model keeps freed memory for its next round, and now and then returns
        what an evaluation left."""
        now = time.monotonic()
        if self._model.layout.size >= round_memory.SHARDED_BELOW or now - self._returned >= hardware.RETURN_EVERY_S:
            self._returned = now
            hardware.release_free_memory()

    def return_memory(self) -> None:
        """See Engine.return_memory."""
        if self._model.device.type != "cpu":
            torch.get_device_module(self._model.device).empty_cache()

    def gradient(self, batch: Sequence[TrainSample], policy: PolicyUpdate) -> dict[str, NDArray[np.float32]]:
        """d loss / d parameters of one minibatch by Hugging Face (or PEFT) name; for the contract tests."""
        grad = self._trained().gradient(batch, policy, UpdateTally())
        return {name: view.cpu().numpy() for name, view in self._layout.named_parts(grad)}

    def adapter(self) -> Mapping[str, object]:
        """See Engine.adapter."""
        if self._model.adapter_layout is None or self._model.flat is None:
            return {}
        return {name: view.cpu().numpy().copy() for name, view in self._layout.named_parts(self._model.flat)}

    def set_adapter(self, tensors: Mapping[str, object], alpha: float) -> None:
        """See Engine.set_adapter."""
        if self._model.adapter_layout is None or self._model.flat is None:
            raise BackendUnavailable("This model was loaded without an adapter.", "choose the method lora")
        try:
            self._layout.fill(self._model.flat, {name: torch.as_tensor(t) for name, t in tensors.items()})
        except RuntimeError as error:
            raise BackendError(f"The adapter does not fit this model: {error}.") from error
        self._model.alpha = alpha

    def _identity(self) -> dict[str, object]:
        return {"model": self.info.model, "base": self._base, "method": self.info.method, "rank": self._model.rank}

    def save(self, folder: Path, optimizer: bool = True) -> None:
        """See Engine.save."""
        trainer = self._trained()
        save_checkpoint(
            folder, self._layout, trainer.flat, trainer.optimizer, self._identity(), with_optimizer=optimizer
        )

    def restore(self, folder: Path) -> None:
        """See Engine.restore."""
        trainer = self._trained()
        restore_checkpoint(folder, self._layout, trainer.flat, trainer.optimizer, self._identity())

    def export(self, folder: Path) -> None:
        """See Engine.export."""
        export_model(self._model, self._folder, folder)

    def close(self) -> None:
        """See Engine.close."""
        self._model.close()
        self._trainer = None
        self._workers.close()
