"""The first questions: defaults, invites, speeds, leaving."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from tests.support.scripted_actions import ScriptedSwarms
from tests.support.scripted_feed import NARROW, SILO, ScriptedFeed, questions, settled
from tests.support.terminal import terminal
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.screens.first_run import DROPPED, BasesDialog, FirstRunScreen
from sapo_desktop.dashboard.widgets.choice import Choice
from sapo_desktop.services import first_run
from sapo_desktop.services.first_questions import LIST, OTHER, OWN, BaseGroup, BaseOffer, FirstRunAnswers, FirstRunInfo
from sapo_desktop.settings.editing import setting_rows
from sapo_swarm.config import PAPER_TASKS


async def test_the_first_run_starts_with_its_defaults_on_enter() -> None:
    answers: list[FirstRunAnswers | None] = []
    app = SapoDashboard(ScriptedFeed(list(SILO)), first_run=True, start=lambda given: answers.append(given))
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        await pilot.press("enter")
        lines = await settled(pilot)
        assert any("Reward" in line for line in lines)
    assert answers == [FirstRunAnswers()]


async def test_every_fixed_answer_of_the_first_questions_fits_80_columns() -> None:
    app = SapoDashboard(ScriptedFeed(list(SILO)), first_run=True, swarm_actions=ScriptedSwarms())
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        for choice in app.screen.query(Choice):
            for _ in choice.answers:
                choice.action_turn(1)
                assert cell_len(choice.render().plain) <= choice.content_size.width, choice.render().plain


@pytest.mark.parametrize("key", ["q", "escape"])
async def test_the_questions_can_be_left_and_nothing_is_started(key: str) -> None:
    answers: list[FirstRunAnswers | None] = []
    app = SapoDashboard(ScriptedFeed(list(SILO)), first_run=True, start=lambda given: answers.append(given))
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        await pilot.press("down", "right", key)
        await pilot.pause()
    assert answers == []
    assert app.return_value is None
    assert not app.begun


@pytest.mark.parametrize("key", ["ctrl+c", "ctrl+q"])
@pytest.mark.parametrize("before", [(), ("f1",), ("right", "enter")], ids=["a choice", "the help", "a field"])
async def test_ctrl_c_on_the_first_questions_leaves_and_starts_nothing(key: str, before: tuple[str, ...]) -> None:
    answers: list[FirstRunAnswers | None] = []
    app = SapoDashboard(ScriptedFeed(list(SILO)), first_run=True, start=lambda given: answers.append(given))
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        await pilot.press(*before, key)
        while app.is_running:
            await pilot.pause()
    assert answers == []
    assert (app.return_value, app.begun) == (None, False)


async def test_a_swarm_needs_an_invite_and_keeps_it() -> None:
    invite = f"sapo://127.0.0.1:7471/#t={'5' * 32}&s={'k' * 16}"
    answers: list[FirstRunAnswers | None] = []
    app = SapoDashboard(ScriptedFeed([]), first_run=True, start=lambda given: answers.append(given))
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        await pilot.press("right", "enter")
        lines = ["".join(s.text for s in strip) for strip in app.screen._compositor.render_strips()]
        assert any("A swarm needs an invite" in line for line in lines)
        await pilot.press(*"abc", "enter")
        assert answers == [], "what is no invite does not start a node"
        app.screen.query_one("#invite", Input).value = invite
        await pilot.press("enter")
        await settled(pilot)
    assert answers == [FirstRunAnswers(mode="swarm", invite=invite)]


async def test_the_first_questions_say_how_fast_the_answers_are_and_stop_measuring_when_they_end() -> None:
    asked: list[tuple[str, str]] = []
    ended: list[str] = []

    async def measure(hardware: str, model: str, tasks: str, file: str) -> str:
        asked.append((hardware, model))
        assert (tasks, file) == ("starter", "")
        if model == "b":
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(model)
        return "9,800 tok/s written, 4,000 trained; a round needs 540 MB"

    info = FirstRunInfo(models=(("a", "small"), ("b", "large")), measure=measure)
    app = SapoDashboard(ScriptedFeed(list(SILO)), first_run=True, start=lambda given: None, info=lambda: info)
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        speed = app.screen.query_one("#speed", Static)
        while "9,800 tok/s" not in str(speed.content):
            await pilot.pause()
        app.screen.query_one("#model").focus()
        await pilot.press("right")
        while len(asked) < 2:
            await pilot.pause()
        await pilot.press("enter")
        await settled(pilot)
    assert asked == [("auto", "a"), ("auto", "b")]
    assert ended == ["b"]


async def test_how_long_it_takes_is_asked_for_the_table_that_was_dropped_and_for_a_toy_once(tmp_path: Path) -> None:
    """A round on a table whose answers are a word took a tenth of what was said of a round on unknown tasks."""
    asked: list[tuple[str, ...]] = []
    (tmp_path / "mail.csv").write_text("question,answer\nA?,B\n")

    async def measure(*wanted: str) -> str:
        asked.append(wanted)
        return f"measured {len(asked)}"

    tasks, models = (("starter", "nine"), ("paper", "hard"), (OWN, "mine")), (("starter", "a toy"), ("real", "mine"))
    info = FirstRunInfo(models=models, tasks=tasks, own_base="real", measure=measure)
    app = SapoDashboard(ScriptedFeed([]), first_run=True, start=lambda given: None, info=lambda: info)
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)

        async def measured(count: int) -> None:
            while len(asked) < count:
                await pilot.pause()

        await measured(1)
        app.screen.query_one("#tasks").focus()
        await pilot.press("right", "left")
        app.screen.post_message(events.Paste(str(tmp_path / "mail.csv")))
        await measured(2)
    assert asked == [("auto", "starter", "", ""), ("auto", "real", OWN, str(tmp_path / "mail.csv"))]


async def test_a_model_of_the_list_that_cannot_be_used_is_refused_before_a_node_starts() -> None:
    async def check(model: str) -> str:
        return f"{model} does not fit: it needs more than there is."

    answers: list[FirstRunAnswers | None] = []
    info = FirstRunInfo(models=(("owner/large", "gated, does not fit"), ("starter", "bundled")), check=check)
    app = SapoDashboard(ScriptedFeed([]), first_run=True, start=answers.append, info=lambda: info)
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        await pilot.press("enter")
        while "owner/large does not fit" not in str(app.screen.query_one("#complaint", Static).content):
            await pilot.pause()
        assert (answers, app.screen.focused) == ([], app.screen.query_one("#model"))
        await pilot.press("right", "enter")
        await settled(pilot)
    assert answers == [FirstRunAnswers(mode="silo", model="starter")]


async def test_what_takes_long_to_look_up_is_offered_later_and_an_answer_given_meanwhile_stays() -> None:
    looked_up = asyncio.Event()

    async def whole() -> FirstRunInfo:
        await looked_up.wait()
        return FirstRunInfo(hardware=(("auto", "torch here"),), models=(("new", ""), ("a", ""), ("b", "")))

    answers: list[FirstRunAnswers | None] = []
    info = FirstRunInfo(models=(("a", "small"), ("b", "large")), whole=whole)
    app = SapoDashboard(ScriptedFeed(list(SILO)), first_run=True, start=answers.append, info=lambda: info)
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        hardware, model = app.screen.query_one("#hardware", Choice), app.screen.query_one("#model", Choice)
        model.focus()
        await pilot.press("right")
        assert (model.value, hardware.answers[0][1]) == ("b", "the fastest engine that is installed")
        looked_up.set()
        while hardware.answers[0][1] != "torch here":
            await pilot.pause()
        assert model.value == "b"
        model.offer((("c", ""),))
        assert (model.value, model.answers) == ("b", (("c", ""), ("b", ""))), "whatever else is offered"
        model.offer(app.screen.info.models)
        await pilot.press("left", "left", "enter")
        await settled(pilot)
    assert answers == [FirstRunAnswers(model="new")]


async def test_the_first_questions_stay_whatever_keys_are_pressed() -> None:
    """The dashboard's own keys, digits for its screens among them, do nothing there; q and Esc leave."""
    app = SapoDashboard(ScriptedFeed(list(SILO)), first_run=True, start=lambda given: None)
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        await pilot.press(*"12345dzrF", "space")
        assert isinstance(app.screen, FirstRunScreen)
        assert len(app.screen_stack) == 2


async def test_an_invite_that_is_pasted_anywhere_chooses_the_swarm() -> None:
    invite = f"sapo://127.0.0.1:7471/#t={'5' * 32}&s={'k' * 16}"
    answers: list[FirstRunAnswers | None] = []
    app = SapoDashboard(ScriptedFeed([]), first_run=True, start=lambda given: answers.append(given))
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        app.post_message(events.Paste("no invite"))
        app.post_message(events.Paste(f"{invite}\n"))
        while app.screen.query_one("#invite", Input).value != invite:
            await pilot.pause()
        await pilot.press("enter")
        await settled(pilot)
    assert answers == [FirstRunAnswers(mode="swarm", invite=invite)]


@pytest.mark.parametrize("written", ["{}", "'{}'", "file://{}"])
async def test_a_table_that_is_dropped_on_the_questions_is_the_task_and_a_real_model_is_proposed(
    written: str, tmp_path: Path
) -> None:
    table = tmp_path / "my notes.csv"
    table.write_text("question,answer\na,b\n", "utf-8")
    models = (("starter", "a toy"), ("lmstudio:real", "98 MB"), (LIST, "Enter lists them"))
    info = FirstRunInfo(models=models, own_base="lmstudio:real", tasks=(("starter", "nine"), (OWN, "my own table")))
    app = SapoDashboard(ScriptedFeed([]), first_run=True, start=lambda given: None, info=lambda: info)
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        app.post_message(events.Paste(f"{tmp_path / 'no-such.csv'}"))
        app.post_message(events.Paste(written.format(str(table).replace(" ", "%20") if "file" in written else table)))
        tasks, model = app.screen.query_one("#tasks", Choice), app.screen.query_one("#model", Choice)
        while tasks.value != OWN:
            await pilot.pause()
        await pilot.pause()
        assert str(table) in tasks.answers[tasks.place][1]
        assert model.value == "lmstudio:real"


@pytest.mark.skipif(os.name != "posix", reason="a pseudo terminal")
async def test_a_table_that_is_dropped_before_the_first_frame_is_the_task(tmp_path: Path) -> None:
    table = tmp_path / "notes.csv"
    table.write_text("question,answer\na,b\n", "utf-8")
    async with terminal(tmp_path / "home", (sys.executable, "-m", "sapo_desktop")) as screen:
        await screen.shows(lambda _: b"\x1b[?2004h" in screen.raw)  # from here on a terminal says that it pastes
        screen.press(f"\x1b[200~{table}\x1b[201~")
        await screen.shows(lambda text: "Tasks      own           /" in text)


async def test_files_that_are_dropped_stay_when_more_is_offered(tmp_path: Path) -> None:
    table, base, looked_up = tmp_path / "notes.csv", tmp_path / "base.gguf", asyncio.Event()
    table.write_text("question,answer\na,b\n", "utf-8")
    base.touch()
    offered = (("starter", "nine"), (OWN, "my own table"))

    async def whole() -> FirstRunInfo:
        await looked_up.wait()
        return FirstRunInfo(hardware=(("auto", "torch here"),), models=(("new", ""), ("a", "")), tasks=offered)

    info = FirstRunInfo(models=(("a", "small"), ("b", "large")), tasks=offered, whole=whole)
    app = SapoDashboard(ScriptedFeed([]), first_run=True, start=lambda given: None, info=lambda: info)
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        app.post_message(events.Paste(str(table)))
        tasks, model = app.screen.query_one("#tasks", Choice), app.screen.query_one("#model", Choice)
        app.post_message(events.Paste(str(base)))
        while model.value != str(base):
            await pilot.pause()
        looked_up.set()
        while app.screen.query_one("#hardware", Choice).answers[0][1] != "torch here":
            await pilot.pause()
        assert tasks.answers[tasks.place] == (OWN, str(table))
        assert model.answers[model.place] == (str(base), DROPPED)


async def test_a_model_that_the_person_chose_stays_whatever_the_tasks_are() -> None:
    models = (("starter", "a toy"), ("lmstudio:real", "98 MB"), ("starter-1m", "a toy"))
    info = FirstRunInfo(models=models, own_base="lmstudio:real", tasks=(("starter", "nine"), (OWN, "my own table")))
    app = SapoDashboard(ScriptedFeed([]), first_run=True, start=lambda given: None, info=lambda: info)
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        model = app.screen.query_one("#model", Choice)
        app.screen.query_one("#tasks", Choice).focus()
        await pilot.press("right")
        assert model.value == "lmstudio:real"
        await pilot.press("right")
        assert model.value == "starter", "the nine tasks again"
        model.focus()
        await pilot.press("left")
        app.screen.query_one("#tasks", Choice).focus()
        await pilot.press("right")
        assert model.value == "starter-1m"


async def test_a_start_that_takes_a_while_does_not_hold_the_screen() -> None:
    seen: list[FirstRunAnswers | None] = []

    async def start(answers: FirstRunAnswers | None) -> None:
        seen.append(answers)

    app = SapoDashboard(ScriptedFeed(list(SILO)), start=start)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
    assert seen == [None]


@pytest.mark.parametrize("preset", ["starter", "paper"])
def test_answering_the_nine_tasks_after_an_own_one_gives_the_nine(tmp_path: Path, preset: str) -> None:
    settings, invite = tmp_path / "config.toml", tmp_path / "invite"
    assert first_run.save_answers(FirstRunAnswers(task="my_sums"), settings, invite).run.tasks == ("my_sums",)
    kept = first_run.save_answers(FirstRunAnswers(tasks=preset), settings, invite).run
    assert (kept.tasks, kept.preset) == (PAPER_TASKS, preset)


def test_only_limits_that_differ_from_the_default_are_written_to_the_settings_by_the_first_answers(
    tmp_path: Path,
) -> None:
    settings, invite = tmp_path / "config.toml", tmp_path / "invite"

    def saved() -> set[str]:
        return {row.key for row in setting_rows(settings) if row.saved and not row.key.startswith("run.")}

    first_run.save_answers(FirstRunAnswers(), settings, invite)
    assert saved() == set()
    first_run.save_answers(FirstRunAnswers(limits="full", name="Ann"), settings, invite)
    assert saved() == {
        *("limits.pause_on_battery", "limits.slow_celsius", "limits.max_celsius", "limits.slow_thermal_pressure"),
        *("limits.nice", "person.name"),
    }
    first_run.save_answers(FirstRunAnswers(limits="balanced"), settings, invite)
    assert saved() == set()


GROUPS = (
    BaseGroup(
        "On this computer",
        (
            BaseOffer("lmstudio:new", "cannot be trained: the architecture new is not supported", "", "not supported"),
            BaseOffer("ollama:qwen2.5-coder:0.5b", "fits, 491 MB, Q4_K_M, Ollama", "494M parameters, qwen2"),
            BaseOffer("lmstudio:red\x1b[31m\u202e", "too large, 9.10 GB, Q8_0, LM Studio"),
        ),
        ("2 more are not listed: made for pictures, vectors or a cloud.",),
    ),
    BaseGroup("To download (not now: away)", (BaseOffer("owner/model", "fits, 1 GB", "", "away"),)),
    BaseGroup("Bundled", (BaseOffer("starter", "a toy, bundled: to see how it works"),)),
)


def listing(pilot: Pilot[object]) -> list[str]:
    return ["".join(s.text for s in strip) for strip in pilot.app.screen._compositor.render_strips()]


async def test_a_model_of_this_computer_is_chosen_with_the_arrow_keys() -> None:
    """The list opens from the answer "from a list"; what cannot be trained and what cannot be had now is passed over."""
    asked: list[bool] = []
    checked: list[str] = []

    async def offers(again: bool) -> tuple[BaseGroup, ...]:
        asked.append(again)
        return GROUPS

    async def check(model: str) -> str:
        checked.append(model)
        return ""

    answers: list[FirstRunAnswers | None] = []
    models = (("starter", "a toy, bundled: to see how it works"), (LIST, "Enter lists them"), ("another", "type it"))
    info = FirstRunInfo(models=models, offers=offers, check=check)
    app = SapoDashboard(ScriptedFeed(list(SILO)), first_run=True, start=answers.append, info=lambda: info)
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        assert asked == [], "nobody is asked before the list is opened"
        await pilot.press("down", "down", "right", "enter")
        while not isinstance(pilot.app.screen, BasesDialog) or not pilot.app.screen.query_one(OptionList).option_count:
            await pilot.pause()
        await pilot.pause()
        lines = listing(pilot)
        assert any("lmstudio:new" in line and "cannot be trained" in line for line in lines)
        assert any("Enter take it" in line for line in lines), "it fits 80 x 24 with its keys"
        assert any("ollama:qwen2.5-coder:0.5b: 494M parameters, qwen2" in line for line in lines), (
            "the first that can be had"
        )
        assert not any({"\x1b", "\u202e"} & set(line) for line in lines)
        await pilot.press("down", "down")
        await pilot.pause()
        assert any("starter: a toy" in line for line in listing(pilot)), "what cannot be had now is passed over"
        await pilot.press("r")
        while asked != [False, True]:
            await pilot.pause()
        await pilot.pause()
        await pilot.press("enter")
        while isinstance(pilot.app.screen, BasesDialog):
            await pilot.pause()
        assert pilot.app.screen.query_one("#model", Choice).value == "ollama:qwen2.5-coder:0.5b"
        await pilot.press("enter")
        await settled(pilot)
    assert answers == [FirstRunAnswers(model="ollama:qwen2.5-coder:0.5b")]
    assert checked == ["ollama:qwen2.5-coder:0.5b"]


async def test_esc_leads_back_from_the_list_to_the_questions_and_enter_opens_it_again() -> None:
    async def offers(_: bool) -> tuple[BaseGroup, ...]:
        return GROUPS

    info = FirstRunInfo(models=((LIST, "Enter lists them"), ("starter", "")), offers=offers)
    app = SapoDashboard(ScriptedFeed(list(SILO)), first_run=True, start=lambda given: None, info=lambda: info)
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        for _ in range(2):
            await pilot.press("enter")
            while not isinstance(pilot.app.screen, BasesDialog):
                await pilot.pause()
            await pilot.press("escape")
            while isinstance(pilot.app.screen, BasesDialog):
                await pilot.pause()
            assert pilot.app.screen.query_one("#model", Choice).value == LIST
        assert not app.begun


async def test_what_is_typed_or_dropped_on_the_screen_becomes_the_model(tmp_path: Path) -> None:
    """Typing where "another" is chosen needs no step into the field; a GGUF file can be dropped anywhere."""
    models = (("starter", "a toy, bundled"), (OTHER, "type it"))
    info = FirstRunInfo(models=models)
    app = SapoDashboard(ScriptedFeed(list(SILO)), first_run=True, info=lambda: info)
    file = tmp_path / "my model.GGUF"
    file.write_bytes(b"GGUF")
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        await pilot.press("down", "down", "right", *"ow/n")
        typed = pilot.app.screen.query_one("#typed", Input)
        assert typed.value == "ow/n"
        assert typed.has_focus
    app = SapoDashboard(ScriptedFeed(list(SILO)), first_run=True, info=lambda: info)
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        pilot.app.post_message(events.Paste(f"'{file}'"))
        model = pilot.app.screen.query_one("#model", Choice)
        while model.value != str(file):
            await pilot.pause()


@pytest.mark.parametrize("table_first", [True, False])
async def test_a_table_and_a_model_are_dropped_in_either_order_wherever_the_cursor_is(
    table_first: bool, tmp_path: Path
) -> None:
    table, file = tmp_path / "mail.csv", tmp_path / "model.gguf"
    table.write_text("question,answer\na,b\n", "utf-8")
    file.write_bytes(b"GGUF")
    models, tasks = (("starter", "a toy"), (OTHER, "type it")), (("starter", "nine"), (OWN, "my own table"))
    app = SapoDashboard(ScriptedFeed(list(SILO)), first_run=True, info=lambda: FirstRunInfo(models=models, tasks=tasks))
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        await pilot.press("down", "down", "right", "x")
        assert isinstance(app.screen.focused, Input)
        for path in (table, file) if table_first else (file, table):
            app.post_message(events.Paste(str(path)))
            await pilot.pause()
        model, answered = app.screen.query_one("#model", Choice), app.screen.query_one("#tasks", Choice)
        while (model.value, answered.value) != (str(file), OWN):
            await pilot.pause()
        assert str(table) in answered.answers[answered.place][1]


async def test_a_drop_that_is_neither_a_table_nor_a_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "sheet.xlsx").write_bytes(b"PK")
    (tmp_path / "photo.png").write_bytes(b"PNG")
    app = SapoDashboard(ScriptedFeed(list(SILO)), first_run=True, info=FirstRunInfo)
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        complaint = app.screen.query_one("#complaint", Static)
        for dropped, sentence in (
            (f"'{tmp_path / 'sheet.xlsx'}'", "sheet.xlsx is a spreadsheet: save it as CSV"),
            (
                str(tmp_path / "photo.png"),
                "photo.png is neither a table (CSV, TSV, JSONL, Parquet) nor a model's GGUF file",
            ),
            (str(tmp_path), "is a folder. Drop a table"),
            (f"file://{tmp_path}/gone.csv", f"There is no file {tmp_path}/gone.csv."),
            ("a sentence from somewhere", "Drop a table or a model's GGUF file here, or paste an invite"),
        ):
            app.post_message(events.Paste(dropped))
            while sentence not in str(complaint.render()):
                await pilot.pause()


async def test_a_model_is_dropped_on_the_list_of_models(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")

    async def offers(again: bool) -> tuple[BaseGroup, ...]:
        return (BaseGroup("On this computer", (), ("None. Drop a GGUF file here.",)),)

    models = ((LIST, "Enter lists them"), ("starter", "a toy"))
    app = SapoDashboard(
        ScriptedFeed(list(SILO)), first_run=True, info=lambda: FirstRunInfo(models=models, offers=offers)
    )
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        await pilot.press("enter")
        while not isinstance(app.screen, BasesDialog):
            await pilot.pause()
        app.post_message(events.Paste("no file"))
        await pilot.pause()
        assert isinstance(app.screen, BasesDialog)
        app.post_message(events.Paste(str(file)))
        while isinstance(app.screen, BasesDialog):
            await pilot.pause()
        assert app.screen.query_one("#model", Choice).value == str(file)


async def test_esc_in_a_field_goes_back_to_the_choices_and_leaves_from_there() -> None:
    models = (("starter", "a toy"), (OTHER, "type it"))
    app = SapoDashboard(ScriptedFeed(list(SILO)), first_run=True, info=lambda: FirstRunInfo(models=models))
    async with app.run_test(size=NARROW) as pilot:
        await questions(pilot)
        await pilot.press("down", "down", "right", "x", "escape")
        assert isinstance(app.screen, FirstRunScreen)
        assert app.screen.query_one("#model", Choice).has_focus
        await pilot.press("escape")
        assert not isinstance(app.screen, FirstRunScreen)
