"""The contract of an engine: everything another package may rely on.

A backend turns prompts into completions and batches into updates. It deals in token ids, log-probabilities and
advantages only; it knows nothing of tasks, rewards, swarms or screens. This file imports no numerical library.

Errors and the CancelToken are those of sapo_backends.errors; what an update is stands in sapo_backends.update_types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from sapo_backends.errors import BackendError as BackendError
from sapo_backends.errors import BackendUnavailable as BackendUnavailable
from sapo_backends.errors import Cancelled as Cancelled
from sapo_backends.errors import CancelToken as CancelToken
from sapo_backends.errors import CheckpointCorrupt as CheckpointCorrupt
from sapo_backends.errors import DownloadFailed as DownloadFailed
from sapo_backends.errors import ModelNotFound as ModelNotFound
from sapo_backends.errors import OutOfMemory as OutOfMemory
from sapo_backends.errors import TemplateRefused as TemplateRefused
from sapo_backends.update_types import LossAggregation as LossAggregation
from sapo_backends.update_types import PolicyUpdate as PolicyUpdate
from sapo_backends.update_types import RatioLevel as RatioLevel
from sapo_backends.update_types import TrainSample as TrainSample
from sapo_backends.update_types import UpdateStats as UpdateStats

TokenIds = Sequence[int]
Finish = Literal["stop", "length"]
Thinking = Literal["auto", "on", "off"]
Progress = Callable[[float, str], None]
"""Called with (fraction done in [0, 1], one short phrase such as "reading weights")."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are sampled. temperature 0 is greedy; top_p 1 is the full distribution."""

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
    """One sampled completion.

    tokens: ids in order, *including* the end-of-sequence token when finish is "stop".
    logprobs: natural log-probability of each token under the policy at the sampling temperature
        (at temperature 1 for greedy decoding); same length as tokens.
    loss_mask: None from an engine. Where turns of an environment were joined to it: True for sampled tokens, False for
        the environment's, whose logprobs are 0.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    loss_mask: tuple[bool, ...] | None = None

    @property
    def sampled(self) -> int:
        """Tokens that the model wrote."""
        return len(self.tokens) if self.loss_mask is None else sum(self.loss_mask)


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """A prompt and a completion to be scored under the current policy."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]


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
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a completion."""

    @property
    def eot_id(self) -> int:
        """The one of eos_ids with which the chat template ends a turn of the model, the first where it writes none of them."""

    @property
    def opens_reasoning(self) -> bool:
        """A prompt ends with an open <think>: every completion begins within the model's reasoning."""

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]:
        """Ids of the chat template with the generation prompt; message text can never become a control token.

        tools: functions as JSON Schema. A template that has no place for them gets them as text in the system prompt.
        """

    def encode_reply(self, text: str) -> list[int]:
        """Ids between two turns of the model: the end of the one, a tool's result, the generation prompt of the other. They
        begin with an end-of-sequence token where the template ends a turn with one."""

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text, with special-token splitting off: `<|im_end|>` in it stays text."""

    def spells_control(self, text: str) -> bool:
        """The text holds what a control token is spelled as: other programs take that for the token."""

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
        """Sample group_size completions of each prompt; result[i][j] belongs to prompts[i].

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
        del batch, policy, seed, cancel, on_progress
        raise BackendUnavailable(f"The {self.info.backend} engine generates but does not train.")

    def adapter(self) -> Mapping[str, object]:
        """The LoRA tensors by their PEFT names, as NumPy float32 arrays. Empty when there is no adapter."""
        return {}

    def set_adapter(self, tensors: Mapping[str, object], alpha: float) -> None:
        """Replace the adapter (PEFT names, NumPy arrays)."""
        del tensors, alpha
        raise BackendUnavailable(f"The {self.info.backend} engine takes no adapter.")

    @abstractmethod
    def save(self, folder: Path, optimizer: bool = True) -> None:
        """Write weights or adapter and optimizer into an existing empty folder: safetensors, JSON. Of random numbers only what
        an engine keeps between calls: each call brings its seed.

        optimizer False: without the files named in optimizer_files.
        """

    @abstractmethod
    def restore(self, folder: Path) -> None:
        """Undo everything since save(folder); bit-exact on CPU. Raises CheckpointCorrupt.

        A folder without all of optimizer_files gives the weights back and starts the optimizer anew.
        """

    def export(self, folder: Path) -> None:
        """Write the trained model as a Hugging Face folder (merged weights, tokenizer, config)."""
        del folder
        raise BackendUnavailable(f"The {self.info.backend} engine cannot export.")

    def use_share(self, share: float) -> None:
        """From the next call on use that share of the threads, and micro-batches that much smaller, where it can. What
        comes out is the same but for rounding."""

    def return_memory(self) -> None:
        """Nothing is to do for a while: what the device's allocator keeps for the next call goes back to the system."""

    def close(self) -> None:
        """Give back all memory. The engine is unusable afterwards."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Which model to load and how.

    model: "starter", "starter-1m", a local Hugging Face folder, or a hub id such as "Qwen/Qwen2.5-0.5B-Instruct".
    method: "auto" fine-tunes everything below 50M parameters and uses LoRA above.
    precision: "auto", "float32" or "bfloat16" (what is trained stays float32); torch: "4bit" or "4bit-float32", frozen.
    device: "auto", "cpu", "cuda", "cuda:1", "mps".
    threads: CPU threads; 0 lets the engine choose.
    thinking: whether a model with a switch for it in its chat template reasons before it answers; "auto" is off.
    """

    model: str = "starter"
    method: Literal["auto", "full", "lora", "none"] = "auto"
    precision: str = "auto"
    device: str = "auto"
    threads: int = 0
    lora_rank: int = 16
    lora_alpha: float = 32.0
    seed: int = 0
    thinking: Thinking = "auto"


class Backend(ABC):
    """Builds engines. Listed without importing its numerical library; see sapo_backends.registry."""

    NAME: ClassVar[str]
    CAN_TRAIN: ClassVar[bool]
    DEVICES: ClassVar[tuple[str, ...]]
    PRECISIONS: ClassVar[tuple[str, ...]] = ()
    """What a LoadRequest may ask for besides auto; empty: load() says what it refuses."""

    @classmethod
    @abstractmethod
    def check(cls) -> None:
        """Raise BackendUnavailable(reason, fix_command) when the engine cannot run here; quick."""

    @classmethod
    def devices_here(cls) -> tuple[str, ...]:
        """Those of DEVICES that this machine has. After check(); may import the numerical library."""
        return cls.DEVICES

    @classmethod
    def plainly(cls) -> AbstractContextManager[None]:
        """While it lasts, its engines compute without what only makes them faster, where that can be left out."""
        return nullcontext()

    @abstractmethod
    def load(self, request: LoadRequest, progress: Progress | None = None) -> Engine:
        """Load a model. Raises BackendUnavailable, ModelNotFound, OutOfMemory."""
