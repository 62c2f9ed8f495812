"""The contract of an engine: everything another package may rely on.

A backend turns prompts into completions and batches into updates. It deals in token ids, log-probabilities and
advantages only; it knows nothing of tasks, rewards, swarms or screens. This file imports no numerical library.

Error tree::

    BackendError
    ├── BackendUnavailable   the package or device is missing; carries the command that fixes it
    ├── OutOfMemory          needed / available bytes and a smaller suggestion
    ├── ModelNotFound        no such starter, folder or hub id
    ├── CheckpointCorrupt    a saved folder that does not restore
    └── Cancelled            the caller's CancelToken was set
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Protocol

TokenIds = Sequence[int]
Finish = Literal["stop", "length"]
Progress = Callable[[float, str], None]
"""Called with (fraction done in [0, 1], one short phrase such as "reading weights")."""


class BackendError(Exception):
    """Base of everything an engine raises on purpose. The message tells the person what to do."""


class BackendUnavailable(BackendError):
    """The engine cannot run here."""

    def __init__(self, reason: str, fix_command: str = "") -> None:
        super().__init__(f"{reason} Fix: {fix_command}" if fix_command else reason)
        self.reason = reason
        self.fix_command = fix_command


class OutOfMemory(BackendError):
    """The work does not fit; sizes in bytes."""

    def __init__(self, needed: int, available: int, suggestion: str) -> None:
        super().__init__(
            f"Needs about {needed / 2**30:.1f} GiB of memory, {available / 2**30:.1f} GiB is free. {suggestion}"
        )
        self.needed = needed
        self.available = available
        self.suggestion = suggestion


class ModelNotFound(BackendError):
    """No model under that name, folder or hub id."""


class CheckpointCorrupt(BackendError):
    """A saved folder is incomplete or does not match its digest."""


class Cancelled(BackendError):
    """The work was stopped on request; the engine is as it was before the call.

    partial: what generate had sampled until then, partial[i][j] of prompts[i]; a completion that is neither ended by an
    end-of-sequence token nor as long as was asked for can be continued (see RowSeed). Empty from other calls.
    """

    def __init__(self, message: str, partial: list[list[Completion]] | None = None) -> None:
        super().__init__(message)
        self.partial = partial or []


class CancelToken:
    """A flag that one thread sets and an engine polls between decode steps and micro-batches."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        self._event.set()

    def reset(self) -> None:
        self._event.clear()

    @property
    def cancelled(self) -> bool:
        return self._event.is_set()

    def raise_if_cancelled(self) -> None:
        if self._event.is_set():
            raise Cancelled("Stopped on request.")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn. temperature 0 is greedy; top_p 1 is the full distribution."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 96


@dataclass(frozen=True, slots=True)
class RowSeed:
    """The random numbers of one completion: a stream of its own, whatever else is in the batch.

    used: tokens that were sampled from the stream before and are now the end of the prompt; what comes next continues it.
    """

    seed: int
    used: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """One drawn completion.

    tokens: ids in order, *including* the end-of-sequence token when finish is "stop".
    logprobs: natural log-probability of each token under the policy at the sampling temperature
        (at temperature 1 for greedy decoding); same length as tokens.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """A prompt and a completion to be scored under the current policy."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TrainSample:
    """One sequence of a training batch.

    old_logprobs: log-probabilities under this engine's own policy before the update, or None for "ratio 1"
        (exact for the first step on a batch).
    behaviour_logprobs: log-probabilities under the generator that drew the text, when it is another engine than
        the trainer; used for truncated importance sampling. None: same policy.
    external: drawn by another node (statistics are kept apart).
    """

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    advantage: float
    external: bool = False
    old_logprobs: tuple[float, ...] | None = None
    behaviour_logprobs: tuple[float, ...] | None = None


RatioLevel = Literal["token", "sequence"]
LossAggregation = Literal["token_mean", "sequence_mean", "constant"]


@dataclass(frozen=True, slots=True)
class PolicyUpdate:
    """A policy-gradient update as data, so that every engine and the float64 reference compute the same one.

    ratio_level: importance ratio per token (GRPO) or its length-normalised geometric mean (GSPO, arXiv 2507.18071).
    clip_low / clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high] (DAPO's asymmetric clip).
    aggregation: "token_mean" sums over tokens / all completion tokens of the minibatch; "sequence_mean" means over
        each completion, then over sequences; "constant" sums over tokens / (sequences * constant_length) (Dr. GRPO).
    epochs, minibatches: passes over the batch and optimizer steps a pass.
    temperature: the policy is softmax(logits / temperature), the temperature the rollouts were drawn at.
    tis_cap: upper bound of the truncated importance weight for behaviour_logprobs.
    """

    name: str
    learning_rate: float
    clip_low: float = 0.2
    clip_high: float = 0.28
    ratio_level: RatioLevel = "token"
    aggregation: LossAggregation = "token_mean"
    constant_length: int = 96
    temperature: float = 1.0
    epochs: int = 1
    minibatches: int = 1
    max_grad_norm: float = 1.0
    weight_decay: float = 0.0
    adam_betas: tuple[float, float] = (0.9, 0.999)
    adam_eps: float = 1e-8
    tis_cap: float = 2.0


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What an update did. Means are over completion tokens unless said otherwise; NaN when there were none.

    engine_gap: mean |log-probability under the trainer - under the generator| where two engines share the work.
    """

    loss: float
    grad_norm: float
    steps: int
    clip_fraction: float
    entropy: float
    ratio_max: float
    logprob_local: float
    logprob_external: float
    tokens_local: int
    tokens_external: int
    sequences_trained: int
    sequences_skipped: int
    seconds: float
    train_inference_mismatch: float = float("nan")


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What is loaded, for people and for the memory plan."""

    backend: str
    model: str
    device: str
    precision: str
    parameters: int
    trainable: int
    vocabulary: int
    context_length: int
    method: Literal["full", "lora", "none"]
    extra: Mapping[str, str] = field(default_factory=dict)


class Tokenizer(Protocol):
    """Text to ids and back; the same object for every engine (see sapo_backends.checkpoints.tokenizer)."""

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    @property
    def pad_id(self) -> int: ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of the chat template with the generation prompt; message text can never become a control token."""

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text, with special-token splitting off: `<|im_end|>` in it stays text."""

    def decode(self, ids: TokenIds) -> str:
        """Text of the ids without control tokens."""


class Engine(ABC):
    """A loaded model. Calls come from one worker thread; cancel and progress may be read from others."""

    info: EngineInfo
    tokenizer: Tokenizer
    optimizer_files: tuple[str, ...] = ()
    """Files of save() that hold nothing but the optimizer's state. A folder without all of them restores the weights,
    with an optimizer that starts anew."""
    separate_generator: bool = False
    """Another engine's policy samples than the one that is trained: own samples need their behaviour_logprobs."""

    def check_lengths(self, prompts: Sequence[TokenIds], sampling: Sampling) -> None:
        """Raise BackendError unless every prompt has tokens and fits the model's context with its completion."""
        if not all(len(prompt) for prompt in prompts):
            raise BackendError("A prompt without tokens cannot be continued.")
        longest = max(map(len, prompts), default=0)
        if longest + sampling.max_new_tokens > self.info.context_length:
            raise BackendError(
                f"A prompt of {longest} tokens and {sampling.max_new_tokens} new ones exceed the model's context of "
                f"{self.info.context_length}. Lower max_new_tokens or choose an easier preset."
            )

    @abstractmethod
    def generate(
        self,
        prompts: Sequence[TokenIds],
        group_size: int,
        sampling: Sampling,
        seed: int | Sequence[RowSeed],
        cancel: CancelToken | None = None,
        on_tokens: Callable[[int, int], None] | None = None,
    ) -> list[list[Completion]]:
        """Draw group_size completions of each prompt; result[i][j] belongs to prompts[i].

        The same seed, weights and arguments give the same completions on one CPU. seed: one number for the batch, or one
        RowSeed a completion (of prompts[0] first): what a completion gets then depends on no other. on_tokens gets
        (sequences finished, tokens generated so far). Raises Cancelled between decode steps, OutOfMemory.
        """

    @abstractmethod
    def logprobs(self, sequences: Sequence[TokenSequence], temperature: float = 1.0) -> list[list[float]]:
        """Natural log-probability of every completion token under the current policy at that temperature."""

    def update(
        self,
        batch: Sequence[TrainSample],
        policy: PolicyUpdate,
        seed: int,
        cancel: CancelToken | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> UpdateStats:
        """One policy-gradient update. Samples with advantage 0 are skipped before the forward pass but still count
        in the loss's denominator. Raises Cancelled before the first optimizer step only, OutOfMemory."""
        raise BackendUnavailable(f"The {self.info.backend} engine generates but does not train.")

    def adapter(self) -> Mapping[str, object]:
        """The LoRA tensors by their PEFT names, as NumPy float32 arrays. Empty when there is no adapter."""
        return {}

    def set_adapter(self, tensors: Mapping[str, object], alpha: float) -> None:
        """Replace the adapter (PEFT names, NumPy arrays)."""
        raise BackendUnavailable(f"The {self.info.backend} engine takes no adapter.")

    @abstractmethod
    def save(self, folder: Path, optimizer: bool = True) -> None:
        """Write weights or adapter, optimizer and RNG state into an existing empty folder: safetensors, JSON.

        optimizer False: without the files named in optimizer_files.
        """

    @abstractmethod
    def restore(self, folder: Path) -> None:
        """Undo everything since save(folder); bit-exact on CPU. Raises CheckpointCorrupt.

        A folder without all of optimizer_files gives the weights back and starts the optimizer anew.
        """

    def export(self, folder: Path) -> None:
        """Write the trained model as a Hugging Face folder (merged weights, tokenizer, config)."""
        raise BackendUnavailable(f"The {self.info.backend} engine cannot export.")

    def memory_bytes(self) -> int:
        """Memory the model holds now on its device, in bytes; 0 if unknown."""
        return 0

    def close(self) -> None:
        """Give back all memory. The engine is unusable afterwards."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Which model to load and how.

    model: "starter", "starter-1m", a local Hugging Face folder, or a hub id such as "Qwen/Qwen2.5-0.5B-Instruct".
    method: "auto" fine-tunes everything below 50M parameters and uses LoRA above.
    precision: "auto", "float32" or "bfloat16" (the compute type; trained weights stay float32).
    device: "auto", "cpu", "cuda", "cuda:1", "mps".
    threads: CPU threads; 0 lets the engine choose.
    """

    model: str = "starter"
    method: Literal["auto", "full", "lora", "none"] = "auto"
    precision: str = "auto"
    device: str = "auto"
    threads: int = 0
    lora_rank: int = 16
    lora_alpha: float = 32.0
    seed: int = 0


class Backend(ABC):
    """Builds engines. Listed without importing its numerical library; see sapo_backends.registry."""

    NAME: ClassVar[str]
    CAN_TRAIN: ClassVar[bool]
    CAN_GENERATE: ClassVar[bool]
    DEVICES: ClassVar[tuple[str, ...]]

    @classmethod
    @abstractmethod
    def check(cls) -> None:
        """Raise BackendUnavailable(reason, fix_command) when the engine cannot run here; quick."""

    @classmethod
    def devices_here(cls) -> tuple[str, ...]:
        """Those of DEVICES that this machine has. After check(); may import the numerical library."""
        return cls.DEVICES

    @abstractmethod
    def load(self, request: LoadRequest, progress: Progress | None = None) -> Engine:
        """Load a model. Raises BackendUnavailable, ModelNotFound, OutOfMemory."""
