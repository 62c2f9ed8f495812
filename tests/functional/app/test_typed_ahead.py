"""Keys that come faster than a screen can follow, as a terminal sends what was typed ahead."""

from __future__ import annotations

from tests.support.scripted_feed import NARROW, SILO, ScriptedFeed, questions
from textual import events

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.services.first_questions import FirstRunAnswers, FirstRunInfo


async def test_keys_faster_than_the_screen_are_taken_in_their_order() -> None:
    answers: list[FirstRunAnswers | None] = []
    info = FirstRunInfo(models=(("a", ""), ("b", ""), ("c", "")), tasks=(("starter", ""), ("paper", ""), ("mine", "")))
    for typed, wanted in (
        (("down", "down", "right", "right", "down", "right", "enter"), FirstRunAnswers(model="c", tasks="paper")),
        (("up", *"Ann B", "enter"), FirstRunAnswers(model="a", name="Ann B")),
        (("down", "down", "left", "down", "left", "enter"), FirstRunAnswers(model="c", tasks="mine")),
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
