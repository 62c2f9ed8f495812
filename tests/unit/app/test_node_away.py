"""What is said of a node or a coordinator that is not there: nothing goes on, and the way out is in sight."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len
from tests.fixtures.make_recordings import recording
from tests.support.scripted_feed import app_over, feed_of, settled
from tests.unit.app.test_dashboard_text import fold, run

from sapo_desktop.commands.nodes import dashboard
from sapo_desktop.dashboard.look import UNICODE
from sapo_desktop.dashboard.screens.dashboard import empty_chart_text
from sapo_desktop.dashboard.screens.swarm import screen as swarm_screen
from sapo_desktop.dashboard.state import DashboardState, NodeLink, apply_event
from sapo_desktop.dashboard.widgets import panels
from sapo_desktop.dashboard.widgets.frame import header_line
from sapo_desktop.linear import facts
from sapo_desktop.paths import Home
from sapo_desktop.services.nodes import supervisor
from sapo_swarm.events import Phase, RunStarted, State, StateChanged, SwarmUpdated, Vitals

BUSY = Vitals(time=9.0, memory=10**9, cpu_percent=380.0, celsius=71.0, tokens_per_s=1870.0, rounds_per_hour=140.0)

AGAIN = NodeLink(False, "The node is starting again", 2.0, starting=True)


@pytest.mark.parametrize("starting", [False, True], ids=["gone", "being started again"])
def test_of_a_node_that_is_not_there_nothing_is_shown_as_going_on(starting: bool) -> None:
    at_work = fold([run(), Phase(time=1.0, round=0, phase="generate", fraction=0.5, eta_s=59.0)])
    assert "eta 59 s" in panels.now_panel(at_work, 2.0, 70, 8, UNICODE).plain
    away = apply_event(at_work, NodeLink(False, "The node is away", 2.0, ended=not starting, starting=starting))
    text = panels.now_panel(away, 2.0, 70, 8, UNICODE).plain
    assert ("The node is starting again" if starting else "The node is gone: space starts it again") in text
    assert "eta" not in text
    assert UNICODE.now not in text
    assert not re.search(r"\d", panels.machine_tiles(away, 60).plain)


@pytest.mark.parametrize(
    "away",
    [
        fold([]),
        apply_event(fold([run(mode="swarm")]), NodeLink(False, "The node is gone", 2.0, ended=True)),
        apply_event(fold([run(), Phase(time=1.0, round=0, phase="evaluate", fraction=0.5, eta_s=9.0)]), AGAIN),
    ],
    ids=["opening its model", "gone", "being started again"],
)
def test_no_screen_says_that_a_node_trains_alone_or_waits_for_a_round_while_none_is_there(away: DashboardState) -> None:
    said = [
        swarm_screen.swarm_overview(away, 2.0, 76, 20, UNICODE).plain,
        empty_chart_text(away, 2.0),
        *facts.swarm_facts(away, 2.0),
    ]
    for untrue in ("trains alone", "Waiting for the first", "evaluating"):
        assert untrue not in "\n".join(said)


async def test_while_a_node_is_starting_again_the_footer_has_no_pause_and_space_says_so() -> None:
    script: list[Any] = [run(), AGAIN]
    app = app_over(script)
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await settled(pilot)
        await pilot.press("space")
        lines = await settled(pilot)
        assert any("The node is starting " in line for line in lines)
        assert "space" not in lines[-1]
        assert feed_of(app).commands == []


async def test_a_pause_that_waits_for_the_model_to_open_is_taken_back_by_space() -> None:
    later = "Loading starter-1m · pauses once the model is open"
    app = app_over([StateChanged(time=1.0, state="starting", sentence=later, reason="person")])
    async with app.run_test(size=(120, 36)) as pilot:
        assert "space resume" in (await settled(pilot))[-1]
        await pilot.press("space")
        await settled(pilot)
        assert feed_of(app).commands == [("resume", {})]


def test_where_no_swarm_can_be_joined_from_here_no_key_is_named_for_it() -> None:
    alone = fold([run()])
    told = swarm_screen.swarm_overview(alone, 2.0, 76, 20, UNICODE, keys=False).plain
    assert "Join one:   in a terminal: sapo-desktop node --join INVITE" in told
    assert "Join one:   j, or in a terminal: " in swarm_screen.swarm_overview(alone, 2.0, 76, 20, UNICODE).plain


def test_of_a_swarm_that_nobody_tells_of_any_more_the_age_is_told_in_every_place() -> None:
    events = list(recording("swarm", 2, 1))
    at_work = [
        *events,
        msgspec.structs.replace(BUSY, time=events[-1].time),
    ]
    at_work += [Phase(time=events[-1].time, round=2, phase="generate", fraction=0.62, eta_s=3.0)]
    state, now = fold(at_work), events[-1].time
    assert "62 % done" in facts.now_sentence(state, now)
    away = apply_event(state, NodeLink(False, "The node is gone", now, ended=True))
    told = "\n".join([*facts.dashboard_facts(away, now + 4020), *facts.swarm_facts(away, now + 4020)])
    for stale in ("% done", "left", "tokens a second", "processor", "degrees"):
        assert stale not in told, stale
    assert "As it was 67 min ago: " in told
    drawn = swarm_screen.swarm_overview(away, now + 4020, 76, 6, UNICODE)
    assert drawn.plain.startswith("As it was 67 min ago: ")
    assert "$success" not in str(drawn.spans)


@pytest.mark.parametrize(("state", "old"), [("paused", True), ("running", False)])
def test_what_a_paused_node_told_of_its_swarm_is_shown_with_its_age(state: State, old: bool) -> None:
    events = list(recording("swarm", 2, 1))
    last = next(event.time for event in reversed(events) if isinstance(event, SwarmUpdated))
    shown = fold([*events, StateChanged(time=events[-1].time, state=state, sentence="")])
    assert "As it was" not in swarm_screen.swarm_overview(shown, last + 5, 76, 6, UNICODE).plain
    later = swarm_screen.swarm_overview(shown, last + 720, 76, 6, UNICODE)
    assert later.plain.startswith("As it was 12 min ago: ") == old
    assert ("$success" in str(later.spans)) != old


@pytest.mark.parametrize("state", ["paused", "running"])
def test_a_node_that_pauses_has_no_speed_and_no_end_in_sight(state: State) -> None:
    events = list(recording("silo", 3, 1))
    started = next(event for event in events if isinstance(event, RunStarted))
    events[events.index(started)] = msgspec.structs.replace(started, rounds_planned=100)
    events += [BUSY]
    shown = fold([*events, StateChanged(time=9.0, state=state, sentence="")])
    drawn = [panels.machine_panel(shown, 9.0, 60, 8, UNICODE), panels.machine_tiles(shown, 60)]
    drawn += [panels.now_panel(shown, 9.0, 70, 8, UNICODE)]
    for text, speed in zip(drawn, ("140", "1,870", "done in"), strict=True):
        assert (speed in text.plain) == (state == "running")


def test_a_figure_that_cannot_be_read_any_more_has_a_gap_at_the_end_of_its_history() -> None:
    unread = msgspec.structs.replace(BUSY, cpu_percent=None)
    lines = panels.machine_panel(fold([run(), BUSY, BUSY, unread, unread]), 9.0, 60, 8, UNICODE).plain.splitlines()
    endings = {line.split()[0]: [char in UNICODE.bars for char in line[-4:]] for line in lines}
    assert endings["memory"] == [True, True, True, True]
    assert endings["cpu"] == [True, True, False, False]


def test_the_log_says_once_when_a_node_was_gone_and_that_nothing_finished_is_lost() -> None:
    gone = NodeLink(False, "The node is gone", 2.0, ended=True)
    log = apply_event(apply_event(fold([run()]), gone), gone).log
    assert [line.text for line in log][-1:] == ["The node is gone. Finished rounds are kept; space starts it again."]
    assert sum("is gone" in line.text for line in log) == 1


def test_a_reason_too_long_for_the_header_leaves_the_way_out_in_it() -> None:
    failed = StateChanged(time=1.0, state="failed", sentence="The scorer worker ended while it started. " * 3)
    away = apply_event(fold([run(), failed]), NodeLink(False, "The node is gone", 2.0, ended=True))
    assert "5 says why · space starts the node again" in header_line(away, 9.0, 80, 1, UNICODE).plain


@pytest.mark.parametrize(("nodes", "said"), [(1, "Nobody else"), (2, "comes in a moment")])
def test_where_there_are_others_an_empty_list_is_not_said_to_be_nobody(nodes: int, said: str) -> None:
    news = next(event for event in recording("swarm", 2, 1) if isinstance(event, SwarmUpdated))
    alone = msgspec.structs.replace(news, peers=(), nodes=nodes)
    assert said in swarm_screen.peer_rows(alone, 76, UNICODE).plain
    away = msgspec.structs.replace(alone, connected=False)
    assert "coordinator is away" in swarm_screen.peer_rows(away, 76, UNICODE).plain


def test_a_name_in_signs_of_two_columns_moves_no_column() -> None:
    news = next(event for event in recording("swarm", 2, 1) if isinstance(event, SwarmUpdated))
    peers = tuple(
        msgspec.structs.replace(peer, name="量子コンピュータ研究会のノード", model="模型") for peer in news.peers
    )
    lines = swarm_screen.peer_rows(msgspec.structs.replace(news, peers=peers), 76, UNICODE).plain.splitlines()
    assert {cell_len(line) for line in lines[1:]} == {cell_len(lines[1])}
    assert cell_len(lines[1]) <= 76


def test_a_peer_of_which_nothing_is_taken_says_so_in_its_row() -> None:
    news = next(event for event in recording("swarm", 2, 1) if isinstance(event, SwarmUpdated))
    news = msgspec.structs.replace(news, unheard=(news.peers[1].node, "somebody who is gone"))
    rows = swarm_screen.peer_rows(news, 76, UNICODE).plain.splitlines()
    told = [row for row in rows if "nothing taken" in row]
    assert [row.split()[0] for row in told] == [news.peers[1].name]
    assert {cell_len(row) for row in rows[1:]} == {cell_len(rows[1])}


async def test_a_node_that_takes_its_time_to_stop_leaves_no_empty_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, lines = asyncio.Event(), list[str]()

    async def until_told(_home: Home) -> None:
        await told.wait()

    def heard(line: str, **_how: bool) -> None:
        lines.append(line)
        told.set()

    monkeypatch.setattr(supervisor, "shut_down_node", until_told)
    monkeypatch.setattr(dashboard, "PATIENCE_S", 0.01)
    monkeypatch.setattr(dashboard, "print", heard, raising=False)
    assert await dashboard.stop_node(Home(tmp_path, tmp_path, tmp_path, tmp_path, tmp_path)) == 0
    assert lines[0] == "The node saves and exits …"
