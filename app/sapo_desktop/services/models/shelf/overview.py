"""A model in figures, for lists and screen 4. Reads the disk; nothing here raises for a damaged journal."""

from __future__ import annotations

from dataclasses import dataclass

from sapo_desktop.services.against_base import (
    base_difference,
    describe_difference,
    format_interval,
    format_rate,
    unpaired_reason,
)
from sapo_desktop.services.models.shelf import history
from sapo_desktop.services.models.shelf.history import TrainingHistory
from sapo_desktop.services.models.shelf.store import Model
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Evaluated
from sapo_swarm.node.checkpoints import folder_bytes
from sapo_swarm.node.training_count import TrainingCount
from sapo_swarm.tasks.catalogue import CATALOGUE


@dataclass(frozen=True)
class ModelOverview:
    """size: bytes on disk, exports included."""

    model: Model
    story: TrainingHistory
    size: int

    @property
    def base(self) -> str:
        """What it was made from, without the folder or owner."""
        return self.model.record.base.rstrip("/").rpartition("/")[2]

    @property
    def rounds(self) -> int:
        """The running number of its weights, those in its log included: for programs, see `trained`."""
        return max(self.model.rounds_done, self.story.rounds[-1].round + 1 if self.story.rounds else 0)

    @property
    def trained(self) -> TrainingCount:
        """How far it was trained."""
        return self.story.counts.at(self.rounds)

    @property
    def last_trained(self) -> float:
        """Unix time of its newest round, or of the start of its newest session; 0 = never."""
        newest = self.story.rounds[-1].time if self.story.rounds else 0.0
        return max(self.model.record.last_trained, newest)

    @property
    def held_out(self) -> Evaluated | None:
        """The newest evaluation, None before the first."""
        return self.story.held_out

    @property
    def trained_with(self) -> tuple[str, str, str]:
        """Method, engine and algorithm: of its last session, since settings may say "auto"; before the first, of the settings."""
        if not self.story.sessions:
            config = self.model.config
            return config.method, config.trainer, config.algorithm
        last = self.story.sessions[-1]
        return last.method, last.backend, last.algorithm

    @property
    def judged(self) -> bool:
        """Whether its rewards are verdicts of a judge; else they are verified."""
        return self.story.judged


def shown_preset(config: RunConfig) -> str:
    """The difficulty of its tasks; "" where none has presets, as with custom tasks."""
    return config.preset if any(task in CATALOGUE for task in config.tasks) else ""


def tasks_of(config: RunConfig) -> str:
    """What it is trained on."""
    tasks, preset = ", ".join(config.tasks), shown_preset(config)
    return f"{tasks} ({preset})" if preset else tasks


def load_overview(model: Model) -> ModelOverview:
    """Everything about one model. Takes longer the longer its journal is: not on an event loop."""
    return ModelOverview(model, history.load_history(model.folder), folder_bytes(model.folder))


def format_gain(event: Evaluated | None, width: int = 0, judged: bool = False) -> str:
    """Held-out pass@1 and its change against the base, or that it is the base's own, in a few words. width: 0 = all of it,
    else as much as fits. judged: its tasks are judged, which the text then says."""
    if event is None:
        return "not measured"
    mark = ("judged " if judged else "") + ("" if event.round else "base ")
    return mark + _figures(event, width and max(1, width - len(mark)))


def _figures(event: Evaluated, width: int) -> str:
    share, with_interval = f"{100 * event.pass_at_1:.1f} %", format_rate(event.pass_at_1, event.low, event.high)
    both = f"{share} sampled, {100 * event.greedy.pass_at_1:.1f} % greedy" if event.greedy is not None else ""
    if (difference := base_difference(event)) is None:
        alone: tuple[str, ...] = ()
        if event.so_far is not None:
            alone = f"{share}, {describe_difference(event)}", f"{share}, {100 * event.so_far.delta:+.1f} so far"
        elif event.base_missing:
            alone = f"{with_interval}, {unpaired_reason(event)}", f"{share}, base not asked"
        texts = (*alone, *([both] if both else []), with_interval)
    else:
        delta, low, high = difference
        short = "no measurable change" if low <= 0 <= high else f"{100 * delta:+.1f}"
        points = short if low <= 0 <= high else f"{short} points"
        ends = format_interval(low, high, "+")
        bare = ends.replace("95 %: ", "")
        texts = (
            *([f"{both}, {points} {ends}", f"{both}, {points}", f"{both}, {short}"] if both else []),
            f"{share}, {describe_difference(event)}",
            *(f"{share}, {change} {interval}" for interval in (ends, bare) for change in (points, short)),
            f"{share}, {points}",
            f"{share}, {short}",
        )
    return next((text for text in texts if not width or len(text) <= width), share)
