"""The loaded llama.cpp model behind the contract of sapo_backends.base: generation, scoring, and the adapter of every round."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from sapo_backends.base import CancelToken, Completion, Engine, EngineInfo, RowSeed, Sampling, TokenIds, TokenSequence
from sapo_backends.checkpoints.gguf_write import write_adapter, zero_adapter
from sapo_backends.checkpoints.spec import DecoderSpec
from sapo_backends.checkpoints.tokenizer import HfTokenizer
from sapo_backends.checkpoints.write_folder import read_state, write_state
from sapo_backends.common import round_memory
from sapo_backends.common.sampling import GeneratedRows, chosen_logprobs, draw_uniforms, rows_at_once, sample_tokens
from sapo_backends.errors import BackendError, BackendUnavailable, Cancelled, CheckpointCorrupt
from sapo_backends.llamacpp_backend.native import LARGEST_SEQUENCES, GgufAdapter, GgufModel, LlamaContext

# Generating and scoring completions in one llama.cpp context: each prompt is computed once for all its
# completions.

Float32 = NDArray[np.float32]
LOGIT_ELEMENTS = 1 << 24
"""Logits held at once: 64 MiB in float32."""


def prefill_prompt(context: LlamaContext, sequence: int, prompt: TokenIds) -> Float32:
    """Compute a prompt in an empty sequence; returns the logits (V,) of the token after it."""
    logits: Float32 = np.empty((0, 0), np.float32)
    for begin in range(0, len(prompt), context.batch):
        part = prompt[begin : begin + context.batch]
        wanted = [begin + i == len(prompt) - 1 for i in range(len(part))]
        logits = context.decode(part, range(begin, begin + len(part)), [sequence] * len(part), wanted)
    last: Float32 = logits[0].copy()
    return last


def generate_completions(
    context: LlamaContext,
    width: int,
    prompts: Sequence[TokenIds],
    group_size: int,
    sampling: Sampling,
    seed: int | Sequence[RowSeed],
    eos_ids: Sequence[int],
    cancel: CancelToken | None = None,
    on_tokens: Callable[[int, int], None] | None = None,
) -> list[list[Completion]]:
    """group_size completions of each prompt, `width` rows at a time; see Engine.generate."""
    owners = [tuple(prompt) for prompt in prompts for _ in range(group_size)]
    generated = GeneratedRows(len(owners), eos_ids)
    uniform = draw_uniforms(len(owners), sampling.max_new_tokens, seed)
    for begin in range(0, len(owners), width):
        wave = list(range(begin, min(begin + width, len(owners))))
        context.clear()
        try:
            _wave(context, owners, generated, wave, sampling, uniform, cancel, on_tokens)
        except Cancelled as error:
            raise Cancelled(str(error), generated.groups(len(prompts), group_size)) from None
    return generated.groups(len(prompts), group_size)


def _start(
    context: LlamaContext, owners: Sequence[tuple[int, ...]], wave: Sequence[int], cancel: CancelToken | None
) -> Float32:
    """Prefill each prompt of the wave once; returns the first logits (rows, V). Row wave[i] is sequence i."""
    first: dict[tuple[int, ...], tuple[int, Float32]] = {}
    logits = []
    for sequence, row in enumerate(wave):
        if cancel is not None:
            cancel.raise_if_cancelled()
        prompt = owners[row]
        if prompt in first:
            context.share(first[prompt][0], sequence)
        else:
            first[prompt] = sequence, prefill_prompt(context, sequence, prompt)
        logits.append(first[prompt][1])
    return np.stack(logits)


def _wave(
    context: LlamaContext,
    owners: Sequence[tuple[int, ...]],
    generated: GeneratedRows,
    wave: Sequence[int],
    sampling: Sampling,
    uniform: NDArray[np.float64],
    cancel: CancelToken | None,
    on_tokens: Callable[[int, int], None] | None,
) -> None:
    """Generate the rows of one wave until they end; finished ones are dropped."""
    alive = list(enumerate(wave)) if sampling.max_new_tokens else []
    logits = _start(context, owners, wave, cancel) if alive else np.empty((0, 0), np.float32)
    for step in range(sampling.max_new_tokens):
        if cancel is not None:
            cancel.raise_if_cancelled()
        rows = [row for _, row in alive]
        tokens, logprobs = sample_tokens(logits, sampling, uniform[rows, step])
        generated.append(rows, tokens.tolist(), logprobs.tolist())
        if on_tokens is not None:
            on_tokens(generated.finished, generated.count)
        for sequence, row in alive:
            if generated.done[row]:
                context.drop(sequence)
        alive = [(sequence, row) for sequence, row in alive if not generated.done[row]]
        if not alive or step + 1 == sampling.max_new_tokens:
            return
        logits = context.decode(
            [generated.tokens[row][-1] for _, row in alive],
            [len(owners[row]) + step for _, row in alive],
            [sequence for sequence, _ in alive],
            [True] * len(alive),
        )


def completion_logprobs(
    context: LlamaContext, sequences: Sequence[TokenSequence], temperature: float, vocabulary: int
) -> list[list[float]]:
    """Log-probability of every completion token; sequences with the same prompt share its computation."""
    result: list[list[float]] = [[] for _ in sequences]
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, sequence in enumerate(sequences):
        if sequence.completion:
            groups.setdefault(tuple(sequence.prompt), []).append(index)
    budget = max(1, min(context.batch, LOGIT_ELEMENTS // vocabulary))
    for prompt, members in groups.items():
        context.clear()
        after_prompt = prefill_prompt(context, 0, prompt)[None]
        for index in members:
            completion = sequences[index].completion
            context.share(0, 1)
            first = chosen_logprobs(after_prompt, np.array(completion[:1]), temperature)
            result[index] = first.tolist()
            for part, targets, position in _chunks(completion, len(prompt), budget):
                logits = context.decode(
                    part, range(position, position + len(part)), [1] * len(part), [True] * len(part)
                )
                result[index] += chosen_logprobs(logits, np.array(targets), temperature).tolist()
            context.drop(1)
    return result


def _chunks(completion: TokenIds, prompt: int, budget: int) -> Iterator[tuple[TokenIds, TokenIds, int]]:
    """(input tokens, the tokens they predict, position of the first) in parts of at most `budget`."""
    for begin in range(0, len(completion) - 1, budget):
        end = min(begin + budget, len(completion) - 1)
        yield completion[begin:end], completion[begin + 1 : end + 1], prompt + begin


# The adapter that a trainer changes every round, swapped in without loading the model again.
#
# Order matters (llama.cpp 0.3.36): an adapter with the same targets must exist before the context. Then, for each swap:
# load the new one, set it, free the old one (a freed address that is reused would look unchanged), and clear the
# cache, which does not notice that the adapter changed.

Tensors = dict[str, NDArray[np.float32]]
PROBE = 3
"""Number of tokens in the text whose logits must change with the adapter."""
NOTICEABLE = 1e-3
"""A change this large in an element of B must show in some logit; smaller ones may be lost in rounding."""


class LiveAdapter:
    """The adapter's tensors by PEFT name, and the llama.cpp adapter made from them."""

    def __init__(self, spec: DecoderSpec, model: GgufModel, rank: int, alpha: float) -> None:
        self._spec, self._model = spec, model
        self.tensors: Tensors = zero_adapter(spec, rank)
        self.alpha = alpha
        self._loaded = self._load(self.tensors, alpha)
        self._answer: NDArray[np.float32] = np.empty(0, np.float32)
        self._answered: LlamaContext | None = None  # the context that passed the probe after the last swap
        self._left_out = False

    def _load(self, tensors: Mapping[str, object], alpha: float) -> GgufAdapter:
        with tempfile.TemporaryDirectory(prefix="sapo-adapter-") as folder:
            file = Path(folder) / "adapter.gguf"
            write_adapter(self._spec, tensors, alpha, file)
            return GgufAdapter(self._model, file)

    def attach(self, context: LlamaContext) -> None:
        """Use the adapter in a new context, or leave it out of it."""
        context.use(None if self._left_out else self._loaded)
        context.clear()

    def leave_out(self, context: LlamaContext | None, left_out: bool) -> None:
        """Whether this context, and every new one, computes without the adapter."""
        self._left_out = left_out
        if context is not None:
            self.attach(context)

    def swap(self, context: LlamaContext, tensors: Mapping[str, object], alpha: float) -> None:
        """Replace the adapter. Raises BackendError if it does not fit or has no effect."""
        fresh: Tensors = {name: np.array(value, dtype=np.float32) for name, value in tensors.items()}
        self._check(fresh)
        before = self._answer if self._answered is context else self._probe(context)
        loaded = self._load(fresh, alpha)
        context.use(loaded)
        self._loaded.close()
        self._loaded = loaded
        noticeable = alpha != self.alpha or self._change(fresh) > NOTICEABLE
        self.tensors, self.alpha = fresh, alpha
        self._answer, self._answered = self._probe(context), context
        if np.array_equal(before, self._answer) and noticeable:
            raise BackendError("llama.cpp took the new adapter but computes as before. Load the model again.")

    def _check(self, fresh: Tensors) -> None:
        """Requires all targets of the model and no others; the rank may differ."""
        if fresh.keys() != self.tensors.keys():
            odd = sorted(fresh.keys() ^ self.tensors.keys())[0]
            raise BackendError(f"The adapter does not fit this model: {odd} is missing or unknown.")
        for name, tensor in fresh.items():
            axis = 1 if ".lora_A." in name else 0
            if tensor.ndim != 2 or tensor.shape[axis] != self.tensors[name].shape[axis]:
                raise BackendError(f"The adapter does not fit this model: {name} has shape {tensor.shape}.")

    def _change(self, fresh: Tensors) -> float:
        """Largest change of an element of any B; 0 while A is 0, because then the product stays 0."""
        changes = [0.0]
        for name, tensor in fresh.items():
            if ".lora_B." in name and fresh[name.replace(".lora_B.", ".lora_A.")].any():
                old = self.tensors[name]
                same = old.shape == tensor.shape
                changes.append(float(np.abs(tensor - old if same else tensor).max()))
        return max(changes)

    def _probe(self, context: LlamaContext) -> NDArray[np.float32]:
        """Logits (V,) after a fixed text, computed with an empty cache."""
        context.clear()
        tokens = [i % self._model.vocabulary for i in range(3, 3 + PROBE)]
        logits = prefill_prompt(context, 0, tokens)
        context.clear()
        return logits

    def close(self) -> None:
        """Free the adapter."""
        self._loaded.close()


# The loaded llama.cpp model behind the contract of sapo_backends.base.

WIDTH = 64
"""Rows decoded at once."""
CELL_STEP = 256
"""The cache grows in steps of this size, so that slightly longer work does not reallocate it."""


class LlamaCppEngine(Engine):
    """The context is made when the first call shows how large it must be, and again when a call needs more."""

    def __init__(
        self,
        model: GgufModel,
        adapter: LiveAdapter | None,
        tokenizer: HfTokenizer,
        info: EngineInfo,
        threads: int,
        kv: int,
    ) -> None:
        self.info, self.tokenizer = info, tokenizer
        self._model, self._live, self._threads, self._kv = model, adapter, threads, kv
        self._context: LlamaContext | None = None

    @property
    def keeps_untrained(self) -> bool:
        """See Engine.keeps_untrained."""
        return self._live is not None

    @contextlib.contextmanager
    def untrained(self) -> Iterator[None]:
        """See Engine.untrained."""
        if self._live is None:
            raise BackendUnavailable("This model was loaded without an adapter.", "choose the method lora")
        self._live.leave_out(self._context, True)
        try:
            yield
        finally:
            self._live.leave_out(self._context, False)

    def _room(self, cells: int, sequences: int) -> LlamaContext:
        """A context of at least that size; llama.cpp applies the adapter in it."""
        held = self._context
        if held is not None and held.cells >= cells and held.sequences >= sequences:
            return held
        if held is not None:
            cells, sequences = max(cells, held.cells), max(sequences, held.sequences)
            held.close()
            self._context = None
        cells = -(-cells // CELL_STEP) * CELL_STEP
        self._context = LlamaContext(
            self._model, cells, sequences, min(round_memory.LLAMA_CPP_BATCH, cells), self._threads, self._kv
        )
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
        shared = -(-rows // group_size) + 1  # prompts that one wave may include
        context = self._room(shared * longest + rows * sampling.max_new_tokens, rows)
        return generate_completions(
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
        return completion_logprobs(context, sequences, temperature, self._model.vocabulary)

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
        """Writes adapter.safetensors if there is an adapter, and state.json. This engine has no optimizer."""
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
        """Closes the context first, then the adapter, then the weights: each points into the next."""
        if self._context is not None:
            self._context.close()
            self._context = None
        if self._live is not None:
            self._live.close()
        self._model.close()
