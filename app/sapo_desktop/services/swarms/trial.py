"""A node's place in a swarm: its trial at first in an open one, where nobody is trusted, and the three figures for its
share."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sapo_swarm.events import Event, RoundFinished, RunStarted, SwarmUpdated
from sapo_swarm.resolve_run import TRIAL_EXTERNAL_GROUPS
from sapo_swarm.tasks.catalogue import STRICT_PRESETS
from sapo_swarm.types import UNREADABLE
from sapo_swarm.whole_file import write_atomically

if TYPE_CHECKING:
    from sapo_swarm.node.journal import Journal
    from sapo_swarm.protocol.receive import AcceptanceRules

# The three figures for a node's place in a swarm: each has one name and one value, wherever it is shown.
#
# All are the node's own report in its newest SwarmUpdated. A chart plots them as reported, without averaging over
# rounds, so that its last value is the one on the swarm page and in this node's row among the peers.

MY_SHARE, UPTAKE, EXTERNAL_SHARE = "my share", "uptake", "external share"
MEANINGS = {
    MY_SHARE: "of all groups accepted",
    UPTAKE: "times others sampled mine",
    EXTERNAL_SHARE: "of my last 50 batches",
}
"""What each figure refers to: the first two are within the coordinator's window."""


def contribution_rows(swarm: SwarmUpdated) -> tuple[tuple[str, str], ...]:
    """Name and value as shown."""
    return (
        (MY_SHARE, f"{100 * swarm.share:.1f} %"),
        (UPTAKE, f"{swarm.uptake:,}"),
        (EXTERNAL_SHARE, f"{100 * swarm.external_share:.1f} %"),
    )


# A trial: how a node takes part at first in an open swarm, where nobody is trusted. Few external groups, stricter
# rules, and after ROUNDS rounds the question whether to stay.
#
# A file beside the invite says that there is one; the journal says how far it is (events.RunStarted.trial).

ROUNDS = 50
"""Rounds after which a trial asks whether to stay."""
MAX_AGE_S, LENGTH_FACTOR, LOGPROB_FLOOR, CONTRAST = 900.0, 2.0, -5.0, 2
"""Limits for external groups, instead of AcceptanceRules' defaults. No text of an honest model was below this floor (0009)."""
RULES = (
    f"Trial in an open swarm: {TRIAL_EXTERNAL_GROUPS} external groups at most, strict rules. After {ROUNDS} rounds decide: "
    "sapo-desktop stay, or sapo-desktop leave"
)


class Trial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """swarm: its id. since: Unix time. stays: the person answered yes."""

    swarm: str
    since: float
    stays: bool = False

    @property
    def name(self) -> str:
        """Its name in the journal: a second trial in the same swarm has another one."""
        return f"{self.swarm}-{int(self.since)}"


class TrialProgress(msgspec.Struct, frozen=True):
    """How far a model's trial is: rounds, groups in its batches, external ones among them. name: "" = there is no trial."""

    name: str = ""
    rounds: int = 0
    batches: int = 0
    external: int = 0

    @property
    def asks(self) -> bool:
        """Whether it is time to ask."""
        return bool(self.name) and self.rounds >= ROUNDS

    def after(self, event: Event) -> TrialProgress:
        """The progress after this event."""
        if isinstance(event, RunStarted):
            return self if event.trial == self.name else TrialProgress(event.trial)
        if isinstance(event, RoundFinished) and self.name:
            return msgspec.structs.replace(
                self,
                rounds=self.rounds + event.covers,
                batches=self.batches + event.local_groups + event.external_groups,
                external=self.external + event.external_groups,
            )
        return self

    def sentence(self) -> str:
        """What the trial brought so far."""
        share = f" ({100 * self.external / self.batches:.0f} %)" if self.batches else ""
        return f"{self.external:,} of {self.batches:,} groups came from others{share}"


def progress_from_journal(journal: Journal, name: str) -> TrialProgress:
    """How far the trial with that name is; reads the journal from the trial's first session on. Raises JournalError."""
    began = 0
    for event in journal.read(kinds=("run_started",)):
        if isinstance(event, RunStarted):
            began = (began or event.seq) if event.trial == name else 0
    return progress_from_events(journal.read(began - 1, ("run_started", "round"))) if began else TrialProgress()


def progress_from_events(events: Iterable[Event]) -> TrialProgress:
    """The progress after these events, in order."""
    progress = TrialProgress()
    for event in events:
        progress = progress.after(event)
    return progress


class TrialEndPrompt:
    """Asks once, when the trial's rounds are done."""

    def __init__(self, known: TrialProgress) -> None:
        self._progress = known

    def after(self, event: Event) -> str:
        """The question, if the event completes the rounds; else ""."""
        before, self._progress = self._progress, self._progress.after(event)
        if not self._progress.asks or before.asks:
            return ""
        return f"{ROUNDS} rounds of the trial are done: {self._progress.sentence()}. sapo-desktop stay, or sapo-desktop leave"


def _file(invite: Path) -> Path:
    return invite.with_name("trial")


def begin_trial(invite: Path, swarm: str) -> None:
    """From the next start on the node is on trial. Raises OSError."""
    _keep(invite, Trial(swarm, time.time()))


def begin_once(invite: Path, swarm: str) -> bool:
    """The swarm turns out to be open: begin a trial, unless the person chose to stay in it. Raises OSError."""
    trial = _known(invite, swarm)
    if trial is None:
        begin_trial(invite, swarm)
    return trial is None or not trial.stays


def confirm_trial(invite: Path, swarm: str) -> None:
    """Record the answer yes, which holds until the invite is forgotten. Raises OSError."""
    _keep(invite, Trial(swarm, time.time(), stays=True))


def _keep(invite: Path, one: Trial) -> None:
    write_atomically(_file(invite), msgspec.json.encode(one))


def find_trial(invite: Path, swarm: str) -> Trial | None:
    """The trial in this swarm that has no answer yet. An unreadable file counts as having none: strict is safe."""
    trial = _known(invite, swarm)
    return None if trial is None or trial.stays else trial


def _known(invite: Path, swarm: str) -> Trial | None:
    try:
        trial = msgspec.json.decode(_file(invite).read_bytes(), type=Trial)
    except FileNotFoundError:
        return None
    except (OSError, *UNREADABLE):
        return Trial(swarm, 0.0)
    return trial if trial.swarm == swarm else None


def clear_trial(invite: Path) -> None:
    """Delete the trial and its answer. Raises OSError."""
    _file(invite).unlink(missing_ok=True)


def trial_rules(rules: AcceptanceRules) -> AcceptanceRules:
    """What a node on trial accepts from others: no custom tasks of the host, nothing old, long or unlikely, 0/1 rewards by
    the exact rule only, and every right answer tested by the answer-permutation check."""
    return replace(
        rules,
        own=frozenset(),
        presets=rules.presets & STRICT_PRESETS,
        max_age_s=min(rules.max_age_s, MAX_AGE_S),
        length_factor=min(rules.length_factor, LENGTH_FACTOR),
        logprob_floor=max(rules.logprob_floor, LOGPROB_FLOOR),
        rule=msgspec.structs.replace(rules.rule, partial=False, contrast=max(rules.rule.contrast, CONTRAST)),
    )
