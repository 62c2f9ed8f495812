"""What the dashboard's screens show, as sentences: pure functions of the state and the clock, charts included."""

from __future__ import annotations

from sapo_desktop.dashboard.history.run import MEANINGS, RoundClock
from sapo_desktop.dashboard.history.series import Series
from sapo_desktop.dashboard.look import format_clock_time, format_count, format_memory, format_share, plain_text
from sapo_desktop.dashboard.screens.dashboard import reward_lines, share_lines
from sapo_desktop.dashboard.screens.log import in_order as lines_in_order
from sapo_desktop.dashboard.screens.rollouts.detail import verdict_words
from sapo_desktop.dashboard.screens.swarm.screen import as_it_was, from_others, improved_tasks_sentence, on_trial
from sapo_desktop.dashboard.screens.swarm.trail import CAUSE, in_order, trail_steps
from sapo_desktop.dashboard.state import DashboardState, before_measurement, evaluation_sentence
from sapo_desktop.dashboard.widgets.frame import run_identity, status_summary
from sapo_desktop.dashboard.widgets.panels import best_answer, token_rate
from sapo_desktop.services.against_base import base_scores
from sapo_desktop.services.swarms.trial import MEANINGS as SHARES
from sapo_desktop.services.swarms.trial import contribution_rows
from sapo_swarm.events import GroupRecorded, RoundFinished, SwarmUpdated
from sapo_swarm.node.clock import format_age
from sapo_swarm.node.training_count import TrainingCounts
from sapo_swarm.protocol.wire import refusals_in_words

# A chart as a sentence: the metric's current value, its change, and its last values.

SMOOTH = 20
"""Rounds in a moving mean, as in the charts."""
_LAST = 10
_AGO = ((86_400.0, "a day ago"), (3600.0, "an hour ago"), (600.0, "ten minutes ago"))
"""The change is stated over the longest of these that the record covers, or since the beginning if it covers none."""
_SAME = 0.005
"""A smaller change counts as none."""


def trend_sentence(name: str, series: Series, clock: RoundClock, share: bool = False, smooth: int = SMOOTH) -> str:
    """One metric over rounds. share: show it as a percentage. smooth: rounds in the moving mean, 1 for raw values."""
    now = series.tail_mean(smooth)
    if now is None:
        return f"{name}: no value yet"
    mean = f", mean of {smooth} rounds" if smooth > 1 and (series.last_x or 0) > smooth else ""
    sentence = f"{name} {_figure(now, share)}{mean}{_change(series, clock, now, share, smooth)}"
    last = series.newest(_LAST)
    spread = series.range()
    if len(last) > 1:
        values = ["none" if value is None else _figure(value, share) for value in last]
        same = len(set(values)) == 1
        sentence += (
            f"; the same in the last {len(last)} rounds" if same else f"; last {len(last)} rounds: {', '.join(values)}"
        )
    if spread is not None and spread.high > spread.low:
        sentence += f"; between {_figure(spread.low, share)} and {_figure(spread.high, share)} so far"
    return sentence


def _change(series: Series, clock: RoundClock, now: float, share: bool, smooth: int) -> str:
    span = clock.span
    first, last = series.first_x, series.last_x
    if span is None or first is None or last is None or last - first < 2:
        return ""
    when, place = "at the start", first
    for seconds, words in _AGO:
        then = clock.round_at(span[1] - seconds)
        if then is not None and span[1] - seconds >= span[0] and then >= first:
            when, place = words, then
            break
    before = series.at(place, smooth)
    if before is None:
        return ""
    if abs(now - before) < _SAME:
        return f", as {when}"
    return f", {'up' if now > before else 'down'} from {_figure(before, share)} {when}"


def _figure(value: float, share: bool) -> str:
    return f"{100 * value:.1f} %" if share else f"{value:.2f}"


# What the dashboard's screens show, as sentences: pure functions of the state and the clock, one line a fact.
#
# No drawing and no columns: no position or glyph carries meaning, the words of a line say everything.

NEWEST = 5
"""How many rollout groups, and how many chart marks, are listed."""
LOG = 10
"""How many log lines are listed."""
_SPOKEN = ((" · ", ", "), ("⏎", ", new line, "))


def speakable_text(text: str) -> str:
    """The text without symbols that a screen reader would read out or drop."""
    for sign, words in _SPOKEN:
        text = text.replace(sign, words)
    return " ".join(text.split())


def now_sentence(state: DashboardState, now: float) -> str:
    """What the node is doing, for how long, and its progress."""
    _, sentence, seconds = status_summary(state, now)
    text = plain_text(sentence, 300).replace("space starts", "a line with one space starts")
    since = f", {format_age(seconds)}" if seconds >= 1 else ""
    phase = state.phase
    done = (
        f", {100 * phase.fraction:.0f} % done"
        if phase is not None and not (state.paused or state.absent) and phase.fraction > 0
        else ""
    )
    remaining = f", {format_age(max(phase.eta_s, 1.0))} left" if done and phase is not None and phase.eta_s >= 0 else ""
    return speakable_text(f"{text}{since}{done}{remaining}")


def dashboard_facts(state: DashboardState, now: float) -> list[str]:
    """The content of screen 1."""
    figures = state.figures
    rows = [f"This is {run_identity(state)}", now_sentence(state, now)]
    rows += [trend_sentence(f"Reward, {line.label}", line.series, figures.clock) for line in reward_lines(state)]
    for line in share_lines(state):
        smooth = line.smooth(SMOOTH)
        name = "Share of local groups with unequal rewards" if line.label == "unequal" else line.label.capitalize()
        rows.append(trend_sentence(name, line.series, figures.clock, True, smooth))
    rows += _held_out(state)
    if state.round is not None:
        rows += [round_sentence(state.round, state.counts), _updated(state.round)]
    rows += [*_marks(state, now), _machine(state)]
    rows += [group_sentence(event, state.counts) for event in state.groups.newest(3)]
    return [speakable_text(row) for row in rows]


def _held_out(state: DashboardState) -> list[str]:
    latest = state.latest
    if latest is None:
        so_far = plain_text(before_measurement(state), 400)
        return [f"Held-out: no measurement yet. {so_far or 'The first one is the base to compare with'}"]
    before = base_scores(latest)
    rows = [evaluation_sentence(latest, state.counts)]
    scores = []
    for score in latest.tasks:
        base = before.get(score.task)
        came = "" if base is None else f"from {100 * base:.0f} to "
        note = ", with an answer-only shortcut" if score.shortcut and latest.round else ""
        scores.append(f"{plain_text(score.task, 60)} {came}{100 * score.pass_at_1:.0f} %{note}")
    return [*rows, "By task: " + "; ".join(scores)] if scores else rows


def round_sentence(event: RoundFinished, counts: TrainingCounts) -> str:
    """The metrics of one round, or of a step of examples, which are counted separately."""
    done = counts.done_in(event.round)
    if event.examples:
        return (
            f"Examples, step {done.steps}: {event.examples} right answers imitated, {sum(event.seconds.values()):.1f} s"
        )
    external = "" if event.reward_external is None else f", external {event.reward_external:.2f}"
    local = "none" if event.reward_local is None else f"{event.reward_local:.2f}"
    taken = (
        f", {event.external_groups} of up to {event.external_wanted} external groups" if event.external_wanted else ""
    )
    return (
        f"Round {done.rounds}: local reward {local}{external}; unequal rewards in {event.nonzero_groups} of "
        f"{event.local_groups} local groups{taken}; {sum(event.seconds.values()) / max(event.covers, 1):.1f} s"
    )


def _updated(event: RoundFinished) -> str:
    if event.loss is None and not event.examples:
        return "The last round changed nothing: no group had unequal rewards"
    parts = [("loss", event.loss), ("gradient norm", event.grad_norm), ("entropy", event.entropy)]
    return "Last update: " + ", ".join(f"{name} {value:.3f}" for name, value in parts if value is not None)


def _marks(state: DashboardState, now: float) -> list[str]:
    newest = state.moments[-NEWEST:]
    places = [state.counts.at(round(moment.round)).newest or "the start" for moment in newest]
    marks = [
        f"{MEANINGS[moment.letter]} at {place}, {format_clock_time(moment.time, now)}"
        for moment, place in zip(newest, places, strict=True)
    ]
    return ["Marked in the charts, the newest last: " + "; ".join(marks)] if marks else []


def _machine(state: DashboardState) -> str:
    vitals, rate = None if state.absent else state.vitals, token_rate(state)
    parts = [f"{format_count(rate)} tokens a second" if rate else "", f"{format_count(state.tokens)} tokens generated"]
    if vitals is not None:
        parts.append(f"{format_memory(vitals.memory)} of memory")
        parts += [f"processor {vitals.cpu_percent:.0f} %"] if vitals.cpu_percent is not None else []
        parts += [f"{vitals.celsius:.0f} degrees"] if vitals.celsius is not None else []
    if state.run is not None:
        parts.append(f"{len(state.solved)} of {len(state.run.tasks)} tasks solved at least once")
    return "Machine: " + ", ".join(part for part in parts if part)


def group_sentence(event: GroupRecorded, counts: TrainingCounts) -> str:
    """One group of rollouts."""
    rewards = event.group.rewards
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    right = sum(value >= 1 for value in rewards)
    source = "from another node" if event.group.external else "local"
    first = ", first success at this task" if event.first_solved else ""
    best = f", best answer {best_answer(event)}" if event.group.rollouts else ""
    task = plain_text(event.group.question.ref.dataset, 60)
    place = f"Round {counts.practice_round(event.round)}, {task}, {source}"
    return f"{place}: {right} of {len(rewards)} right, reward {mean:.2f}{first}{best}"


def rollout_facts(state: DashboardState, number: int = 0) -> list[str]:
    """The content of screen 3: the newest groups, numbered; with `number` that group in full."""
    newest = state.groups.newest(max(number, NEWEST))
    if not newest:
        return ["No rollouts yet: the first come with the first round"]
    if number:
        if number > len(newest):
            return [f"There are {len(newest)} groups here. All of the journal: rollouts"]
        return _in_full(newest[number - 1], state.counts)
    rows = [f"{place}. {group_sentence(event, state.counts)}" for place, event in enumerate(newest, 1)]
    return [speakable_text(row) for row in rows] + [
        "3 and a number reads one in full; rollouts --help filters all of them"
    ]


def _in_full(event: GroupRecorded, counts: TrainingCounts) -> list[str]:
    """The question and the attempts, each attempt under its verdict."""
    group = event.group
    used = "trained on" if event.trained else "not trained on"
    rows = [group_sentence(event, counts), f"It was {used}. The question:", *text_lines(group.question.prompt)]
    for place, rollout in enumerate(group.rollouts, 1):
        rows.append(
            f"Attempt {place} is {verdict_words(rollout)}, reward {rollout.reward:.2f}, {rollout.tokens} tokens:"
        )
        for turn in rollout.turns:
            rows += ["The tool says:" if turn.environment else "The model says:", *text_lines(turn.text)]
        rows += [] if rollout.turns else text_lines(rollout.text)
    return rows


def text_lines(text: str) -> list[str]:
    """The lines of a prompt or completion, without blank ones."""
    return [line.strip() for line in plain_text(text, lines=True).splitlines() if line.strip()]


def swarm_facts(state: DashboardState, now: float) -> list[str]:
    """The content of screen 2: the swarm, its contribution, its members."""
    swarm = state.swarm
    if swarm is None and (state.run is None or state.absent):
        return ["No node is at work with an open model: nothing is known of a swarm"]
    if swarm is None:
        alone = "This node trains alone. Find a swarm: directory. Join one: node --join INVITE. Host one: coordinator"
        return [alone if state.silo else "Waiting for the first exchange with the coordinator"]
    rows = [as_it_was(state, now) + plain_text(swarm.sentence, 400)]
    rows += [f"{format_count(swarm.nodes)} nodes, {swarm.rounds_per_s:.2f} rounds a second of all"]
    rows += [f"{name.capitalize()} {value}, {SHARES[name]}" for name, value in contribution_rows(swarm)]
    rows += [from_others(state), improved_tasks_sentence(state), *on_trial(state), plain_text(state.external_off, 400)]
    rows += [f"{format_count(swarm.made)} groups made, {format_count(swarm.accepted)} accepted"]
    rows.append(f"Received, not taken: {'; '.join(refusals_in_words(swarm.rejected)) or 'none'}")
    rows.append(f"Sent, not taken: {'; '.join(refusals_in_words(swarm.refused, swarm.made)) or 'none'}")
    rows += _peers(swarm)
    trails = [f"{plain_text(trail.task, 60)}: {', '.join(trail_steps(trail))}" for trail in in_order(state)]
    rows += [f"First solved. {CAUSE}", *trails] if trails else []
    return [speakable_text(row) for row in rows if row]


def _peers(now: SwarmUpdated) -> list[str]:
    rows = [f"Peers: {len(now.peers)}, the largest share first"] if now.peers else ["Nobody else is here yet"]
    for place, peer in enumerate(sorted(now.peers, key=lambda peer: -peer.share), 1):
        me = ", this node" if now.node and peer.node == now.node else ""
        name = plain_text(peer.name, 60) or plain_text(peer.node[:8])
        rows.append(
            f"{place}. {name}{me}, {plain_text(peer.model, 60)}: {format_count(peer.groups)} groups, "
            f"share {format_share(peer.share, 1)}, uptake {format_count(peer.uptake)}, seen {format_age(peer.seen_s)} ago"
        )
    return rows


def log_facts(state: DashboardState, now: float, text: str = "") -> list[str]:
    """The content of screen 5: the last log lines, only those that contain `text` if it is not empty."""
    lines = lines_in_order(state.log, text.casefold())
    prefixes = {"info": "", "warning": "warning: ", "error": "error: "}
    rows = [
        f"{format_clock_time(line.time, now)} {prefixes[line.level]}{plain_text(line.text, 600)}"
        for line in lines[-LOG:]
    ]
    return [speakable_text(row) for row in rows] or [
        f"No line of the log has {text!r} in it" if text else "The log is empty"
    ]
