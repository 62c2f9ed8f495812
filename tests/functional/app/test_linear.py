"""The dashboard in lines: the facts of the screens as sentences, news appended once, what is typed done."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.scripted_feed import SILO, SWARM, ScriptedFeed

from sapo_desktop.commands.nodes import dashboard
from sapo_desktop.dashboard.replay import ReplayFeed, place_in
from sapo_desktop.dashboard.state import NodeLink, QuitChoice
from sapo_desktop.linear.questions import FirstRunQuestions, TableQuestions, TypedLines
from sapo_desktop.linear.session import LinearSession
from sapo_desktop.paths import Home
from sapo_desktop.services import first_run
from sapo_desktop.services.first_questions import LIST, OWN, BaseGroup, BaseOffer, FirstRunInfo
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.tasks.wizard.actions import HomeTasks
from sapo_desktop.services.tasks.wizard.interface import WizardAnswers
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Event, LogLine, RoundFinished, StateChanged, Vitals
from sapo_swarm.tasks.own.folder import read_task

DRAWN = re.compile("[\u2500-\u259f\u25a0-\u25ff\u2800-\u28ff\x1b\r]")
"""Boxes, blocks, marks, braille, escape sequences, a cursor that goes back."""


class LiveFeed(ScriptedFeed):
    """Tells what is added to the script later, too. quiet: everything is told, and taken in."""

    more: asyncio.Event
    quiet: asyncio.Event
    opened = 0.0

    def now(self) -> float:
        return self.opened or super().now()

    async def events(self) -> AsyncIterator[Event | NodeLink]:
        told = 0
        while True:
            while told < len(self.script):
                told += 1
                yield self.script[told - 1]
            self.more.clear()
            self.quiet.set()
            await self.more.wait()

    def tell(self, *events: Event | NodeLink) -> None:
        self.script += events
        self.quiet.clear()
        self.more.set()


class Person:
    """Types into a session and hears what it says."""

    def __init__(self, feed: LiveFeed | ReplayFeed) -> None:
        out, self._typing = os.pipe()
        self.heard: list[str] = []
        self.verbs: list[list[str]] = []
        self.feed = feed
        self.starts = 0
        self.during = ""
        self._said = asyncio.Event()
        self.session = LinearSession(feed, TypedLines(out), self.hear, self._verb, self._start, self._make_task)

    def hear(self, line: str) -> None:
        self.heard.append(line)
        self._said.set()

    async def _start(self) -> None:
        self.starts += 1

    async def _make_task(self) -> None:
        self.hear("a table is asked for")

    async def _verb(self, arguments: list[str]) -> int:
        self.verbs.append(arguments)
        if self.during:
            self.feed.tell(LogLine(time=self.feed.now() + 1, level="info", text=self.during))
            await self.feed.quiet.wait()
        self.hear(f"{arguments[0]} is done")
        return 0

    def type(self, *lines: str) -> None:
        os.write(self._typing, "".join(f"{line}\n" for line in lines).encode())

    def hang_up(self) -> None:
        os.close(self._typing)

    async def hears(self, text: str) -> str:
        async with asyncio.timeout(20):
            while not (found := [line for line in self.heard if text in line]):
                self._said.clear()
                await self._said.wait()
        return found[-1]


@asynccontextmanager
async def sitting(events: list[Event]) -> AsyncIterator[tuple[Person, LiveFeed, asyncio.Task[QuitChoice | None]]]:
    feed = LiveFeed([*events])
    feed.more, feed.quiet, feed.opened = asyncio.Event(), asyncio.Event(), max(event.time for event in events) + 1
    person = Person(feed)
    session = asyncio.create_task(person.session.run())
    try:
        await person.hears("Machine:")
        yield person, feed, session
    finally:
        session.cancel()
        await asyncio.gather(session, return_exceptions=True)


async def test_a_history_is_told_as_where_it_stands_and_news_once() -> None:
    async with sitting(SILO) as (person, feed, _):
        assert not any("First success" in line for line in person.heard), "history is no news"
        feed.tell(StateChanged(time=feed.opened, state="paused", sentence="Paused: on battery power", reason="battery"))
        await person.hears("Paused: on battery power")
        feed.tell(SILO[-1], LogLine(time=feed.opened, level="warning", text="Little disk is left"))
        assert await person.hears("Little disk") == "warning: Little disk is left"
        assert sum("on battery power" in line for line in person.heard) == 1
        feed.tell(
            NodeLink(False, "The node went away", feed.opened), NodeLink(False, "The node went away", feed.opened + 1)
        )
        feed.tell(LogLine(time=feed.opened, level="info", text="The end"))
        await person.hears("The end")
        assert sum("went away" in line for line in person.heard) == 1


async def test_news_are_told_also_after_the_clock_was_set_back() -> None:
    async with sitting(SILO) as (person, feed, _):
        vitals = Vitals(
            time=feed.opened,
            tokens_per_s=None,
            rounds_per_hour=None,
            memory=1,
            cpu_percent=None,
            celsius=None,
        )
        paused = StateChanged(time=feed.opened - 7200, state="paused", sentence="Paused: on battery", reason="battery")
        feed.tell(vitals, paused)
        await person.hears("Paused: on battery")
        feed.tell(LogLine(time=feed.opened - 7100, level="error", text="The disk is full"))
        assert await person.hears("The disk is full") == "error: The disk is full"


async def test_as_much_is_told_as_is_wanted() -> None:
    rounds = [event for event in SILO if isinstance(event, RoundFinished)]
    async with sitting(SILO) as (person, feed, _):
        again = replace(rounds[-1], time=feed.opened, round=rounds[-1].round + 1)
        person.type("news rounds")
        await person.hears("Telling every round")
        feed.tell(again)
        await person.hears(f"Round {again.round + 1}: local reward")
        person.type("news none", "news much")
        await person.hears("News are none now")
        feed.tell(LogLine(time=feed.opened, level="info", text="Nobody hears this"))
        person.type("")
        await person.hears(f"Round {again.round + 1}")
        assert not any("Nobody hears" in line for line in person.heard)


KEYS = {
    " ": ("pause", {}),
    "F": ("finish", {}),
    "z": ("snooze", {"for_s": 900}),
    "z 60": ("snooze", {"for_s": 3600}),
    "r": ("run_anyway", {"for_s": 3600}),
}


@pytest.mark.parametrize("key", KEYS)
async def test_the_same_keys_reach_the_node(key: str) -> None:
    async with sitting(SILO) as (person, feed, _):
        person.type(key, "?")
        await person.hears("Type one of these")
        assert feed.commands == [KEYS[key]]


async def test_every_line_of_the_help_is_true() -> None:
    async with sitting(SWARM) as (person, _, _task):
        for line, answer in {
            "": "Round 31, Generating 32 rollouts",
            "1": "This is ",
            "2": "My share",
            "3": "1. Round 30",
            "3 2": "Attempt 1 is",
            "5": "Held-out",
            "5 first success": "First success",
            "y": "y is nothing here",
            'chat "my': "A quotation mark is open",
        }.items():
            person.heard.clear()
            person.type(line)
            await person.hears(answer)
        person.type("4", "d", "config get run.model")
        await person.hears("config is done")
        assert person.verbs == [["models"], ["doctor"], ["config", "get", "run.model"]]


async def test_news_wait_until_a_verb_is_done() -> None:
    async with sitting(SILO) as (person, _, _task):
        person.during = "Something happened meanwhile"
        person.type("chat")
        await person.hears("Something happened meanwhile")
        assert person.heard[-2:] == ["chat is done", "Something happened meanwhile"]


@pytest.mark.parametrize(("answer", "left"), [("s", "stop"), ("b", "background")])
async def test_leaving_asks_what_becomes_of_the_node(answer: str, left: str) -> None:
    async with sitting(SILO) as (person, _, session):
        person.type("q", "", "q", answer)
        assert await session == left
        assert "Staying" in person.heard


async def test_a_node_that_is_gone_is_started_by_a_space_and_left_without_a_question() -> None:
    async with sitting(SILO) as (person, feed, session):
        feed.tell(NodeLink(False, "Another one comes", feed.opened, starting=True))
        await person.hears("Another one comes")
        person.type(" ")
        await person.hears("The node is starting")
        assert feed.commands == []
        feed.tell(NodeLink(False, "The node is gone", feed.opened, ended=True))
        assert "a line with one space starts the node again" in await person.hears("The node is gone")
        person.type(" ")
        await person.hears("Starting the node")
        assert person.starts == 2
        person.type("q")
        assert await session == "stop"


async def test_the_end_of_a_recording_is_told_once() -> None:
    person = Person(ReplayFeed(SILO, start=place_in(SILO, "97%"), clock=lambda: 0.0))
    session = asyncio.create_task(person.session.run())
    await person.hears("Machine:")
    assert not any("at its end" in line for line in person.heard)
    person.type("]")
    await person.hears("The recording is at its end")
    person.type("1", "q")
    assert await session is None
    assert sum("at its end" in line for line in person.heard) == 1


async def test_who_hangs_up_leaves_the_node_working() -> None:
    async with sitting(SILO) as (person, _, session):
        person.hang_up()
        assert await session == "background"


async def test_what_a_peer_wrote_does_nothing_to_the_terminal() -> None:
    async with sitting(SWARM) as (person, feed, _):
        feed.tell(LogLine(time=feed.opened, level="info", text="a \x1b[31mred\x07 \u202eline\r"))
        line = await person.hears("red")
        assert not re.search("[\x00-\x1f\u202e]", line)


async def answers(*lines: str, info: FirstRunInfo | None = None) -> tuple[object, list[str]]:
    out, into = os.pipe()
    os.write(into, "".join(f"{line}\n" for line in lines).encode())
    os.close(into)
    heard: list[str] = []
    return await FirstRunQuestions(TypedLines(out), heard.append).ask(info or FirstRunInfo()), heard


async def test_the_first_questions_have_answers_already() -> None:
    found, heard = await answers("", "", "", "", "2", "Ada")
    assert (found.mode, found.model, found.limits, found.name) == ("silo", "starter", "eco", "Ada")  # type: ignore[attr-defined]
    assert not any(DRAWN.search(line) for line in heard)


async def test_a_model_of_the_list_is_looked_at_as_one_that_is_typed() -> None:
    async def check(model: str) -> str:
        return f"{model} does not fit." if model.endswith("/large") else ""

    info = FirstRunInfo(models=(("owner/large", ""), ("another", ""), ("starter", "")), check=check)
    found, heard = await answers("", "", "", "1", "2", "", "my/large", "2", "my/small", "", "", info=info)
    assert found.model == "my/small"  # type: ignore[attr-defined]
    assert [line for line in heard if "not fit" in line] == ["owner/large does not fit.", "my/large does not fit."]
    assert "Type one, or q to leave" in heard


async def test_the_models_of_this_computer_are_numbered_answers() -> None:
    """What cannot be trained is said with its reason and has no number."""

    async def offers(_: bool) -> tuple[BaseGroup, ...]:
        new = BaseOffer("lmstudio:new", "cannot be trained", "", "the architecture new is not supported")
        here = BaseGroup(
            "On this computer", (new, BaseOffer("ollama:qwen:0.5b", "fits, 491 MB")), ("1 more is not listed.",)
        )
        return (here, BaseGroup("Bundled", (BaseOffer("starter", "a toy"),)))

    info = FirstRunInfo(models=(("starter", ""), (LIST, "")), offers=offers)
    found, heard = await answers("", "", "", "2", "1", "", "", info=info)
    assert found.model == "ollama:qwen:0.5b"  # type: ignore[attr-defined]
    assert "Not lmstudio:new: the architecture new is not supported" in heard
    assert "1 more is not listed." in heard
    assert "1, ollama:qwen:0.5b: fits, 491 MB. On this computer" in heard
    assert "2, starter: a toy. Bundled" in heard


async def test_the_first_questions_say_what_is_no_answer_and_can_be_left() -> None:
    found, heard = await answers("7", "swarm", "no invite", "q")
    assert found is None
    assert "7 is none of the 2 answers" in heard
    assert any("sapo://" in line and "An invite" in line for line in heard)


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home whose models are of the engine for tests, and a table of sums beside it."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "me"))
    home = Home.find()
    home.prepare()
    home.settings.write_text('[run]\ntrainer = "fake"\nmodel = "fake:0.3"\nlocal_groups = 4\n')
    rows = "".join(f"What is {n} and {n} in all?,{2 * n},{n}\n" for n in range(40))
    (tmp_path / "my sums.csv").write_text(f"question,answer,other\n{rows}")
    return home


async def test_the_first_questions_lead_from_a_table_to_a_model_on_it(own_home: Home, tmp_path: Path) -> None:
    """A wrong path, another answer column and another name are said; the model is tried before it is trained."""
    info = FirstRunInfo(
        hardware=(("fake", "tests"),),
        models=(("starter", "a toy"), ("fake:0.3", "a real one")),
        own_base="fake:0.3",
        tasks=(("starter", "nine tasks"), (OWN, "my own")),
    )
    out, into = os.pipe()
    typed = ["", "", "own", "", "", "", f"{tmp_path}/none.csv", f"'{tmp_path}/my sums.csv'", "answer", "other"]
    os.write(into, "".join(f"{line}\n" for line in [*typed, "answer", "answer", "name", "two_sums", "", ""]).encode())
    heard: list[str] = []
    given = await FirstRunQuestions(TypedLines(out), heard.append, HomeTasks(own_home)).ask(info)
    os.close(into)
    assert given is not None
    assert (given.model, given.tasks, given.task) == ("fake:0.3", OWN, "two_sums")
    assert "1, fake:0.3: a real one" in heard, "a toy cannot learn a table"
    text = "\n".join(heard)
    assert "none.csv" in next(line for line in heard if "No such file" in line)
    assert "Question: column question. Answer: column other." in text
    assert "Task two_sums: 32 rows to train on, 8 held out" in text
    assert "The model reads, for example: What is 0 and 0 in all?" in text
    assert re.search(r"Right before training: .* answers to \d+ training questions", text)
    assert heard[-1] == "Enter trains fake:0.3 on two_sums; q leaves, the task stays"
    assert read_task(own_home.tasks / "two_sums").spec.answer == "answer"
    assert not any(DRAWN.search(line) for line in heard)
    assert first_run.first_model(given, own_home) == ["two_sums"]
    assert store.find_model(own_home, "two_sums").config.tasks == ("two_sums",)


async def test_a_table_of_a_name_that_is_taken_is_replaced_after_a_yes_only(own_home: Home, tmp_path: Path) -> None:
    async def stored(*typed: str) -> tuple[str, str] | None:
        out, into = os.pipe()
        os.write(into, "".join(f"{line}\n" for line in typed).encode())
        os.close(into)
        tables = TableQuestions(HomeTasks(own_home), TypedLines(out), lambda _: None)
        return await tables._stored(WizardAnswers(f"{tmp_path}/my sums.csv", base="fake:0.3"))

    first = await stored("")
    assert first is not None
    assert first[0] == "my_sums"
    assert await stored("", "no", "others", "") == ("others", first[1])
    assert await stored("", "yes") == first
    assert await stored("file") is None


async def test_m_in_a_session_leads_from_a_table_to_a_model() -> None:
    async with sitting(SILO) as (person, _, _):
        person.type("m")
        await person.hears("a table is asked for")


async def test_a_start_without_any_model_left_asks_the_first_questions_again(
    own_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a model of the app's own choice would be made, unasked."""
    started: list[object] = []

    async def note(_: Home, _feed: object, given: object) -> str:
        started.append(given)
        return ""

    monkeypatch.setattr(dashboard, "_start", note)
    out, into = os.pipe()
    lines = dashboard._LinearStart(own_home, dashboard._feed(own_home))
    lines.first = FirstRunQuestions(TypedLines(out), lambda _: None)
    await lines.start()
    os.write(into, b"q\n")
    await lines.start()
    assert started == [None], "nothing was asked for"
    store.create_model_folder(own_home, "kim", RunConfig(model="fake:0.3", trainer="fake"))
    await lines.start()
    assert started == [None, None]


def test_the_tour_in_lines_is_plain_text(tmp_path: Path) -> None:
    """A dumb terminal, such as the shell of an editor that speaks, gets lines without asking for them."""
    done = subprocess.run(
        [sys.executable, "-m", "sapo_desktop", "tour", "--speed", "20000"],
        input="1\n[\nq\n",
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "SAPO_HOME": str(tmp_path), "TERM": "dumb"},
        check=True,
    )
    assert "Reward, local" in done.stdout
    assert "REPLAY" in done.stdout.upper()
    assert not DRAWN.search(done.stdout)
    assert not done.stderr
