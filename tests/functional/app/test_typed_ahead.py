"""Keys that come faster than a screen can follow, as a terminal sends what was typed ahead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from tests.support.scripted_actions import ScriptedChat, ScriptedModels
from tests.support.scripted_feed import NARROW, SILO, ScriptedFeed, app_over, feed_of, questions
from textual import events
from textual.widgets import Input

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.screens.models.chat import ChatScreen
from sapo_desktop.dashboard.screens.models.dialogs import NewModelDialog
from sapo_desktop.dashboard.screens.models.screen import ModelsScreen
from sapo_desktop.services.first_questions import FirstRunAnswers, FirstRunInfo
from sapo_desktop.services.models.pieces import ChatChunk, HeldOut, Marks
from sapo_desktop.services.models.screen.interface import NewModelInfo


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


async def test_letters_typed_while_the_chat_loads_or_answers_stay_in_its_field_and_the_node_gets_no_command() -> None:
    loaded, answered = asyncio.Event(), asyncio.Event()
    asked: list[str] = []

    class Slow(ScriptedModels):
        async def chat(self, id: str) -> ScriptedChat:
            await loaded.wait()
            return Line()

    class Line(ScriptedChat):
        async def ask(self, question: str) -> AsyncGenerator[ChatChunk]:
            asked.append(question)
            await answered.wait()
            yield ChatChunk(0, "four")

    app = app_over(SILO, model_actions=Slow(SILO))
    async with app.run_test(size=NARROW) as pilot:
        chat = ChatScreen("0", "sums")
        await app.push_screen(chat)
        field = chat.query_one("#question", Input)
        await pilot.press(*"is ", "F", "enter")
        assert (field.value, asked) == ("is F", [])
        loaded.set()
        while not chat.ready:
            await pilot.pause()
        await pilot.press("enter")
        while not asked:
            await pilot.pause()
        await pilot.press(*" zrq", "enter", "2")
        assert (field.value, asked) == (" zrq2", ["is F"])
        answered.set()
        while not chat.ready:
            await pilot.pause()
        await pilot.press("enter")
        while len(asked) < 2:
            await pilot.pause()
        assert asked == ["is F", " zrq2"]
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
