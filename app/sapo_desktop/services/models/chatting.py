"""One question, two answers, word by word: the base's and the trained model's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType

from sapo_backends.base import BackendError, Engine, Sampling
from sapo_desktop.services.against_base import interval, paired
from sapo_desktop.services.models.checkpoints import Chosen, of
from sapo_desktop.services.models.pieces import Said, next_piece
from sapo_desktop.services.models.shelf import history
from sapo_desktop.services.models.shelf.store import Model
from sapo_swarm.events import Evaluated
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.tasks.prompts import SYSTEM_PROMPTS, messages, system_prompt

LONGEST = 256
"""Tokens of an answer at most, of a model that had no more in training."""


def too_early(model: Model) -> str:
    """Why base and trained model may well answer alike; "" where the newest evaluation tells them apart. Reads the journal."""
    if not model.rounds_done:
        return "Too early to differ: nothing is trained yet."
    return undecided(history.story(model.folder).held_out)


def undecided(event: Evaluated | None) -> str:
    """The same of a trained model's newest evaluation: greedy where it was measured, as a chat answers."""
    if event is None or not event.round:
        return "Too early to tell whether they differ: the trained model has not been measured yet."
    against = paired(event.greedy or event)
    if against is None or not against[1] <= 0 <= against[2]:
        return ""
    ends = interval(against[1], against[2], "+")
    return f"Too early to differ: {100 * against[0]:+.1f} points against the base {ends}, which may be chance."


class Chat:
    """Both models in memory. Use with `with`; raises BackendError, CheckpointCorrupt, UsageError when it opens."""

    def __init__(self, model: Model, checkpoint: str = "latest") -> None:
        self.labels = ("base", model.name)
        self._chosen: tuple[Chosen, Chosen] = (of(model, "base"), of(model, checkpoint))
        self._engines: list[Engine] = []
        config = self._chosen[1].config
        self._longest = max(LONGEST, config.max_new_tokens)
        self._system = system_prompt(config.tasks, config.answer_format) or SYSTEM_PROMPTS[config.answer_format]

    def __enter__(self) -> Chat:
        try:
            for chosen in self._chosen:
                self._engines.append(chosen.load(lambda *_: None))
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        for engine in self._engines:
            with suppress(BackendError):
                engine.close()
        self._engines.clear()

    def answer(self, question: str, temperature: float) -> Iterator[Said]:
        """What each says so far, in turns, until both are done. What is shown is made safe.

        Each question stands alone: these models are trained on single questions. Raises BackendError.
        """
        writing = {
            place: _write(engine, messages(question, self._system), temperature, self._longest)
            for place, engine in enumerate(self._engines)
        }
        while writing:
            for place in tuple(writing):
                said = next(writing[place], None)
                if said is None:
                    del writing[place]
                else:
                    yield Said(place, *said)


def _write(
    engine: Engine, conversation: list[dict[str, str]], temperature: float, longest: int
) -> Iterator[tuple[str, bool]]:
    """The answer so far and whether it is cut there, in pieces that grow. longest: in tokens."""
    prompt = list(engine.tokenizer.encode_chat(conversation))
    written: list[int] = []
    longest = min(longest, engine.info.context_length - len(prompt))
    ended = longest <= 0
    while not ended:
        sampling = Sampling(temperature, 1.0, min(next_piece(len(written)), longest - len(written)))
        piece = engine.generate([tuple(prompt + written)], 1, sampling, seed=len(written))[0][0]
        written += piece.tokens
        stopped = piece.finish == "stop" or not piece.tokens
        ended = stopped or len(written) >= longest
        yield safe_text(engine.tokenizer.decode(tuple(written))).strip(), ended and not stopped
