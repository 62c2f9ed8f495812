"""Two engines as one: the first generates, often from quantised weights, the second trains.

After every update the generator gets the trainer's new policy: its adapter or, with full fine-tuning, the merged model,
which it loads again. Their results differ by rounding and quantisation. The caller of update() passes the completions'
log-probabilities as behaviour_logprobs, so that truncated importance weights correct for it (Yao et al. 2025).
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from sapo_backends.base import (
    Backend,
    CancelToken,
    Completion,
    Engine,
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
from sapo_backends.errors import BackendUnavailable
from sapo_backends.llamacpp_backend import LlamaCppBackend

LOG = logging.getLogger(__name__)
TRAINER_PRECISIONS = ("auto", "float32", "bfloat16")
"""Any other precision applies to the generator only."""
Reload = Callable[[Path], Engine]
"""Loads the generator from a Hugging Face folder, which also receives any other files that it makes."""


class CompositeEngine(Engine):
    """See the module's docstring. Log-probabilities are the trainer's, since its weights are the policy."""

    def __init__(self, generator: Engine, trainer: Engine, reload: Reload, alpha: float) -> None:
        self.tokenizer = trainer.tokenizer
        self.optimizer_files, self.separate_generator = trainer.optimizer_files, True
        self._generator, self._trainer, self._reload, self._alpha = generator, trainer, reload, alpha
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._stale = False
        """Whether the generator still lacks the trainer's newest policy."""
        self._as_loaded = False
        self.info = replace(
            trainer.info,
            backend=f"{generator.info.backend}+{trainer.info.backend}",
            precision=f"{generator.info.precision} + {trainer.info.precision}",
            context_length=min(generator.info.context_length, trainer.info.context_length),
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
        """See Engine.generate; computed by the generator."""
        if not self._as_loaded:
            self._hand_over()
        return self._generator.generate(prompts, group_size, sampling, seed, cancel, on_tokens)

    @property
    def keeps_untrained(self) -> bool:
        """See Engine.keeps_untrained."""
        return self._generator.keeps_untrained and self._trainer.keeps_untrained

    @contextlib.contextmanager
    def untrained(self) -> Iterator[None]:
        """See Engine.untrained; of both engines. An update that the generator still lacks is handed over later."""
        with self._generator.untrained(), self._trainer.untrained():
            self._as_loaded = True
            try:
                yield
            finally:
                self._as_loaded = False

    def logprobs(self, sequences: Sequence[TokenSequence], temperature: float = 1.0) -> list[list[float]]:
        """See Engine.logprobs; computed by the trainer."""
        return self._trainer.logprobs(sequences, temperature)

    def update(
        self,
        batch: Sequence[TrainSample],
        policy: PolicyUpdate,
        seed: int,
        cancel: CancelToken | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> UpdateStats:
        """See Engine.update; then syncs the generator. If the generator cannot take an update that was applied, the
        update still succeeds: the next generate tries again, and raises the error."""
        stats = self._trainer.update(batch, policy, seed, cancel, on_progress)
        if stats.steps:
            self._stale = True
            try:
                self._hand_over()
            except Exception:
                LOG.warning("the generator did not take the new weights; it is tried again", exc_info=True)
        return stats

    def _hand_over(self) -> None:
        if self._stale:
            self._sync_generator()
            self._stale = False

    def _sync_generator(self) -> None:
        """Pass the trainer's policy to the generator."""
        adapter = self._trainer.adapter()
        if adapter:
            self._generator.set_adapter(adapter, self._alpha)
            return
        scratch = tempfile.TemporaryDirectory(prefix="sapo-merged-")
        try:
            self._trainer.export(Path(scratch.name))
            fresh = self._reload(Path(scratch.name))
        except BaseException:
            scratch.cleanup()
            raise
        self._generator.close()  # only now, so that a failed reload leaves the old policy usable
        self._generator = fresh
        if self._scratch is not None:
            self._scratch.cleanup()
        self._scratch = scratch  # the weights stay mapped from this folder

    def adapter(self) -> Mapping[str, object]:
        """See Engine.adapter."""
        return self._trainer.adapter()

    def linear_inputs(self, sequences: Sequence[TokenSequence]) -> Mapping[str, object]:
        """See Engine.linear_inputs."""
        return self._trainer.linear_inputs(sequences)

    def set_adapter(self, tensors: Mapping[str, object], alpha: float) -> None:
        """See Engine.set_adapter."""
        self._trainer.set_adapter(tensors, alpha)
        self._alpha, self._stale = alpha, True
        self._hand_over()

    def save(self, folder: Path, optimizer: bool = True) -> None:
        """See Engine.save."""
        self._trainer.save(folder, optimizer)

    def restore(self, folder: Path) -> None:
        """See Engine.restore."""
        self._trainer.restore(folder)
        self._stale = True
        self._hand_over()

    def export(self, folder: Path) -> None:
        """See Engine.export."""
        self._trainer.export(folder)

    def use_share(self, share: float) -> None:
        """Applies to both engines."""
        self._generator.use_share(share)
        self._trainer.use_share(share)

    def return_memory(self) -> None:
        """Applies to both engines."""
        self._generator.return_memory()
        self._trainer.return_memory()

    def close(self) -> None:
        """See Engine.close."""
        self._generator.close()
        self._trainer.close()
        if self._scratch is not None:
            self._scratch.cleanup()


def _generator_in(backend: type[Backend], folder: Path) -> Backend:
    """The generator's backend, set to keep the files that it makes in `folder`."""
    return LlamaCppBackend(cache=folder) if backend is LlamaCppBackend else backend()


class CompositeBackend(Backend):
    """Base of the classes that `pair` makes."""

    NAME: ClassVar[str] = "composite"
    CAN_TRAIN: ClassVar[bool] = True
    DEVICES: ClassVar[tuple[str, ...]] = ("cpu", "cuda", "mps")
    GENERATOR: ClassVar[type[Backend]]
    TRAINER: ClassVar[type[Backend]]

    @classmethod
    def check(cls) -> None:
        """See Backend.check."""
        cls.GENERATOR.check()
        cls.TRAINER.check()

    @classmethod
    def devices_here(cls) -> tuple[str, ...]:
        """See Backend.devices_here."""
        parts = {*cls.GENERATOR.devices_here(), *cls.TRAINER.devices_here()}
        return tuple(name for name in cls.DEVICES if name in parts)

    def load(self, request: LoadRequest, progress: Progress | None = None) -> Engine:
        """See Backend.load."""
        self.check()
        precision = request.precision if request.precision in TRAINER_PRECISIONS else "auto"
        trainer = self.TRAINER().load(replace(request, precision=precision), _part(progress, 0.0))
        device = request.device if request.device in self.GENERATOR.DEVICES else "auto"
        generator_request = replace(request, method="lora" if trainer.info.method == "lora" else "none", device=device)
        generator = self.GENERATOR().load(generator_request, _part(progress, 0.5))

        def reload(folder: Path) -> Engine:
            return _generator_in(self.GENERATOR, folder).load(replace(generator_request, model=str(folder)))

        return CompositeEngine(generator, trainer, reload, request.lora_alpha)


def _part(progress: Progress | None, start: float) -> Progress | None:
    """Reports one engine's progress as half of the whole."""
    return None if progress is None else lambda fraction, phrase: progress(start + fraction / 2, phrase)


def pair(generator: type[Backend], trainer: type[Backend]) -> type[Backend]:
    """A Backend class that generates with one and trains with the other. Raises BackendUnavailable."""
    name = f"{generator.NAME}+{trainer.NAME}"
    if not trainer.CAN_TRAIN:
        raise BackendUnavailable(f"{name} is no engine: {trainer.NAME} does not train.", "use llamacpp+torch")
    parts = {"NAME": name, "GENERATOR": generator, "TRAINER": trainer, "PRECISIONS": generator.PRECISIONS}
    return type("Pair", (CompositeBackend,), parts)
