"""What the swarm page says of first successes, and the three figures that have one name and one value everywhere."""

from __future__ import annotations

import re
import time

import msgspec
import pytest
from rich.cells import cell_len
from tests.fixtures.make_recordings import recording
from tests.support.records import finished, group_of, opened

from sapo_desktop.commands.nodes.control import describe_status
from sapo_desktop.dashboard.feed import _HISTORY
from sapo_desktop.dashboard.look import ASCII, UNICODE, to_ascii
from sapo_desktop.dashboard.screens.dashboard import share_lines
from sapo_desktop.dashboard.screens.swarm.screen import exchange_summary, peer_rows, swarm_overview
from sapo_desktop.dashboard.screens.swarm.trail import in_a_line, in_order, trail_details, trail_steps, trail_table
from sapo_desktop.dashboard.state import DashboardState, apply_event
from sapo_desktop.dashboard.widgets.chart import chart_legend
from sapo_desktop.dashboard.widgets.plot import ChartView
from sapo_desktop.services.swarms.trial import MEANINGS, contribution_rows
from sapo_swarm.events import Event, FirstSuccess, SwarmUpdated
from sapo_swarm.node.control_api import NodeStatus
from sapo_swarm.node.swarm_stats import SHARE_WINDOW, SwarmStats
from sapo_swarm.protocol.client import ExchangeResult
from sapo_swarm.types import Peer

ADA = "a" * 26
HOSTILE = "[/bad] \x1b[31m\u202eA"
SWARM = list(recording("swarm", 6, 11))
NEWS = next(event for event in SWARM if isinstance(event, SwarmUpdated))


def fold(*events: Event) -> DashboardState:
    state = DashboardState()
    for event in events:
        state = apply_event(state, event)
    return state


def taught(round_: int, task: str, groups: int = 1) -> Event:
    return msgspec.structs.replace(finished(round_), external_groups=groups, taught={task: groups})


def named(name: str) -> SwarmUpdated:
    return msgspec.structs.replace(NEWS, peers=(msgspec.structs.replace(NEWS.peers[0], node=ADA, name=name),))


def came(task: str, round_: int, node: str = ADA) -> FirstSuccess:
    return FirstSuccess(time=1e9, round=round_, task=task, node=node, step=4)


LEARNED = [
    came("bf", 11),
    taught(12, "bf", 2),
    taught(17, "bf"),
    FirstSuccess(round=20, task="bf", taught=3, since=12, until=17),
]
OPEN = [came("gcd", 3), taught(4, "gcd")]
FIRST = [FirstSuccess(round=1, task="lcm"), came("lcm", 6)]
EVERY = fold(opened(0), *FIRST, *OPEN, *LEARNED, came("maze", 30), FirstSuccess(round=40, task="sums"), named("Ada"))


def test_the_trail_says_who_was_first_what_was_trained_on_and_when_it_was_solved_here() -> None:
    assert trail_steps(EVERY.trails["bf"]) == [
        "Ada's success came in round 12",
        "trained on 3 groups of others with one in rounds 13 to 18",
        "solved here in round 21",
    ]
    assert trail_steps(EVERY.trails["gcd"])[1:] == [
        "trained on 1 group of others with one in round 5",
        "not solved here yet",
    ]
    assert trail_steps(EVERY.trails["lcm"]) == ["solved here in round 2", "Ada's success came in round 7"]
    assert trail_steps(EVERY.trails["maze"])[1:] == ["not trained on yet", "not solved here yet"]
    assert trail_steps(EVERY.trails["sums"]) == ["solved here in round 41"]
    untaught = fold(came("bf", 3), FirstSuccess(round=5, task="bf"))
    assert trail_steps(untaught.trails["bf"])[1:] == ["none was trained on before", "solved here in round 6"]
    earlier = fold(msgspec.structs.replace(opened(9), solved=("bf",)), came("bf", 12))
    assert trail_steps(earlier.trails["bf"])[0] == "solved here before this record began"


def test_what_was_learned_after_others_comes_first_then_what_only_others_solved() -> None:
    assert [trail.task for trail in in_order(EVERY)] == ["bf", "maze", "gcd", "sums", "lcm"]


@pytest.mark.parametrize("width", [36, 66, 76, 116, 196])
@pytest.mark.parametrize("height", [1, 2, 4, 20])
def test_it_fits_and_says_how_many_there_is_no_room_for(width: int, height: int) -> None:
    for glyphs in (UNICODE, ASCII):
        lines = trail_table(EVERY, 0.0, width, height, glyphs).plain.splitlines()
        assert len(lines) <= height
        assert all(len(line) <= width for line in lines)
        if height == 4:
            assert lines[-1] == "3 more: w"
    assert len(in_a_line(EVERY, width)) <= width
    assert all(line.isascii() for line in to_ascii(trail_details(EVERY, width).plain).splitlines())


def test_a_low_page_tells_of_one_in_a_line_and_a_tall_one_leaves_it_to_the_table() -> None:
    state = apply_event(fold(*SWARM), came("bf", 3))
    assert "First solved bf: " in exchange_summary(state, 0.0, 76, 7, UNICODE).plain
    assert len(exchange_summary(state, 0.0, 76, 7, UNICODE).plain.splitlines()) <= 7
    assert "First solved" not in exchange_summary(state, 0.0, 116, 9, UNICODE).plain
    assert in_a_line(DashboardState(), 76) == ""
    assert "No task is solved yet" in trail_table(DashboardState(), 0.0, 76, 4, UNICODE).plain
    assert in_a_line(EVERY, 76).endswith("here in 21 · 4 more: w")


@pytest.mark.parametrize("width", range(66, 121, 6))
def test_of_a_peer_with_a_wide_name_the_line_keeps_its_end(width: int) -> None:
    """A form is chosen by its columns: the shortest one fits."""
    said = in_a_line(fold(*LEARNED, named("張三豐的筆記本電腦節點甲乙丙丁")), width)
    assert cell_len(said) <= width
    assert re.search(r"here (in )?(round )?21 · w$", said), said


def test_a_name_of_a_peer_is_shown_plain_and_without_one_its_id_is() -> None:
    state = fold(came("bf", 3), named(HOSTILE))
    for text in (trail_table(state, 0.0, 116, 5, UNICODE), trail_details(state, 80)):
        assert "\x1b" not in text.plain
        assert "\u202e" not in text.plain
        assert "[/bad]" in text.plain
    assert "aaaaaaaa's success" in trail_details(fold(came("bf", 3)), 80).plain


def test_a_dashboard_that_connects_later_has_the_same_trails_as_one_that_saw_every_group() -> None:
    live = [opened(0), came("bf", 2), taught(3, "bf"), FirstSuccess(round=5, task="bf", taught=1, since=3, until=3)]
    live += [group_of(5, 0, first=True), finished(5), named("Ada")]
    later = [event for event in live if type(event).__struct_config__.tag in _HISTORY]
    assert len(later) < len(live)
    assert fold(*live).trails == fold(*later).trails
    told = [line.text for line in fold(*live).log if "First success" in line.text]
    assert told == ["First success at bf, in round 6"], "once, not for the group again"
    assert [m.letter for m in fold(*live).moments].count("S") == 1


def test_own_row_is_marked_and_shows_the_same_figures_as_the_overview_and_the_chart() -> None:
    """The board is looked at more seldom than the share is told; on the screen they were 25.0 and 20.0 %."""
    stats = SwarmStats("https://x", ADA)
    stats.peers = (
        Peer(node=ADA, name="Ada", model="m", groups=5, share=0.2, uptake=3, seen_s=1.0),
        Peer(node="b" * 26, name="Bo", model="m", groups=20, share=0.8, uptake=9, seen_s=1.0),
    )
    stats.exchanged(ExchangeResult(True, "Connected", mine=1, total=4, window_s=60.0), 0.0)
    stats.trained(3, 8)
    state = fold(SWARM[0], finished(0), stats.news({}, 0.0))
    assert state.swarm is not None
    own = next(line for line in peer_rows(state.swarm, 100, UNICODE).plain.splitlines() if "Ada (me)" in line)
    assert "25.0 %" in own
    assert "20.0 %" not in own
    assert "(me)" not in peer_rows(state.swarm, 100, UNICODE).plain.replace("Ada (me)", "")
    assert contribution_rows(state.swarm) == (("my share", "25.0 %"), ("uptake", "0"), ("external share", "37.5 %"))
    page = swarm_overview(state, 0.0, 76, 4, UNICODE).plain
    line = chart_legend(share_lines(state), [], ChartView(), None, 70, UNICODE, lambda name: name).plain
    for label, value in (("my share", "25.0 %"), ("external share", "37.5 %")):
        assert f"{label} {value}" in " ".join(page.split())
        assert f"{label} {value}" in line
    assert str(SHARE_WINDOW) in MEANINGS["external share"]


STATUS = NodeStatus(
    state="running",
    sentence="Scoring",
    reason="",
    since=0.0,
    pid=1,
    run_id="r",
    folder="",
    mode="swarm",
    model="m",
    backend="b",
    device="d",
    round=3,
    rounds_planned=0,
    phase=None,
    phase_fraction=0.0,
    eta_s=-1.0,
    seq=0,
    started=0.0,
    version="",
)


@pytest.mark.parametrize(
    ("state", "sentence", "said"),
    [
        ("paused", "Paused · space goes on", "Paused for X · sapo-desktop resume goes on"),
        (
            "paused",
            "Paused until 22:52 · space goes on now",
            "Paused for X: until 22:52 · sapo-desktop resume goes on now",
        ),
        (
            "paused",
            "Paused: on battery · goes on plugged in · r runs anyway for 1 h",
            "Paused for X: on battery · goes on plugged in · sapo-desktop run-anyway overrides it for 1 h",
        ),
        (
            "running",
            "Updating · runs anyway until 9:00, r ends that",
            "Running for X: Updating · runs anyway until 9:00, sapo-desktop run-anyway --off ends that",
        ),
        (
            "finishing",
            "Finishing round 5, then pausing · space goes on",
            "Finishing for X: round 5, then pausing · sapo-desktop resume goes on",
        ),
    ],
)
def test_a_verb_names_verbs_where_the_dashboard_names_keys(state: str, sentence: str, said: str) -> None:
    status = msgspec.structs.replace(STATUS, state=state, sentence=sentence, since=time.time())
    first = describe_status(status).splitlines()[0]
    assert re.sub(r" for \d+ s", " for X", first) == said


def test_the_status_verb_says_how_it_stands_with_the_swarm_and_the_same_figures() -> None:
    now, shares = time.time(), {"share": 0.25, "uptake": 3, "external_share": 0.375}
    news = msgspec.structs.replace(NEWS, time=now, sentence="Connected: 3 nodes.", **shares)
    status = STATUS
    assert describe_status(status, news).splitlines()[-2:] == [
        "Connected: 3 nodes.",
        "my share 25.0 % · uptake 3 · external share 37.5 %",
    ]
    away = msgspec.structs.replace(news, connected=False, sentence="h:1 cannot be reached: nothing listens there.")
    assert "\nAlone: h:1 cannot be reached" in describe_status(status, away)
    assert "share" not in describe_status(status)


def test_a_share_is_drawn_as_it_was_told_whatever_the_smoothing() -> None:
    events: list[Event] = [SWARM[0]]
    for number in range(40):
        news = msgspec.structs.replace(
            NEWS, share=0.5 if number < 39 else 0.1, external_share=0.4 if number < 39 else 0.2
        )
        events += [finished(number), news]
    line = chart_legend(
        share_lines(fold(*events)), [], ChartView(smooth=20), None, 70, UNICODE, lambda name: name
    ).plain
    assert "my share 10.0 %" in line
    assert "external share 20.0 %" in line
