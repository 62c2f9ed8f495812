"""What the others' groups were worth here, and of when what is shown is."""

from __future__ import annotations

from sapo_desktop.dashboard.look.show import plain
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.services.swarms.trial import EXTERNAL, ROUNDS
from sapo_swarm.node.clock import age

STALE_S = 60.0
"""From this age on the news of a paused node's swarm is marked with it."""


def as_it_was(state: DashboardState, now: float) -> str:
    """What goes before the news of the swarm where no node tells any more, or a paused one has told none for STALE_S; else ""."""
    if state.swarm is None or not (state.absent or (state.paused and now - state.swarm.time > STALE_S)):
        return ""
    return f"As it was {age(now - state.swarm.time)} ago: "


def from_others(state: DashboardState) -> str:
    """Of all groups that this model was trained on, those of others; "" while there are none at all."""
    gained = state.gained
    if not gained.batches:
        return ""
    return f"{gained.external:,} of {gained.batches:,} groups in my batches so far came from others"


def risen(state: DashboardState) -> str:
    """Tasks whose held-out interval lies above the one from before the first group of others was trained on. Where nothing
    changed, that is one of nine tasks in about 3 of 100 evaluations, at most."""
    before, now = state.gained.before, state.latest
    if before is None or now is None or not state.gained.external:
        return ""
    old = {score.task: score for score in before.tasks}
    found = [(score, old[score.task]) for score in now.tasks if score.task in old]
    rises = [(score.pass_at_1 - was.pass_at_1, score) for score, was in found if score.low > was.high]
    up = sorted(rises, key=lambda pair: -pair[0])
    if not up:
        return "No task's held-out score has risen measurably since the first of them"
    named = ", ".join(f"{plain(score.task, 40)} {100 * rise:+.0f} points" for rise, score in up[:4])
    more = f" and {len(up) - 4} more" if len(up) > 4 else ""
    return f"Held-out since the first of them, cause not shown: {named}{more}"


def on_trial(state: DashboardState) -> tuple[str, ...]:
    """Of a trial, the most important first: how far it is; once its rounds are done what it brought, the question, and what
    became of the held-out score. Nothing where there is none."""
    trial = state.trial
    if state.silo or not trial.name:
        return ()
    if not trial.asks:
        return (f"Trial, {trial.rounds} of {ROUNDS} rounds: strict rules, {EXTERNAL} external groups at most",)
    rise = risen(state) or "No held-out score from before and after is here to compare"
    return (f"Trial, {ROUNDS} rounds done: {trial.sentence()}", "Stay? s stays, with normal settings; l leaves", rise)
