"""The texts of the dashboard's panels: pure functions of the state, the clock and the available size."""

from __future__ import annotations

from textual.content import Content

from sapo_desktop.dashboard.look import (
    GlyphSet,
    draw_bar,
    draw_sparkline,
    fit_width,
    format_count,
    format_memory,
    format_reward_value,
    format_share,
    plain_text,
    shorten_phrases,
    wrap_text,
)
from sapo_desktop.dashboard.state import DashboardState
from sapo_swarm.events import GroupRecorded, PhaseName, RoundFinished, RunStarted
from sapo_swarm.node.clock import format_age
from sapo_swarm.node.round_warnings import CUT_OFF
from sapo_swarm.node.training_count import TrainingCounts
from sapo_swarm.scoring.prompts import likely_answer

MUTED = "$muted"
_WORDS: dict[PhaseName, str] = {"checkpoint": "save"}
_SHORT: dict[PhaseName, str] = {"questions": "pick", "exchange": "swap", "checkpoint": "save"}
_PHASES: tuple[PhaseName, ...] = ("questions", "generate", "score", "exchange", "update", "checkpoint")


NEXT_STEP = "Next: 4, then t to chat or e to export"
"""What to do with a model whose training has finished."""


def now_panel(state: DashboardState, now: float, width: int, height: int, glyphs: GlyphSet) -> Content:
    """The round in flight: phases, progress with ETA, and the metrics of the last update."""
    rows = [_phase_line(state, width, glyphs), _progress(state, now, width, glyphs)]
    rows += _round_lines(state, width, height - len(rows))
    return Content("\n").join(rows[:height])


def _phase_line(state: DashboardState, width: int, glyphs: GlyphSet) -> Content:
    phases = [name for name in _PHASES if name != "exchange" or not state.silo]
    if state.phase is not None and state.phase.phase not in phases:
        phases = [*phases[:-1], state.phase.phase]
    words = {name: _WORDS.get(name, name) for name in phases}
    if _room(words) > width:
        words = {name: _SHORT.get(name, name) for name in phases}
    full = _room(words)
    gap = "  " if width >= full + 2 * len(phases) - 2 else " "
    named = width >= full + len(phases) - 1
    parts = []
    for name in phases:
        current = state.phase is not None and state.phase.phase == name
        if current and not state.absent and not state.finished:
            mark, style, label = glyphs.now, "bold $accent", f" {words[name]}"
        elif name in state.phases and (state.finished or not current):
            mark, style, label = glyphs.done, "$success", f" {words[name]}" if named else ""
        else:
            mark, style, label = glyphs.todo, MUTED, f" {words[name]}" if named else ""
        parts.append(Content.styled(mark + label, style))
    return Content(gap).join(parts)


def _room(words: dict[PhaseName, str]) -> int:
    """Columns used by marks and words, without the gaps between them."""
    return sum(len(word) + 2 for word in words.values())


def _progress(state: DashboardState, now: float, width: int, glyphs: GlyphSet) -> Content:
    phase = state.phase
    if phase is None or state.paused or state.absent:
        return Content.styled(shorten_phrases(_idle(state), width), MUTED)
    eta = f"  eta {format_age(max(phase.eta_s, 1.0))}" if phase.eta_s >= 0 else "  eta unknown"
    eta = "" if phase.phase == "open" and phase.eta_s < 0 else eta
    text = f"{100 * phase.fraction:4.0f} %{eta}"
    room = max(width - len(text) - 2, 4)
    return Content.assemble(draw_bar(phase.fraction, min(room, 40), glyphs, "$accent"), f"  {text}")


def _idle(state: DashboardState) -> str:
    if state.finished:
        return NEXT_STEP
    if state.absent and state.state not in ("stopped", "failed"):
        return state.absence
    if state.state == "starting":
        return "The node is starting"
    if state.state == "paused":
        return plain_text(state.sentence, 200)
    if state.state in ("stopped", "failed"):
        return "Not working: the log (5) says why"
    return "Between two rounds" if state.round is not None else "Waiting for the first round"


def _round_lines(state: DashboardState, width: int, height: int) -> list[Content]:
    last, run, phase = state.round, state.run, state.phase
    if phase is not None and phase.phase == "evaluate" and phase.detail and not (state.paused or state.absent):
        doing = _as_much_as_fits(phase.detail, width, height)
        rest = [] if last is None or run is None else _finished_round(state, last, run, width)
        return [Content.styled(line, MUTED) for line in doing] + rest
    if last is None or run is None:
        return [Content.styled(line, MUTED) for line in _before_the_first(state, width, height)]
    return _finished_round(state, last, run, width)


def _as_much_as_fits(text: str, width: int, height: int) -> list[str]:
    """What the node does, wrapped to `height` lines; where these are too few, what says least is left out."""
    text = plain_text(text, 400)
    for shorter in (text, text.replace(" held-out questions:", ":"), text.partition(" (")[0], text.partition(", ")[0]):
        if len(lines := wrap_text(shorter, width)) <= height:
            return lines
    return [shorten_phrases(text, width * max(height, 1))] if height <= 1 else lines[:height]


def _finished_round(state: DashboardState, last: RoundFinished, run: RunStarted, width: int) -> list[Content]:
    """The newest round of practice or step of examples."""
    if last.examples:
        return [Content.styled(line, MUTED) for line in _examples_lines(state, last)]
    goal = f" of {run.rounds_planned}" if run.rounds_planned else ""
    seconds = f" · {state.round_seconds:.1f} s a round" if state.round_seconds else ""
    rounds_left = run.rounds_planned - state.practised
    seconds_left = rounds_left * (state.round_seconds or 0.0) if run.rounds_planned else 0.0
    eta = f" · done in {format_age(seconds_left)}" if seconds_left > 0 and not (state.paused or state.absent) else ""
    groups = f"{last.local_groups} local + {last.external_groups} external groups"
    rows = [
        Content.assemble("round ", (f"{state.practised}", "bold"), (f" done{goal}{seconds}{eta}", MUTED)),
        Content.styled(f"{groups} · unequal rewards in {last.nonzero_groups} local", MUTED),
        Content.assemble((_cut_off(last), "$warning"), (_update_line(state), MUTED)),
    ]
    if last.external_wanted and not last.external_groups:
        rows.append(Content.styled("no external group had unequal rewards: local ones fill in", "$warning"))
    elif (note := _note(state)) and width >= 50:
        rows.append(Content.styled(note, MUTED))
    return rows


def _before_the_first(state: DashboardState, width: int, height: int) -> list[str]:
    """What the node does before there is a round: loads, then says what the trial of the base means. Where there is no room for
    the finding, what follows from it stays."""
    run, phase = state.run, state.phase
    if run is None:
        doing = phase.detail if phase is not None else ""
        return _as_much_as_fits(doing.partition(": ")[2] or doing, width, height)
    if state.base_trial is None:
        return wrap_text(f"The first round samples {run.local_groups * run.group_size} rollouts.", width)
    lines = wrap_text(state.base_trial.sentence, width)
    follows = state.base_trial.sentence.partition(": ")[2]
    if len(lines) <= height or not follows:
        return lines
    return (
        [shorten_phrases(follows[0].upper() + follows[1:], width * max(height, 1))]
        if height <= 1
        else wrap_text(follows, width)
    )


def _examples_lines(state: DashboardState, last: RoundFinished) -> list[str]:
    """The newest step of the examples phase."""
    read, loss = state.reading, "" if last.loss is None else f"loss {last.loss:.3f} · "
    took = f"{loss}{last.examples} texts · {sum(last.seconds.values()):.1f} s a step"
    right = f"{read.right} of {read.items} set aside right" if read and read.items else "right answers are imitated"
    return [f"examples {state.examples_rounds} · {right}", took]


def _cut_off(last: RoundFinished) -> str:
    """A warning if the token limit truncated many completions, else ""."""
    share = last.truncated / max(1, last.completions)
    return f"{format_share(share)} cut off · " if share > CUT_OFF else ""


def _update_line(state: DashboardState) -> str:
    last = state.round
    if last is None or last.loss is None:
        return "no update in the last round: no group had unequal rewards" if last is not None else ""
    parts = [f"loss {last.loss:+.3f}"]
    for label, value in (("grad", last.grad_norm), ("entropy", last.entropy)):
        if value is not None:
            parts.append(f"{label} {value:.2f}")
    if last.clip_fraction is not None:
        parts.append(f"clipped {format_share(last.clip_fraction)}")
    return " · ".join(parts)


def _note(state: DashboardState) -> str:
    last = state.round
    if last is not None and last.local_groups and not last.nonzero_groups and not last.external_groups:
        return "nothing to learn from: in each group all rewards were equal"
    if last is not None and last.loss is not None and abs(last.loss) < 5e-3:
        return "loss near 0 is normal: one on-policy step, advantages cancel"
    return ""


def machine_panel(state: DashboardState, now: float, width: int, height: int, glyphs: GlyphSet) -> Content:
    """Tiles with a label, the current value, and its history as a sparkline. Values that cannot be read are left out."""
    figures, vitals = state.figures, None if state.absent else state.vitals
    rows = [
        ("tok/s", format_count(token_rate(state)), draw_sparkline(figures.tokens_per_s, 60, glyphs)),
        ("rounds/h", format_count(_hourly(state)), ""),
        ("memory", format_memory(vitals.memory if vitals else None), draw_sparkline(figures.memory, 60, glyphs)),
        (
            "cpu",
            format_share(vitals.cpu_percent / 100 if vitals and vitals.cpu_percent is not None else None),
            draw_sparkline(figures.cpu, 60, glyphs),
        ),
    ]
    if vitals and vitals.celsius is not None:
        rows.append(("heat", f"{vitals.celsius:.0f} °C", draw_sparkline(figures.celsius, 60, glyphs)))
    rows.append(("tokens", format_count(state.tokens or None), ""))
    rows.append(("solved", f"{len(state.solved)} of {len(state.run.tasks)}" if state.run else "—", ""))
    lines = [_tile(label, value, history, width) for label, value, history in rows[:height]]
    return Content("\n").join(lines)


def _tile(label: str, value: str, history: str, width: int) -> Content:
    room = max(width - 20, 0)
    tail = history[-room:].rjust(room) if history and room else ""
    return Content.assemble(
        (label.ljust(9), MUTED), (value.rjust(9), "bold"), "  " if tail else "", (tail, "$chart-local")
    )


def token_rate(state: DashboardState) -> float | None:
    """Current tokens per second; None while the node is idle."""
    if state.paused or state.absent:
        return None
    return (state.vitals and state.vitals.tokens_per_s) or state.figures.tokens_per_s.last


def _hourly(state: DashboardState) -> float | None:
    """Current rounds per hour; None while the node is idle."""
    if state.paused or state.absent:
        return None
    return (state.vitals and state.vitals.rounds_per_hour) or (
        3600 / state.round_seconds if state.round_seconds else None
    )


def machine_tiles(state: DashboardState, width: int) -> Content:
    """The machine's figures in one line, for narrow terminals."""
    vitals = None if state.absent else state.vitals
    parts = [
        ("tok/s", format_count(token_rate(state))),
        ("rounds/h", format_count(_hourly(state))),
        ("memory", format_memory(vitals.memory if vitals else None)),
    ]
    if vitals and vitals.celsius is not None:
        parts.append(("heat", f"{vitals.celsius:.0f} °C"))
    while sum(len(label) + len(value) + 3 for label, value in parts) - 2 > width:
        parts.pop()
    return Content("  ").join(Content.assemble((f"{label} ", MUTED), (value, "bold")) for label, value in parts)


def rollouts_panel(state: DashboardState, now: float, width: int, height: int, glyphs: GlyphSet) -> Content:
    """The newest groups, one line each: a mark per rollout, source, task, one answer."""
    newest = state.groups.newest(height)
    if not newest:
        text = "Each question gets several attempts; they appear here with the reward that the verifier gave."
        return Content.styled("\n".join(wrap_text(text, width)), MUTED)
    return Content("\n").join(group_line(group, state.counts, width, glyphs) for group in newest)


def rollout_marks(group: GroupRecorded, glyphs: GlyphSet) -> str:
    """One glyph per rollout: correct, partly correct, wrong, truncated."""
    out = ""
    for rollout in group.group.rollouts:
        if rollout.reward >= 1:
            out += glyphs.right
        elif rollout.reward > 0:
            out += glyphs.partial
        else:
            out += glyphs.cut if rollout.finish == "length" else glyphs.wrong
    return out


def group_line(event: GroupRecorded, counts: TrainingCounts, width: int, glyphs: GlyphSet) -> Content:
    """One group in `width` columns: round, marks, mean reward, source, task, the best answer."""
    group = event.group
    rewards = group.rewards
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    star = glyphs.star if event.first_solved else " "
    source = "ext" if group.external else "local"
    marks = rollout_marks(event, glyphs)
    shown = marks if len(marks) <= 8 else marks[:7] + "+"
    task = fit_width(plain_text(group.question.ref.dataset, 40), 23 if width >= 58 else 16)
    head = f"{counts.practice_round(event.round):>4} "
    room = max(width - len(head) - 8 - 1 - 5 - 6 - len(task) - 5, 0)
    return Content.assemble(
        (head, MUTED),
        (shown.ljust(8), "$success" if mean > 0 else MUTED),
        f" {format_reward_value(mean):>5}",
        (f" {source:<5}", "$chart-external" if source == "ext" else MUTED),
        (star, "bold $accent"),
        " ",
        task,
        " ",
        (fit_width(best_answer(event), room) if room > 6 else "", MUTED),
    )


def best_answer(event: GroupRecorded) -> str:
    """The answer of the rollout with the highest reward, on one line. Events do not state their answer format: a run, a custom
    task and another node may each use a different one."""
    rollouts = event.group.rollouts
    if not rollouts:
        return ""
    best = max(rollouts, key=lambda rollout: rollout.reward)
    if best.finish == "length" and not best.reward:
        return "cut at the limit"
    return plain_text(likely_answer(best.text), 120) or "no answer"
