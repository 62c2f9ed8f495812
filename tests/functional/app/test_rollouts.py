"""Screen 3 under a pilot: filters, pages over a journal of any length, comparing, right answers, copy, export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from tests.fixtures.make_recordings import recording
from tests.support.many_groups import group_number, journal_with
from tests.support.node_process import sapo
from tests.support.records import finished
from tests.support.scripted_feed import SWARM, WIDE, ScriptedFeed, app_over, settled
from textual.pilot import Pilot
from textual.widgets import Input

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.history.groups import NEWEST, PAGE, GroupSource, JournalGroups
from sapo_desktop.dashboard.screens.rollouts.detail import GroupList
from sapo_desktop.dashboard.screens.rollouts.screen import RolloutsScreen
from sapo_desktop.services.tasks.looking import TruthLookup
from sapo_swarm.events import GroupRecorded, decode_event
from sapo_swarm.node.journal import Journal
from sapo_swarm.scoring.scorer import Scorer, ScorerUnavailable
from sapo_swarm.types import Group, Question, Rollout, TaskRef

COUNT = 3 * PAGE + 30


@dataclass
class JournalFeed(ScriptedFeed):
    """A node whose journal lies here."""

    journal: JournalGroups | None = None

    def groups(self) -> GroupSource | None:
        return self.journal

    def upto(self) -> int:
        return NEWEST


def over_journal(path: Path, cache: Path | None = None) -> SapoDashboard:
    return SapoDashboard(JournalFeed(list(recording("silo", 3, 12)), journal=JournalGroups(path)), cache=cache)


async def listed(pilot: Pilot[object]) -> RolloutsScreen:
    """The screen, once it lists what is wanted and the whole journal is in the index."""
    await settled(pilot)
    screen = pilot.app.screen
    assert isinstance(screen, RolloutsScreen)
    while not screen.current or screen.newest.indexed < screen.newest.of or not screen.newest.of:
        await pilot.pause(0.01)
    await settled(pilot)
    return screen


def number(event: GroupRecorded) -> int:
    return event.group.question.ref.seed


async def test_rollouts_are_filtered_by_task_source_reward_use_and_text() -> None:
    async with app_over(SWARM).run_test(size=WIDE) as pilot:
        await pilot.press("3")
        screen = await listed(pilot)
        everything = screen.newest.total
        await pilot.press("o")
        assert {event.group.source for event in (await listed(pilot)).shown.groups} == {"own"}
        await pilot.press("o")
        assert {event.group.source for event in (await listed(pilot)).shown.groups} == {"external"}
        await pilot.press("escape", "w", "w")
        assert all(event.group.nonzero_advantage for event in (await listed(pilot)).shown.groups)
        await pilot.press("escape", "u", "u")
        assert not any(event.trained for event in (await listed(pilot)).shown.groups)
        await pilot.press("escape", "v")
        assert {event.first_solved for event in (await listed(pilot)).shown.groups} == {True}
        await pilot.press("escape", "t")
        assert len({event.group.question.ref.dataset for event in (await listed(pilot)).shown.groups}) == 1
        await pilot.press("escape")
        assert (await listed(pilot)).newest.total == everything
        await pilot.press("slash", *"53 +")
        assert 0 < (await listed(pilot)).newest.total < everything
        await pilot.press("enter", "t")
        assert (await listed(pilot)).filter.text == "53 +"
        await pilot.press("escape")
        assert (await listed(pilot)).newest.total == everything
        assert screen.query_one("#search", Input).value == ""


async def test_a_letter_that_changes_no_row_draws_no_row_again(tmp_path: Path) -> None:
    path = journal_with(tmp_path / "journal.db", 20)
    async with over_journal(path).run_test(size=WIDE) as pilot:
        await pilot.press("3", "slash", *"quest")
        screen = await listed(pilot)
        rows = list(screen.query_one("#groups", GroupList).options)
        assert rows
        await pilot.press("i")
        await listed(pilot)
        assert screen.filter.text == "questi"
        assert all(a is b for a, b in zip(rows, screen.query_one("#groups", GroupList).options, strict=True))


async def test_walking_down_goes_through_every_page_and_back(tmp_path: Path) -> None:
    path = journal_with(tmp_path / "journal.db", COUNT)
    async with over_journal(path, tmp_path / "cache").run_test(size=WIDE) as pilot:
        await pilot.press("3")
        screen = await listed(pilot)
        assert number(screen.shown.groups[0]) == COUNT - 1
        listing = screen.query_one("#groups", GroupList)
        for page in range(1, 4):
            listing.highlighted = len(screen.shown.groups) - 1
            await pilot.press("down")
            await listed(pilot)
            assert number(screen.shown.groups[0]) == COUNT - 1 - page * PAGE
            assert listing.highlighted == 0
        assert any("181-210 of 210" in line for line in await settled(pilot))
        await pilot.press("end", "down")
        await listed(pilot)
        assert screen.chosen is not None
        assert number(screen.chosen) == 0, "the oldest; there is nothing after it"
        for _ in range(3):
            listing.highlighted = 0
            await pilot.press("up")
            await listed(pilot)
            assert screen.chosen is not None
        assert screen.before == 0
        await pilot.press("end")
        await listed(pilot)
        await pilot.press("home")
        await listed(pilot)
        assert screen.chosen is not None
        assert number(screen.chosen) == COUNT - 1
    assert len(list((tmp_path / "cache" / "rollouts").glob("*.db"))) == 1


async def test_a_key_that_repeats_at_the_edge_of_a_page_leads_one_page_on(tmp_path: Path) -> None:
    """The list said 301-360 of 324 and went no further, with pages still to come."""
    path = journal_with(tmp_path / "journal.db", COUNT)
    async with over_journal(path).run_test(size=WIDE) as pilot:
        await pilot.press("3")
        screen = await listed(pilot)
        listing = screen.query_one("#groups", GroupList)
        for page in range(1, 4):
            listing.highlighted = len(screen.shown.groups) - 1
            for _ in range(5):  # all before the page is there
                listing.action_cursor_down()
            await listed(pilot)
            assert screen.before == page * PAGE
            assert number(screen.shown.groups[0]) == COUNT - 1 - page * PAGE
        for page in (2, 1, 0):
            listing.highlighted = 0
            for _ in range(5):
                listing.action_cursor_up()
            await listed(pilot)
            assert screen.before == page * PAGE


async def test_browsing_down_holds_the_list_still_and_home_catches_up(tmp_path: Path) -> None:
    path = journal_with(tmp_path / "journal.db", 40)
    node = Journal(path)
    async with over_journal(path).run_test(size=WIDE) as pilot:
        await pilot.press("3")
        screen = await listed(pilot)
        await pilot.press("down", "down")
        node.append([group_number(40)])
        while screen.newest.total < 41:
            await pilot.pause(0.05)
        lines = await settled(pilot)
        assert number(screen.shown.groups[0]) == 39
        assert any("newer ones: Home" in line for line in lines)
        await pilot.press("home")
        await listed(pilot)
        assert number(screen.shown.groups[0]) == 40
        assert screen.query_one("#groups", GroupList).highlighted == 0
        node.append([group_number(41)])
        while number(screen.shown.groups[0]) < 41:  # at the top the list follows
            await pilot.pause(0.05)
    node.close()


async def test_two_attempts_are_compared_in_signs_as_well_as_colours() -> None:
    async with app_over(SWARM).run_test(size=WIDE) as pilot:
        await pilot.press("3", "w", "w")
        await listed(pilot)
        await pilot.press("x")
        text = "\n".join(await settled(pilot))
        assert "Two attempts compared" in text
        assert "[-" in text
        assert "-]{+" in text
        before = text
        await pilot.press("b")
        assert "\n".join(await settled(pilot)) != before
        await pilot.press("escape")
        await settled(pilot)
        assert isinstance(pilot.app.screen, RolloutsScreen)


async def test_a_right_answer_is_shown_when_asked_for(tmp_path: Path) -> None:
    ref = TaskRef("basic_arithmetic", "starter", 5)
    async with Scorer() as scorer:
        question = (await scorer.questions([ref]))[0]
        assert isinstance(question, Question)
        truth = await scorer.truth(question)
        other = await scorer.truth(Question(ref, "another question", "0" * 64))
        assert (await scorer.score(ref, [f"<answer>{truth}</answer>"])).rewards == (1.0,)
    assert other == "", "these coordinates make another question here: its answer would mislead"
    group = Group(question, (Rollout("I do not know", "stop", 0.0), Rollout("no", "stop", 0.0)))
    journal = Journal(tmp_path / "journal.db")
    journal.append([GroupRecorded(round=0, group=group, trained=False)])
    journal.close()
    async with over_journal(tmp_path / "journal.db").run_test(size=WIDE) as pilot:
        await pilot.press("3")
        screen = await listed(pilot)
        assert not any("a right answer" in line for line in await settled(pilot))
        await pilot.press("a")
        text = "\n".join(await settled(pilot))
        assert f"a right answer  {truth}" in text
        await pilot.press("a")
        assert not any("a right answer" in line for line in await settled(pilot))
        await screen.close_truths()


async def test_a_worker_that_did_not_start_is_asked_again_for_a_right_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    question = Question(TaskRef("basic_arithmetic", "starter", 5), "1 + 1", "0" * 64)
    said: list[str | Exception] = [ScorerUnavailable("no more processes"), "2"]

    async def truth(_scorer: Scorer, _question: Question) -> str:
        found = said.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(Scorer, "truth", truth)
    truths = TruthLookup()
    assert [await truths.of(question) for _ in range(3)] == ["not known: no more processes", "2", "2"]
    await truths.close()


async def test_the_chosen_group_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    app = app_over(SWARM)
    monkeypatch.setattr(app, "copy_to_clipboard", copied.append)
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("3")
        screen = await listed(pilot)
        await pilot.press("c")
        assert screen.chosen is not None
        assert screen.chosen.group.question.prompt in copied[0]
        assert "reward" in copied[0]


async def test_what_fits_the_filter_is_exported(tmp_path: Path) -> None:
    path, out = journal_with(tmp_path / "journal.db", COUNT), tmp_path / "out.jsonl"
    async with over_journal(path, tmp_path / "cache").run_test(size=WIDE, notifications=True) as pilot:
        await pilot.press("3", "v", "e")
        await settled(pilot)
        pilot.app.screen.query_one("#file", Input).value = str(path)
        await pilot.press("enter")
        assert any("already" in line for line in await settled(pilot))
        pilot.app.screen.query_one("#file", Input).value = str(out)
        await pilot.press("enter")
        await settled(pilot)
    events = [decode_event(line) for line in out.read_bytes().splitlines()]
    assert [number(e) for e in events if isinstance(e, GroupRecorded)] == [1]


async def test_a_journal_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"nothing of the kind" * 100)
    async with over_journal(path).run_test(size=WIDE) as pilot:
        await pilot.press("3")
        screen = pilot.app.screen
        assert isinstance(screen, RolloutsScreen)
        while not screen.shown.problem:
            await pilot.pause(0.01)
        assert any("Cannot read the journal" in line for line in await settled(pilot))


def test_the_verb_does_the_same_without_a_screen(tmp_path: Path) -> None:
    path, out = journal_with(tmp_path / "journal.db", 90), tmp_path / "out.jsonl"
    listed = sapo(tmp_path / "home", "rollouts", str(path), "--text", "question 4", "--source", "local", "--limit", "3")
    lines = listed.stdout.splitlines()
    assert len(lines) == 4
    assert "local" in lines[0]
    assert "groups fit" in lines[-1]
    found = sapo(tmp_path / "home", "rollouts", str(path), "--first-solved", "--json").stdout.splitlines()
    assert [number(decode_event(line.encode())) for line in found] == [1]  # type: ignore[arg-type]
    sapo(tmp_path / "home", "rollouts", str(path), "--reward", "all right", "-o", str(out))
    assert len(out.read_bytes().splitlines()) == len(range(0, 90, 11))
    refused = sapo(tmp_path / "home", "rollouts", str(path), "--task", "no_such")
    assert refused.returncode == 2
    assert "There is no group of the task" in refused.stderr
    shown = sapo(tmp_path / "home", "rollouts", str(path), "--show", "7")
    assert "question 5?" in shown.stdout
    assert "a right answer" in shown.stdout


async def test_while_there_are_examples_only_the_rollouts_are_said_to_come_with_practice() -> None:
    step = msgspec.structs.replace(finished(0), examples=4, local_groups=0, reward_local=None)
    app = app_over([SWARM[0], step])
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("3")
        assert any("Rollouts come with practice, after the examples." in line for line in await settled(pilot))
