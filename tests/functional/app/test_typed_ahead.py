"""Keys that come faster than a screen can follow, as a terminal sends what was typed ahead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from tests.support.scripted_actions import ScriptedChat, ScriptedModels
from tests.support.scripted_feed import NARROW, SILO, ScriptedFeed, app_over, feed_of, questions
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.screens.models.chat import ChatScreen
from sapo_desktop.dashboard.screens.models.dialogs import NewModelDialog
from sapo_desktop.dashboard.screens.models.screen import ModelsScreen
from sapo_desktop.services.first_questions import FirstRunAnswers, FirstRunInfo
from sapo_desktop.services.models.pieces import ChatChunk, HeldOut, Marks
from sapo_desktop.services.models.screen.interface import ModelListing, NewModelInfo


def shown(pilot: Pilot[object]) -> list[str]:
    """The screen as lines, as it is now."""
    return ["".join(s.text for s in strip) for strip in pilot.app.screen._compositor.render_strips()]


async def test_keys_faster_than_the_screen_are_taken_in_their_order() -> None:
    answers: list[FirstRunAnswers | None] = []
    info = FirstRunInfo(models=(("a", ""), ("b", ""), ("c", "")), tasks=(("starter", ""), ("paper", ""), ("mine", "")))
    for typed, wanted in (
        (("down", "right", "down", "right", "right", "enter"), FirstRunAnswers(model="c", tasks="paper")),
        (("up", *"Ann B", "enter"), FirstRunAnswers(model="a", name="Ann B")),
        (("down", "left", "down", "left", "enter"), FirstRunAnswers(model="c", tasks="mine")),
    ):
        answers.clear()
        app = SapoDashboard(
            ScriptedFeed(list(SILO)), first_run=True, start=lambda given: answers.append(given), info=lambda: info
        )
        async with app.run_test(size=NARROW) as pilot:
            await questions(pilot)
            await pilot.pause()
            for key in typed:
                app.post_message(events.Key("space" if key == " " else key, key if len(key) == 1 else None))
            while not answers:
                await pilot.pause()
        assert answers == [wanted]


async def test_a_question_typed_while_the_chat_loads_is_the_first_and_one_typed_over_an_answer_ends_that_answer() -> (
    None
):
    loaded, stopped = asyncio.Event(), asyncio.Event()
    asked: list[str] = []

    class Slow(ScriptedModels):
        async def chat(self, id: str) -> ScriptedChat:
            await loaded.wait()
            return Line()

    class Line(ScriptedChat):
        async def ask(self, question: str) -> AsyncGenerator[ChatChunk]:
            asked.append(question)
            yield ChatChunk(0, "The answer is: The answer is:")
            if len(asked) == 1:
                await stopped.wait()

        async def stop(self) -> None:
            stopped.set()

        async def next_held_out(self) -> AsyncGenerator[HeldOut | ChatChunk | Marks]:
            asked.append("held out")
            yield HeldOut(1, "chain_sum", "4 + 3 = ?", "7")

    app = app_over(SILO, model_actions=Slow(SILO))
    async with app.run_test(size=NARROW) as pilot:
        chat = ChatScreen("0", "sums")
        await app.push_screen(chat)
        field = chat.query_one("#question", Input)
        await pilot.press(*"is ", "F", "enter")
        assert (field.value, asked) == ("", [])
        assert "> is F" in "\n".join(shown(pilot)), "it is seen at once"
        loaded.set()
        while not asked:
            await pilot.pause()
        await pilot.press("enter", *" zrq", "enter", "2")
        while not (len(asked) == 2 and chat.ready):
            await pilot.pause()
        assert asked == ["is F", "zrq"], "no held-out question came before it or between them"
        assert field.value == "2"
        assert [exchange.question for exchange in chat._said] == asked
        assert app.screen is chat
    assert feed_of(app).commands == []


async def test_next_typed_as_a_word_in_the_chat_asks_the_next_held_out_question_and_is_no_question_itself() -> None:
    asked: list[str] = []

    class Models(ScriptedModels):
        async def chat(self, id: str) -> ScriptedChat:
            return Line()

    class Line(ScriptedChat):
        async def ask(self, question: str) -> AsyncGenerator[ChatChunk]:
            asked.append(question)
            yield ChatChunk(0, "four")

        async def next_held_out(self) -> AsyncGenerator[HeldOut | ChatChunk | Marks]:
            asked.append("held out")
            async for part in super().next_held_out():
                yield part

    app = app_over(SILO, model_actions=Models(SILO))
    async with app.run_test(size=NARROW) as pilot:
        chat = ChatScreen("0", "sums")
        await app.push_screen(chat)
        while not (asked and chat.ready):
            await pilot.pause()
        await pilot.press(*" /next ", "enter")
        while not (len(asked) == 2 and chat.ready):
            await pilot.pause()
        assert asked == ["held out", "held out"]
        assert chat.query_one("#question", Input).value == ""


async def test_before_the_models_are_read_nobody_hears_that_there_are_none() -> None:
    read = asyncio.Event()

    class Slow(ScriptedModels):
        async def shelf(self) -> ModelListing:
            await read.wait()
            return await super().shelf()

    app = app_over(SILO, model_actions=Slow(SILO))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("4")
        while not isinstance(app.screen, ModelsScreen):
            await pilot.pause()
        await pilot.pause()
        early = "\n".join(shown(pilot))
        assert "Reading your models" in early
        assert "no model" not in early.partition("\n")[2]
        read.set()
        while "My models (2)" not in "\n".join(shown(pilot)):
            await pilot.pause()


async def test_a_key_that_is_pressed_twice_opens_one_dialog() -> None:
    asked, offered = 0, asyncio.Event()

    class Slow(ScriptedModels):
        async def offer(self) -> NewModelInfo:
            nonlocal asked
            asked += 1
            await offered.wait()
            return await super().offer()

    app = app_over(SILO, model_actions=Slow(SILO))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("4")
        while not (isinstance(app.screen, ModelsScreen) and app.screen.shelf.models):
            await pilot.pause()
        await pilot.press("n", "n")
        while asked < 2:
            await pilot.pause()
        offered.set()
        while not isinstance(app.screen, NewModelDialog):
            await pilot.pause()
        for _ in range(5):
            await pilot.pause()
        assert sum(isinstance(screen, NewModelDialog) for screen in app.screen_stack) == 1
