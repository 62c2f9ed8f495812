"""What the others were worth: how much came from them, what rose after it, why groups were not taken, and that they are away."""

from __future__ import annotations

import errno
import socket

import aiohttp
import msgspec
from aiohttp.client_reqrep import ConnectionKey
from tests.fixtures.make_recordings import recording
from tests.support.records import evaluation, finished

from sapo_desktop.dashboard.look import UNICODE
from sapo_desktop.dashboard.screens.swarm.screen import exchange_summary, from_others, improved_tasks_sentence
from sapo_desktop.dashboard.state import DashboardState, apply_event
from sapo_desktop.dashboard.widgets.frame import header_line
from sapo_swarm.evaluation import wilson_interval
from sapo_swarm.events import Event, SwarmUpdated, TaskScore
from sapo_swarm.protocol.client import why_not
from sapo_swarm.protocol.wire import REFUSAL_WORDS, refusals_in_words

SWARM = list(recording("swarm", 30, 11))


def fold(events: list[Event]) -> DashboardState:
    state = DashboardState()
    for event in events:
        state = apply_event(state, event)
    return state


def with_external(round_: int, external: int) -> Event:
    return msgspec.structs.replace(finished(round_), local_groups=4, external_groups=external)


def measured(round_: int, score: float, low: float) -> Event:
    task = TaskScore("bf", 50, score, low, score + 0.1, 1.0, 0.0)
    return msgspec.structs.replace(evaluation(round_, score), tasks=(task,))


def test_every_reason_to_reject_a_group_has_plain_words() -> None:
    for reason in REFUSAL_WORDS:
        (said,) = refusals_in_words({reason: 6}, 8)
        assert said.startswith("6 of 8 ")
        assert said.split()[3] in ("had", "came", "were", "could"), said
    assert refusals_in_words({"stale": 0, "no_signal": 6, "own": 9}) == [
        "9 were this node's own",
        "6 had no rollout better than the rest",
    ]
    assert refusals_in_words({"\x1b[31mnew_one": 1}) == ["1 ·[31mnew one"]


def test_of_all_batches_the_part_that_came_from_others_is_counted_over_blocks_of_rounds_too() -> None:
    block = msgspec.structs.replace(finished(9), local_groups=40, external_groups=20, covers=10)
    state = fold([SWARM[0], block, with_external(10, 4), with_external(11, 0)])
    assert from_others(state) == "24 of 72 groups in my batches so far came from others"
    assert from_others(DashboardState()) == ""


def test_a_rise_counts_only_from_the_last_result_before_the_first_external_group() -> None:
    alone = [SWARM[0], measured(0, 0.1, 0.05), finished(0), measured(1, 0.3, 0.25)]
    state = fold(alone)
    assert improved_tasks_sentence(state) == "", "nothing came from others yet"
    together = [with_external(1, 4), measured(2, 0.32, 0.22)]
    assert "No task's held-out score has risen" in improved_tasks_sentence(fold([*alone, *together]))
    said = improved_tasks_sentence(fold([*alone, *together, measured(3, 0.6, 0.5)]))
    assert said == "Held-out since the first of them, cause not shown: bf +30 points"


def test_one_right_answer_more_in_sixteen_is_no_risen_task() -> None:
    def right(round_: int, answers: int) -> Event:
        task = TaskScore("bf", 16, answers / 16, *wilson_interval(answers, 16), 1.0, 0.0)
        return msgspec.structs.replace(evaluation(round_, answers / 16), tasks=(task,))

    before = [SWARM[0], right(0, 0), with_external(0, 4)]
    assert "No task's held-out score has risen" in improved_tasks_sentence(fold([*before, right(1, 1)]))
    assert "bf +62 points" in improved_tasks_sentence(fold([*before, right(1, 10)]))


def test_the_swarm_page_says_it_and_fits() -> None:
    state = fold(SWARM)
    assert state.swarm is not None
    refused = msgspec.structs.replace(state.swarm, rejected={"no_signal": 6, "stale": 2}, seq=10**6)
    for width in (40, 76, 116):
        text = exchange_summary(apply_event(state, refused), 0.0, width, 6, UNICODE).plain
        assert all(len(line) <= width for line in text.splitlines()[:2])
        assert "came from others" in text or width == 40
    assert "received, not taken: 6 had no rollout better than the rest · 2 came too late" in text


def test_reasons_that_do_not_fit_are_counted_and_a_tall_screen_has_room_for_all() -> None:
    state = fold(SWARM)
    assert state.swarm is not None
    many = {"no_signal": 60, "stale": 20, "signature": 3, "schema": 2, "prompt_hash": 1}
    state = apply_event(state, msgspec.structs.replace(state.swarm, rejected=many, seq=10**6))
    low = exchange_summary(state, 0.0, 76, 7, UNICODE).plain
    assert "60 had no rollout better than the rest · 4 more reasons" in low
    assert len(low.splitlines()) <= 7
    tall = exchange_summary(state, 0.0, 76, 11, UNICODE).plain
    assert "another question" in tall
    assert "more reason" not in tall
    assert all(len(line) <= 76 for line in tall.splitlines())


def test_a_header_of_a_node_whose_coordinator_is_away_is_not_green() -> None:
    state = fold([event for event in SWARM if not isinstance(event, SwarmUpdated)])
    news = next(event for event in SWARM if isinstance(event, SwarmUpdated))
    here, away = apply_event(state, news), apply_event(state, msgspec.structs.replace(news, connected=False))
    green = [str(span.style) for span in header_line(here, 0.0, 120, 1, UNICODE).spans]
    other = header_line(away, 0.0, 120, 1, UNICODE)
    assert "bold $success" in green
    assert "bold $success" not in [str(span.style) for span in other.spans]
    assert "alone: the coordinator is away" in other.plain


def test_a_lost_coordinator_is_told_in_words() -> None:
    key = ConnectionKey("h", 1, True, True, None, None, None)

    def said(error: OSError) -> str:
        return why_not(aiohttp.ClientConnectorError(key, error))

    assert said(ConnectionRefusedError(111, "x")) == "nothing listens there. Is the coordinator running?"
    assert said(socket.gaierror(-2, "x")) == "its name is not known. Is this machine online?"
    assert said(OSError(errno.ENETUNREACH, "x")) == "there is no way to it. Is this machine online?"
    assert why_not(aiohttp.ServerDisconnectedError()) == "it ended the connection."
    assert why_not(ValueError("odd \x1b[2J")).isprintable()
