"""The engine that ships for tests, demos and plug-in authors: NumPy only, loads in a millisecond, and really learns.

To write your own engine: subclass Backend and Engine from `sapo_backends.base`, point the entry-point group
`sapo_desktop.backends` at the Backend, and run `tests/contract/test_engine.py` over it. This file does all that a
trainer must do. `LoadRequest.model` may be "fake:slow" or "fake:0.05" (seconds per decode step) to imitate a real one.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from sapo_backends import reference
from sapo_backends.base import (
    Backend,
    CancelToken,
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
from sapo_backends.common.sampling import GeneratedRows, draw_uniforms
from sapo_backends.common.update import split_minibatches, token_mean
from sapo_backends.errors import BackendError, BackendUnavailable, Cancelled, CheckpointCorrupt

# A tokenizer without files: bytes, a few whole answers, and control tokens that text can never become.

OPEN, CLOSE = "<answer>", "</answer>"
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FRACTIONS = tuple(f"{a}/{b}" for b in range(2, 10) for a in range(1, 10))
ANSWERS = (*WEEKDAYS, "Yes", "No", *FRACTIONS, *(str(n) for n in range(-199, 200)))
PIECES = (OPEN, CLOSE, *ANSWERS)

FIRST_PIECE = 256
OPEN_ID, CLOSE_ID = FIRST_PIECE, FIRST_PIECE + 1
FIRST_ANSWER = FIRST_PIECE + 2
END_OF_PIECES = FIRST_PIECE + len(PIECES)
EOS_ID, PAD_ID, SYSTEM_ID, USER_ID, ASSISTANT_ID = range(END_OF_PIECES, END_OF_PIECES + 5)
VOCABULARY = END_OF_PIECES + 5
ROLE_IDS = {"system": SYSTEM_ID, "user": USER_ID, "assistant": ASSISTANT_ID}


class FakeTokenizer:
    """Greedy longest match over PIECES, single bytes for everything else."""

    def __init__(self) -> None:
        self._ids = {piece.encode(): FIRST_PIECE + i for i, piece in enumerate(PIECES)}
        self._longest = max(map(len, self._ids))

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a completion."""
        return (EOS_ID,)

    @property
    def eot_id(self) -> int:
        """See Tokenizer.eot_id."""
        return EOS_ID

    @property
    def opens_reasoning(self) -> bool:
        """See Tokenizer.opens_reasoning."""
        return False

    def encode_text(self, text: str) -> list[int]:
        """Ids below END_OF_PIECES only."""
        data, ids, at = text.encode("utf-8", "replace"), [], 0
        while at < len(data):
            for length in range(min(self._longest, len(data) - at), 1, -1):
                piece = self._ids.get(data[at : at + length])
                if piece is not None:
                    ids.append(piece)
                    at += length
                    break
            else:
                ids.append(data[at])
                at += 1
        return ids

    def spells_control(self, text: str) -> bool:
        """Always False: control tokens have no spelling."""
        del text
        return False

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]:
        """Each message after its role's control token, then the assistant's control token. Tools are ignored."""
        del tools
        ids: list[int] = []
        for message in messages:
            ids += [ROLE_IDS[message["role"]], *self.encode_text(message["content"])]
        return [*ids, ASSISTANT_ID]

    def encode_reply(self, text: str) -> list[int]:
        """See Tokenizer.encode_reply; a tool's result is encoded as a user message."""
        return [EOS_ID, USER_ID, *self.encode_text(text), ASSISTANT_ID]

    def decode(self, ids: TokenIds) -> str:
        """See Tokenizer.decode."""
        parts = (bytes([i]) if i < FIRST_PIECE else PIECES[i - FIRST_PIECE].encode() for i in ids if i < END_OF_PIECES)
        return b"".join(parts).decode("utf-8", "replace")


# The fake engine's model: a table of logits that really is a policy and really learns.
#
# logits(next | prompt, previous token) = table[kind of prompt, class of previous token]
#                                         + trust[class] * (next == the answer that plain rules find in the prompt)
#
# The table learns which answers a kind of question tends to have; `trust` learns to use the rule's answer. It begins
# low, so that a group holds right and wrong completions and the reward curve has somewhere to go.

KINDS = 16
START, AFTER_OPEN, AFTER_ANSWER, AFTER_CLOSE, OTHER = range(5)
CLASSES = 5
NO_HINT = -1
UNLIKELY = -9.0
FIRST_TRUST = 4.0

_SUM = re.compile(r"^[\d\s()+-]+$")
_DATE = re.compile(r"([A-Z][a-z]+ \d{1,2}, \d{4})")
_tokenizer = FakeTokenizer()


def _weekday(text: str) -> str | None:
    match = _DATE.search(text)
    if match is None or "day of the week" not in text:
        return None
    try:
        return WEEKDAYS[datetime.strptime(match.group(1), "%B %d, %Y").weekday()]
    except ValueError:
        return None


def _sum(text: str) -> str | None:
    match = re.search(r"Calculate (.+?)\.?$", text.strip())
    if match is None or not _SUM.match(match.group(1)) or "(" in match.group(1):
        return None
    terms = re.findall(r"([+-]?)\s*(-?\d+)", match.group(1))
    return str(sum(-int(value) if sign == "-" else int(value) for sign, value in terms))


def _fraction(text: str) -> str | None:
    match = re.search(r"fraction (\d{1,4})/(\d{1,4})", text)
    return (
        None if match is None or int(match.group(2)) == 0 else str(Fraction(int(match.group(1)), int(match.group(2))))
    )


@dataclass(frozen=True, slots=True)
class PromptFeatures:
    """kind: row of the table. hint: token of the rules' answer, or NO_HINT."""

    kind: int
    hint: int


@lru_cache(maxsize=4096)
def prompt_features(prompt: tuple[int, ...]) -> PromptFeatures:
    """The features of a prompt: the last user message's kind, and the answer that plain rules find.

    A completion that is to be continued is ignored here (see last_written).
    """
    if ASSISTANT_ID in prompt:
        prompt = prompt[: len(prompt) - prompt[::-1].index(ASSISTANT_ID)]
    starts = [i for i, token in enumerate(prompt) if token == USER_ID]
    text = _tokenizer.decode(prompt[starts[-1] :] if starts else prompt)
    words = " ".join(re.findall(r"[A-Za-z]+", text)[:6])
    answer = _weekday(text) or _sum(text) or _fraction(text)
    ids = _tokenizer.encode_text(answer) if answer else []
    return PromptFeatures(zlib.crc32(words.encode()) % KINDS, ids[0] if len(ids) == 1 else NO_HINT)


def last_written(prompt: Sequence[int]) -> int | None:
    """The last token of a completion at the end of the prompt; None if the prompt ends with the assistant's turn token."""
    return None if ASSISTANT_ID not in prompt or prompt[-1] == ASSISTANT_ID else prompt[-1]


def previous_class(token: int | None) -> int:
    """The class of the token before the one to be predicted; None at the start."""
    if token is None:
        return START
    if token == OPEN_ID:
        return AFTER_OPEN
    if token == CLOSE_ID:
        return AFTER_CLOSE
    return AFTER_ANSWER if FIRST_ANSWER <= token < END_OF_PIECES else OTHER


@dataclass(slots=True)
class TablePolicy:
    """table (KINDS, CLASSES, V) and trust (CLASSES,), float64."""

    table: NDArray[np.float64]
    trust: NDArray[np.float64]

    @classmethod
    def initial(cls, seed: int) -> TablePolicy:
        """Answers in the right form nine times in ten, picking at random from all known answers."""
        rng = np.random.default_rng(seed)
        table = np.full((KINDS, CLASSES, VOCABULARY), UNLIKELY)
        table[:, [START, OTHER], OPEN_ID] = 2.0
        table[:, START, ord(" ")] = 0.0
        table[:, AFTER_OPEN, FIRST_ANSWER:END_OF_PIECES] = 0.0
        table[:, AFTER_ANSWER, CLOSE_ID] = 2.0
        table[:, AFTER_CLOSE, EOS_ID] = 2.0
        table += rng.normal(0.0, 0.02, table.shape)
        table[:, :, [PAD_ID, *ROLE_IDS.values()]] = -60.0  # never sampled
        trust = np.zeros(CLASSES)
        trust[AFTER_OPEN] = FIRST_TRUST
        return cls(table, trust)

    def logits(self, prompt: PromptFeatures, classes: NDArray[np.int64]) -> NDArray[np.float64]:
        """(T,) classes of the previous tokens -> (T, V)."""
        rows: NDArray[np.float64] = self.table[prompt.kind, classes].copy()
        if prompt.hint != NO_HINT:
            rows[:, prompt.hint] += self.trust[classes]
        return rows

    def backward(
        self, prompt: PromptFeatures, classes: NDArray[np.int64], gradient: NDArray[np.float64], grads: TablePolicy
    ) -> None:
        """Add d loss / d parameters to `grads`, given d loss / d logits (T, V)."""
        np.add.at(grads.table[prompt.kind], classes, gradient)
        if prompt.hint != NO_HINT:
            np.add.at(grads.trust, classes, gradient[:, prompt.hint])

    def zeros_like(self) -> TablePolicy:
        """The same arrays, all zero: for gradients and moments."""
        return TablePolicy(np.zeros_like(self.table), np.zeros_like(self.trust))

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """The parameters by name; the arrays themselves."""
        return {"table": self.table, "trust": self.trust}


STEP_SCALE = 2e4
"""Adam's steps are this many times learning_rate: a table needs bigger steps than a transformer's weights."""
LARGEST_STEP = 0.5
SLOW_SECONDS = 0.1
OPTIMIZER_FILE = "fake-optimizer.safetensors"


def _latency(model: str) -> float:
    """Seconds per decode step: "fake" 0, "fake:slow" 0.1, "fake:0.02" 0.02; any other model name 0."""
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
        self.tokenizer = FakeTokenizer()
        self._latency = _latency(request.model)
        self._trains = request.method != "none"
        self._policy = TablePolicy.initial(request.seed)
        self._initial = TablePolicy.initial(request.seed) if request.method == "lora" else None
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
            vocabulary=VOCABULARY,
            context_length=4096,
            method="lora" if self._initial is not None else "full" if self._trains else "none",
        )

    @property
    def keeps_untrained(self) -> bool:
        """With the method lora: then the table that training began with is kept beside the trained one."""
        return self._initial is not None

    @contextlib.contextmanager
    def untrained(self) -> Iterator[None]:
        """See Engine.untrained."""
        if self._initial is None:
            raise BackendUnavailable("This table was trained itself.", "choose the method lora")
        trained, self._policy = self._policy, self._initial
        try:
            yield
        finally:
            self._policy = trained

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
        features = [prompt_features(tuple(prompt)) for prompt in prompts for _ in range(group_size)]
        last_tokens = [last_written(prompt) for prompt in prompts for _ in range(group_size)]
        rows = GeneratedRows(len(features), self.tokenizer.eos_ids)
        uniform = draw_uniforms(len(features), sampling.max_new_tokens, seed)
        for step in range(sampling.max_new_tokens):
            alive = [row for row, done in enumerate(rows.done) if not done]
            if not alive:
                break
            if cancel is not None and cancel.cancelled:
                raise Cancelled("Stopped on request.", rows.groups(len(prompts), group_size))
            if self._latency:
                time.sleep(self._latency)
            for row in alive:
                last = previous_class(rows.tokens[row][-1] if rows.tokens[row] else last_tokens[row])
                logits = self._policy.logits(features[row], np.array([last]))[0]  # (V,)
                distribution = reference.sampling_distribution(logits, sampling.temperature, sampling.top_p)
                token = int(
                    np.searchsorted(np.cumsum(distribution), uniform[row, step] * distribution.sum(), side="right")
                )
                token = min(token, VOCABULARY - 1)
                logprob = float(reference.log_softmax(logits, sampling.temperature or 1.0)[token])
                rows.append([row], [token], [logprob])
            if on_tokens is not None:
                on_tokens(rows.finished, rows.count)
        return rows.groups(len(prompts), group_size)

    def _logits(self, prompt: TokenIds, completion: TokenIds) -> NDArray[np.float64]:
        """(T, V) logits that predict the completion's tokens."""
        return self._policy.logits(prompt_features(tuple(prompt)), _classes(completion))

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
        parts = split_minibatches(batch, policy, seed, self.logprobs)
        losses: list[reference.SurrogateLoss] = []
        norms: list[float] = []
        trained = [sample for part in parts for sample in part]
        for done, part in enumerate(parts):
            if self._latency:
                time.sleep(self._latency)
            losses.append(reference.surrogate_loss([self._logits(s.prompt, s.completion) for s in part], part, policy))
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
        loss = reference.surrogate_loss([self._logits(s.prompt, s.completion) for s in batch], batch, policy)
        return self._gradient(batch, loss).arrays()

    def _gradient(self, part: Sequence[TrainSample], loss: reference.SurrogateLoss) -> TablePolicy:
        total = self._policy.zeros_like()
        for sample, gradient in zip(part, loss.gradients, strict=True):
            if sample.advantage != 0.0:
                self._policy.backward(prompt_features(sample.prompt), _classes(sample.completion), gradient, total)
        return total

    def _step(self, part: Sequence[TrainSample], loss: reference.SurrogateLoss, policy: PolicyUpdate) -> float:
        """One AdamW step; returns the gradient's norm before clipping. No step if nothing has an advantage."""
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
        """See Engine.restore."""
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
        """Never raises: NumPy is a base dependency."""

    def load(self, request: LoadRequest, progress: Progress | None = None) -> Engine:
        """See Backend.load."""
        engine = FakeEngine(request)
        if progress is not None:
            progress(1.0, "loaded")
        return engine
