"""What a node without a screen prints: one readable line per round, a summary at the end; or JSON lines."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TextIO

import msgspec

from sapo_desktop.services.against_base import (
    describe_base_so_far,
    describe_difference,
    describe_greedy,
    format_rate,
)
from sapo_desktop.streams import json_line, to_nowhere
from sapo_swarm.events import (
    BaseAsked,
    Evaluated,
    Event,
    ExamplesRead,
    ExternalSwitched,
    FirstSuccess,
    LogLine,
    Phase,
    RoundFinished,
    RunStarted,
    StateChanged,
    SwarmUpdated,
    TrialMeasured,
)
from sapo_swarm.node.clock import format_duration
from sapo_swarm.node.round_warnings import CUT_OFF
from sapo_swarm.protocol.safe_text import safe_text

_EDGE = 20
"""Rounds averaged at either end for the summary."""
_PATIENCE_S = 10.0
"""Seconds between two lines about the progress of a slow model loading."""
_VERBS = {
    "space goes on": "sapo-desktop resume goes on",
    "space tries again": "sapo-desktop resume tries again",
    "r runs anyway": "sapo-desktop run-anyway overrides it",
    "r ends that": "sapo-desktop run-anyway --off ends that",
}


def in_a_shell(sentence: str) -> str:
    """The node's sentences about the dashboard's keys, reworded for somebody who uses commands instead."""
    for key, verb in _VERBS.items():
        sentence = sentence.replace(key, verb)
    return sentence


class ConsoleReporter:
    """Prints stored events as lines of text on a stream."""

    def __init__(self, out: TextIO, json: bool, quiet: bool) -> None:
        self._out, self._json, self._quiet = out, json, quiet
        self._rounds = 0
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=_EDGE)
        self._evaluated: Evaluated | None = None
        self._tokens = 0
        self._seconds = 0.0
        self._planned = 0
        self._examples = 0
        self._reading: ExamplesRead | None = None
        self._local = "local"
        self._connected: bool | None = None
        self._spoke = 0.0

    def show(self, event: Event) -> None:
        """Print the event if it is worth a line, and count it for the summary. Of ephemeral events only model loading is
        shown."""
        if isinstance(event, Phase):
            self._opening(event)
            return
        self._spoke = event.time
        if isinstance(event, RoundFinished):
            self._tokens += event.tokens_generated
            self._seconds += 0.0 if event.examples else sum(event.seconds.values())
            self._examples += event.covers if event.examples else 0
            if event.reward_local is not None:
                self._rounds += 1
                if self._rounds <= _EDGE:
                    self._first.append(event.reward_local)
                self._last.append(event.reward_local)
        elif isinstance(event, Evaluated) and (event.round or not event.belated or self._evaluated is None):
            self._evaluated = event
        elif isinstance(event, RunStarted):
            self._planned, self._examples = event.rounds_planned, event.examples_rounds
            self._local = "judged" if event.judged else "local"
        elif isinstance(event, ExamplesRead):
            self._reading = event
        if self._quiet:
            return
        text = json_line(event) if self._json else self._line(event)
        if text:
            self._print(text)

    def _opening(self, event: Phase) -> None:
        if event.phase == "open" and event.time - self._spoke >= _PATIENCE_S:
            self._spoke = event.time
            self.say(safe_text(event.detail, 400, lines=False))

    def say(self, sentence: str) -> None:
        """Print a line that is not an event."""
        if not self._json and not self._quiet:
            self._print(f"          {safe_text(sentence, 2000, lines=False)}")

    def summary(self, folder: Path) -> None:
        """The end of a run in a few lines; as JSON, a last object of kind "summary"."""
        last, rounds = self._evaluated, self._rounds
        edge = max(1, min(_EDGE, rounds // 2))
        first, final = self._first[:edge], list(self._last)[-edge:]
        if self._json:
            data = {
                "kind": "summary",
                "folder": str(folder),
                "rounds": rounds,
                "examples_rounds": self._examples,
                "reward_local_first": _mean(first),
                "reward_local_last": _mean(final),
                "tokens_generated": self._tokens,
                "seconds": self._seconds,
                "held_out": None if last is None else msgspec.to_builtins(last),
            }
            self._print(json_line(data))
            return
        if not rounds and not self._examples:
            return
        lines, reading = [""], self._reading
        if reading is not None:
            lines.append(
                f"Examples: {reading.step} steps in {format_duration(reading.seconds)}. {_right(reading)}".rstrip()
            )
        if rounds:
            spent = format_duration(self._seconds)
            lines.append(f"{rounds} round{'' if rounds == 1 else 's'} in {spent}, {self._tokens:,} tokens generated.")
        if edge > 1:
            share = f"in the first {len(first)} rounds, {_mean(final):.3f} in the last {len(final)}"
            lines.append(f"Local reward: {_mean(first):.3f} {share}.")
        if last is not None:
            lines.append(f"Held-out pass@1: {_held_out(last)}")
        lines.append(f"Saved in {folder}")
        if last is not None:  # without held-out questions here there is nothing to measure on
            lines.append(
                "Measure it on up to 400 held-out questions a task, where there are more: sapo-desktop eval --items 400"
            )
        self._print("\n".join(lines))

    def _print(self, text: str) -> None:
        """Print a line. If the reader is gone (a closed terminal, `| head`), the run continues silently."""
        try:
            print(text, file=self._out, flush=True)
        except OSError:
            to_nowhere(self._out.fileno())

    def _line(self, event: Event) -> str:
        if isinstance(event, RunStarted):
            at = f"goes on with round {event.round + 1}" if event.round else "starts"
            how = "generating for the swarm, not training," if event.method == "none" else f"{event.method} fine-tuning"
            tasks = f"{len(event.tasks)} task{'' if len(event.tasks) == 1 else 's'}"
            precision = f"{event.precision}, {event.computed_by}" if event.computed_by else event.precision
            return (
                f"{event.name or event.run_id} {at}: {event.model}, {event.parameters / 1e6:.1f}M parameters, {how} "
                f"on {event.device} ({precision}), {event.algorithm}, "
                f"{event.local_groups}/{event.external_groups} groups of {event.group_size}, {tasks}."
                + "".join(f"\n          since the last time: {change}" for change in event.changed)
            )
        if isinstance(event, RoundFinished):
            return self._round(event)
        text = self._news(event)
        return f"          {text}" if text else ""

    def _news(self, event: Event) -> str:
        """What happened between two rounds; "" when there is nothing to report."""
        match event:
            case SwarmUpdated():
                return self._swarm(event)
            case Evaluated() | BaseAsked():
                return _held_out_news(event)
            case StateChanged() | ExternalSwitched() | TrialMeasured() | ExamplesRead():
                return in_a_shell(safe_text(event.sentence, 400, lines=False))
            case LogLine():
                return safe_text(event.text, 400, lines=False)
            case FirstSuccess():
                return f"{'first success of another node' if event.node else 'first solved'}: {event.task}"
        return ""

    def _swarm(self, event: SwarmUpdated) -> str:
        """A line when the swarm is joined or lost; one every round would be too much."""
        if event.connected == self._connected:
            return ""
        self._connected = event.connected
        return f"swarm: {safe_text(event.sentence, 300, lines=False)}"

    def _of_examples(self, event: RoundFinished) -> str:
        loss = "" if event.loss is None else f"loss {event.loss:.3f}"
        parts = [_right(self._reading), loss, f"{event.examples} texts", f"{sum(event.seconds.values()):.1f} s"]
        return f"examples {self._examples:>3}  {'  '.join(filter(None, parts))}"

    def _round(self, event: RoundFinished) -> str:
        if event.examples:
            return self._of_examples(event)
        planned = f"/{self._planned}" if self._planned else ""
        took = sum(event.seconds.values())
        rate = event.tokens_generated / max(event.seconds.get("generate", 0.0), 1e-6)
        external = "" if event.reward_external is None else f"  external {event.reward_external:.3f}"
        if event.external_wanted:
            external += f"  took {event.external_groups} of up to {event.external_wanted}"
        share = event.truncated / max(1, event.completions)
        cut = f"cut off {100 * share:.0f} %  " if share > CUT_OFF else ""
        return (
            f"round {event.round + 1 - self._examples:>4}{planned}  {self._local} {event.reward_local or 0.0:.3f}{external}  "
            f"unequal {event.nonzero_groups}/{event.local_groups}  entropy {_number(event.entropy)}  {cut}"
            f"{rate:,.0f} tok/s  {took:.1f} s"
        )


def _right(event: ExamplesRead | None) -> str:
    """How many of the rows set aside are right, "" where none were read."""
    return f"{event.right}/{event.items} right on rows set aside" if event is not None and event.items else ""


def _held_out_news(event: Evaluated | BaseAsked) -> str:
    return describe_base_so_far(event) if isinstance(event, BaseAsked) else f"held-out pass@1 {_held_out(event)}"


def _held_out(event: Evaluated) -> str:
    comparison = describe_difference(event) if event.round else "the base to compare with"
    sampled = "sampled " if event.greedy is not None else ""
    text = f"{sampled}{format_rate(event.pass_at_1, event.low, event.high)}, {event.items} items"
    return "; ".join(filter(None, (text, comparison, describe_greedy(event))))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
