"""What a node without a screen prints, and to whom."""

from __future__ import annotations

import io
import os
from pathlib import Path

import msgspec
import pytest
from tests.fixtures.make_recordings import recording
from tests.support.records import evaluation

from sapo_desktop.commands.nodes.node import ConsoleReporter
from sapo_desktop.dashboard.state import evaluation_sentence
from sapo_desktop.services.models.shelf.overview import format_gain
from sapo_swarm.events import GreedyScore, LogLine, RoundFinished, StateChanged
from sapo_swarm.node.training_count import ROUNDS_ONLY


@pytest.mark.parametrize(
    ("rounds", "took", "said", "local_reward"),
    [
        (1, 8.2, "1 round in 8 s", False),
        (2, 20.0, "2 rounds in 40 s", False),
        (4, 31.0, "4 rounds in 2 min", True),
    ],
    ids=["one", "two", "four"],
)
def test_a_summary_counts_short_runs_in_seconds_and_compares_no_single_rounds(
    rounds: int, took: float, said: str, local_reward: bool
) -> None:
    out = io.StringIO()
    reporter = ConsoleReporter(out, json=False, quiet=True)
    for event in recording("silo", rounds, 1):
        if isinstance(event, RoundFinished):
            reporter.show(msgspec.structs.replace(event, seconds={"generate": took}))
    reporter.summary(Path("run"))
    assert said in out.getvalue()
    assert ("Local reward" in out.getvalue()) is local_reward


def test_a_reader_that_goes_away_does_not_end_the_run() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as out:
        reporter = ConsoleReporter(out, json=False, quiet=False)
        reporter.show(LogLine(level="info", text="heard"))
        assert os.read(reading, 100) == b"          heard\n"
        os.close(reading)
        for _ in range(3):
            reporter.show(LogLine(level="info", text="not heard any more"))


def test_without_a_screen_a_pause_names_the_verb_that_goes_on_and_no_key() -> None:
    out = io.StringIO()
    sentence = "Paused: The disk is full. · space tries again"
    ConsoleReporter(out, json=False, quiet=False).show(
        StateChanged(state="paused", sentence=sentence, reason="failure")
    )
    assert out.getvalue().strip() == "Paused: The disk is full. · sapo-desktop resume tries again"


@pytest.mark.parametrize(
    ("delta", "more"), [((0.031, 0.01, 0.052), ""), ((0.0, -0.02, 0.02), ": no measurable change")]
)
def test_a_held_out_result_is_said_in_the_same_words_everywhere(delta: tuple[float, float, float], more: str) -> None:
    """It was "95 % 10.1–15.2" in `node`, "(10.1 to 15.2)" in `models`, "from base" in the log."""
    at, low, high = delta
    event = msgspec.structs.replace(evaluation(25), delta=at, delta_low=low, delta_high=high)
    said = f"{100 * at:+.1f} points against the base (95 %: {100 * low:+.1f} to {100 * high:+.1f}){more}"
    out = io.StringIO()
    ConsoleReporter(out, json=False, quiet=False).show(event)
    assert out.getvalue().strip() == f"held-out pass@1 after round 25: 50.0 % (95 %: 40.0 to 60.0), 16 items; {said}"
    assert format_gain(event) == f"50.0 %, {said}"
    assert evaluation_sentence(event, ROUNDS_ONLY) == f"Held-out pass@1 50.0 % after round 25 (16 items, T=1): {said}"
    assert len(format_gain(event, 36)) <= 36


def test_both_temperatures_are_told_where_there_is_room() -> None:
    known = {"delta": 0.3, "delta_low": 0.2, "delta_high": 0.4, "greedy": GreedyScore(50, 0.62, 0.5, 0.7)}
    event = msgspec.structs.replace(evaluation(10), **known)
    assert format_gain(event, 40) == "50.0 % sampled, 62.0 % greedy, +30.0"
    assert "greedy" not in format_gain(event, 20)
