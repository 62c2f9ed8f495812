"""The loaded llama.cpp model behind the contract of sapo_backends.base."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from sapo_backends.base import (
    BackendError,
    BackendUnavailable,
    CancelToken,
    CheckpointCorrupt,
    Completion,
    Engine,
    EngineInfo,
    RowSeed,
    Sampling,
    TokenIds,
    TokenSequence,
)
from sapo_backends.checkpoints.engine_state import read_state, write_state
from sapo_backends.checkpoints.tokenizer import HfTokenizer
from sapo_backends.common.generation import rows_at_once
from sapo_backends.llamacpp_backend import generation
from sapo_backends.llamacpp_backend.live_adapter import LiveAdapter
from sapo_backends.llamacpp_backend.native import LARGEST_SEQUENCES, Context, Model

WIDTH = 64
"""Rows decoded at once."""
BATCH = 512
"""Tokens of a prompt computed at once."""
CELL_STEP = 256
"""The cache is sized in steps, so that slightly longer work does not allocate it again."""


class LlamaCppEngine(Engine):
    """The context is made when the first work shows how large it must be, and again when work outgrows it."""

    def __init__(
        self, model: Model, adapter: LiveAdapter | None, tokenizer: HfTokenizer, info: EngineInfo, threads: int, kv: int
    ) -> None:
        self.info, self.tokenizer = info, tokenizer
        self._model, self._live, self._threads, self._kv = model, adapter, threads, kv
        self._context: Context | None = None

    def _room(self, cells: int, sequences: int) -> Context:
        """A context of at least that size; llama.cpp uses the adapter in it."""
        held = self._context
        if held is not None and held.cells >= cells and held.sequences >= sequences:
            return held
        if held is not None:
            cells, sequences = max(cells, held.cells), max(sequences, held.sequences)
            held.close()
            self._context = None
        cells = -(-cells // CELL_STEP) * CELL_STEP
        self._context = Context(self._model, cells, sequences, min(BATCH, cells), self._threads, self._kv)
        if self._live is not None:
            self._live.attach(self._context)
        return self._context

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
        longest = max(map(len, prompts), default=0)
        self.check_lengths(prompts, sampling)
        if not prompts or not group_size:
            return [[] for _ in prompts]
        room = rows_at_once(self._model.cache_bytes(longest + sampling.max_new_tokens, self._kv))
        rows = min(len(prompts) * group_size, WIDTH, LARGEST_SEQUENCES, room)
        shared = -(-rows // group_size) + 1  # prompts that one wave may touch
        context = self._room(shared * longest + rows * sampling.max_new_tokens, rows)
        return generation.generate(
            context, rows, prompts, group_size, sampling, seed, self.tokenizer.eos_ids, cancel, on_tokens
        )

    def logprobs(self, sequences: Sequence[TokenSequence], temperature: float = 1.0) -> list[list[float]]:
        """See Engine.logprobs."""
        longest = max((len(s.prompt) + len(s.completion) for s in sequences), default=1)
        if longest > self.info.context_length:
            raise BackendError(
                f"A sequence of {longest} tokens exceeds the model's context of {self.info.context_length}."
            )
        context = self._room(longest, 2)
        return generation.logprobs(context, sequences, temperature, self._model.vocabulary)

    def adapter(self) -> Mapping[str, object]:
        """See Engine.adapter."""
        return {} if self._live is None else {name: t.copy() for name, t in self._live.tensors.items()}

    def set_adapter(self, tensors: Mapping[str, object], alpha: float) -> None:
        """See Engine.set_adapter."""
        if self._live is None:
            raise BackendUnavailable("This model was loaded without an adapter.", "choose the method lora")
        self._live.swap(self._room(CELL_STEP, 1), tensors, alpha)

    def _identity(self) -> dict[str, object]:
        return {"engine": "llamacpp", "model": self.info.model, "method": self.info.method}

    def save(self, folder: Path, optimizer: bool = True) -> None:
        """adapter.safetensors when there is one, state.json. There is no optimizer here."""
        del optimizer
        alpha = 0.0
        if self._live is not None:
            save_file(
                {n: np.ascontiguousarray(t) for n, t in self._live.tensors.items()}, folder / "adapter.safetensors"
            )
            alpha = self._live.alpha
        write_state(folder, self._identity(), alpha=alpha)

    def restore(self, folder: Path) -> None:
        """See Engine.restore."""
        try:
            state = read_state(folder, self._identity())
            if self._live is not None:
                self.set_adapter(load_file(folder / "adapter.safetensors"), float(state["alpha"]))
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointCorrupt(f"The checkpoint in {folder} does not restore: {error}") from error

    def close(self) -> None:
        """Context first, then adapter, then weights: each points into the next."""
        if self._context is not None:
            self._context.close()
            self._context = None
        if self._live is not None:
            self._live.close()
        self._model.close()
