"""One series per figure, from what the node's events say."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import field
from msgspec.structs import replace

from sapo_desktop.dashboard.history.clock import Clock
from sapo_desktop.dashboard.history.series import Series, Trail
from sapo_swarm.events import Evaluated, RoundFinished, SwarmUpdated, Vitals

_RECENT = 300
"""Values that a sparkline looks back on; what only it shows is not kept for longer."""


def _recent() -> Trail[float | None]:
    return Trail(_RECENT)


class HeldOut(msgspec.Struct, frozen=True):
    """Held-out pass@1 over rounds, with both ends of its 95 % interval."""

    mean: Series = field(default_factory=Series)
    low: Series = field(default_factory=Series)
    high: Series = field(default_factory=Series)
    best: tuple[float, float] | None = None
    """Round and pass@1 of the best one; of equal ones the first."""
    tasks: Mapping[str, Series] = field(default_factory=dict)
    """pass@1 of every task that was asked."""

    def append(self, event: Evaluated) -> HeldOut:
        """With one more result."""
        best = self.best
        if best is None or event.pass_at_1 > best[1]:
            best = (event.round, event.pass_at_1)
        return HeldOut(
            self.mean.append(event.round, event.pass_at_1),
            self.low.append(event.round, event.low),
            self.high.append(event.round, event.high),
            best,
            {
                **self.tasks,
                **{s.task: self.tasks.get(s.task, Series()).append(event.round, s.pass_at_1) for s in event.tasks},
            },
        )


class Figures(msgspec.Struct, frozen=True):
    """One series per figure, over rounds (the first is 1) unless said otherwise. Rewards are never mixed."""

    reward_local: Series = field(default_factory=Series)
    reward_external: Series = field(default_factory=Series)
    nonzero_groups: Series = field(default_factory=Series)
    """Share of local groups with unequal rewards, in [0, 1]."""
    tokens_per_s: Trail[float | None] = field(default_factory=_recent)
    external_share: Series = field(default_factory=Series)
    """As the node says (SwarmUpdated), like the share below."""
    share: Series = field(default_factory=Series)
    """My accepted groups / all accepted groups."""
    memory: Trail[float | None] = field(default_factory=_recent)
    """Bytes of the node's process tree, as the node tells them, like the two below."""
    cpu: Trail[float | None] = field(default_factory=_recent)
    celsius: Trail[float | None] = field(default_factory=_recent)
    held_out: HeldOut = field(default_factory=HeldOut)
    clock: Clock = field(default_factory=Clock)

    def finished(self, event: RoundFinished) -> Figures:
        """With one more round, or a block of rounds."""
        x, covers = event.round + 1, event.covers
        generating = event.seconds.get("generate", 0.0)

        def ranged(name: str) -> Series:
            series: Series = getattr(self, name)
            return series.append(x, getattr(event, name), covers, event.lowest.get(name), event.highest.get(name))

        unequal = event.nonzero_groups / event.local_groups if event.local_groups else None
        return replace(
            self,
            reward_local=ranged("reward_local"),
            reward_external=ranged("reward_external"),
            nonzero_groups=self.nonzero_groups.append(x, unequal, covers),
            tokens_per_s=self.tokens_per_s.append(event.tokens_generated / generating if generating > 0 else None),
            clock=self.clock.finished(x, event.time, sum(event.seconds.values()), covers),
        )

    def measured(self, event: Vitals) -> Figures:
        """With what the machine does now."""
        return replace(
            self,
            memory=self.memory.append(event.memory),
            cpu=self.cpu.append(event.cpu_percent),
            celsius=self.celsius.append(event.celsius),
        )

    def told(self, event: SwarmUpdated, rounds: int) -> Figures:
        """With what the coordinator said after so many rounds."""
        return replace(
            self,
            share=self.share.append(rounds, event.share),
            external_share=self.external_share.append(rounds, event.external_share),
        )

    def evaluated(self, event: Evaluated) -> Figures:
        """With a held-out result."""
        return replace(self, held_out=self.held_out.append(event), clock=self.clock.worked(event.seconds))
