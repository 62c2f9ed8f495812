"""Screen 4 under a pilot, over models that a real node trained; the actions are the real ones."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.support.node_process import FAKE, calm, sapo
from tests.support.own_tasks import sums
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from sapo_desktop.dashboard.app import BLURRED_S, FOCUSED_S, SapoDashboard
from sapo_desktop.dashboard.feed import ControlFeed
from sapo_desktop.dashboard.replay import ReplayFeed
from sapo_desktop.dashboard.screens.dialogs import ChoiceDialog
from sapo_desktop.dashboard.screens.models.chat import ChatScreen
from sapo_desktop.dashboard.screens.models.compare import CompareScreen
from sapo_desktop.dashboard.screens.models.dialogs import KeptStatesDialog, NameDialog, NewModelDialog
from sapo_desktop.dashboard.screens.models.screen import ModelScreen, ModelsScreen
from sapo_desktop.dashboard.widgets.choice import Choice
from sapo_desktop.paths import Home
from sapo_desktop.services.models.screen.actions import HomeModels
from sapo_desktop.services.models.screen.settings_actions import HomeSettings
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.nodes import supervisor
from sapo_desktop.services.tasks.proposal.draft import ImportOptions, draft_task
from sapo_desktop.services.tasks.ratings import rated_files
from sapo_desktop.services.tasks.wizard.actions import HomeTasks

TASK = ("--tasks", "basic_arithmetic", "--local-groups", "4")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one model of three rounds, whose temperature was changed before the third."""
    folder = tmp_path_factory.mktemp("home")
    for more in (("--rounds", "2"), ("--rounds", "3", "--temperature", "0.8")):
        done = sapo(folder, "node", *FAKE, *TASK, "--eval-every", "2", "--eval-items", "4", *more)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
async def home(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Home]:
    """A copy of that home; a node that works in it is gone after the test."""
    shutil.copytree(trained, tmp_path / "me", ignore=shutil.ignore_patterns("*.sock"))
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "me"))
    found = Home.find()
    found.prepare()
    yield found
    await supervisor.shut_down_node(found)


def dashboard(home: Home) -> SapoDashboard:
    return SapoDashboard(ReplayFeed([], 0), model_actions=HomeModels(home), settings_actions=HomeSettings(home))


def said(pilot: Pilot[object]) -> str:
    return "\n".join("".join(s.text for s in strip) for strip in pilot.app.screen._compositor.render_strips())


async def until(pilot: Pilot[object], wanted: Callable[[], bool]) -> None:
    while not wanted():
        await pilot.pause(0.02)


async def opened(pilot: Pilot[object]) -> ModelsScreen:
    """Screen 4, its list read."""
    await pilot.press("4")
    await until(pilot, lambda: isinstance(pilot.app.screen, ModelsScreen) and "rounds" in said(pilot))
    screen = pilot.app.screen
    assert isinstance(screen, ModelsScreen)
    return screen


async def confirmed(pilot: Pilot[object], *keys: str) -> None:
    """Press keys once the dialog is there, and wait until it is gone."""
    await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceDialog))
    await pilot.press(*keys)
    await until(pilot, lambda: not isinstance(pilot.app.screen, ChoiceDialog))


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_a_model_shows_its_figures_and_opened_its_whole_history(home: Home, size: tuple[int, int]) -> None:
    async with dashboard(home).run_test(size=size) as pilot:
        await opened(pilot)
        listed = said(pilot)
        for expected in ("My models (1)", "my-model", "temperature 1.0 -> 0.8", "delete"):
            assert expected in listed
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ModelScreen) and "History (2 sessions)" in said(pilot))
        text = said(pilot)
        assert "C changed" in text, "the change is a mark on the chart"
        await pilot.press("end")
        await until(pilot, lambda: "What it is" in said(pilot))
        assert max(map(len, text.splitlines())) == size[0]
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, ModelsScreen))


async def test_a_model_is_renamed_duplicated_and_deleted_by_keys(home: Home) -> None:
    app = dashboard(home)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        await pilot.press("r")
        await until(pilot, lambda: isinstance(app.screen, NameDialog))
        await pilot.press("enter")
        await until(pilot, lambda: "It is called my-model already. Type another name." in said(pilot))
        app.screen.query_one("#name", Input).value = "a name"
        await pilot.press("enter")
        await until(pilot, lambda: "is no name for a model" in said(pilot))
        app.screen.query_one("#name", Input).value = "ada"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen) and "ada" in said(pilot))
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, NameDialog))
        await pilot.press("enter")
        await until(pilot, lambda: "My models (2)" in said(pilot))
        assert sorted(m.name for m in store.all_models(home)) == ["ada", "ada-2"]
        app.screen.query_one("#models", OptionList).highlighted = 0
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, NameDialog))
        assert app.screen.query_one("#name", Input).value == "ada-3", "a name that is free"
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen))
        await pilot.press("x")
        await confirmed(pilot, "enter")  # the cursor is on Cancel
        assert len(store.all_models(home)) == 2
        await pilot.press("x")
        await confirmed(pilot, "down", "enter")
        await until(pilot, lambda: "My models (1)" in said(pilot))


async def test_a_model_goes_back_to_a_kept_state_by_keys_and_back_again(home: Home) -> None:
    """From the list and from the opened model; the state that it has is not chosen, and Cancel changes nothing."""
    app = dashboard(home)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await opened(pilot)
        await pilot.press("k")
        await until(pilot, lambda: isinstance(app.screen, KeptStatesDialog))
        assert "sampled" in said(pilot)
        assert "greedy" in said(pilot)
        assert "before training" in said(pilot)
        await pilot.press("enter")  # the newest state is under the cursor
        await until(pilot, lambda: "has these weights now" in said(pilot))
        await pilot.press("down", "enter")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        assert "nothing is lost" in said(pilot)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen))
        (model,) = store.all_models(home)
        newest = model.rounds_done
        for expected, open_first in ((newest + 1, False), (newest + 2, True)):
            if open_first:
                await pilot.press("enter")
                await until(pilot, lambda: isinstance(app.screen, ModelScreen))
            await pilot.press("k")
            await until(pilot, lambda: isinstance(app.screen, KeptStatesDialog))
            await pilot.press("down", "enter")
            await confirmed(pilot, "enter")
            await until(pilot, lambda wanted=expected: store.all_models(home)[0].rounds_done == wanted)
            await until(pilot, lambda: "has the weights of" in said(pilot))
        await until(pilot, lambda: "R rolled back" in said(pilot))
        await app.workers.wait_for_complete()


async def test_a_model_is_compared_with_its_base_in_a_chart_and_a_table(home: Home) -> None:
    app = dashboard(home)
    async with app.run_test(size=(80, 30)) as pilot:
        await opened(pilot)
        await pilot.press("v")
        await confirmed(pilot, "enter")
        await until(pilot, lambda: isinstance(app.screen, CompareScreen) and "McNemar" in said(pilot))
        assert "my-model and its base, 50 held-out questions" in said(pilot)
        assert "local" in said(pilot)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen))


async def test_base_and_trained_answer_side_by_side(home: Home) -> None:
    app = dashboard(home)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        await pilot.press("t")
        await until(pilot, lambda: isinstance(app.screen, ChatScreen))
        chat = app.screen
        assert isinstance(chat, ChatScreen)
        await until(pilot, lambda: chat.ready and "of 1 right" in said(pilot))
        assert {"right", "wrong"} & {word for word in said(pilot).split()}
        await pilot.press("enter")
        await until(pilot, lambda: chat.ready and "of 2 right" in said(pilot))
        chat.query_one("#question", Input).value = "What is 2 + 3?"
        await pilot.press("enter")
        await until(pilot, lambda: chat.ready and chat._said[-1].question == "What is 2 + 3?")
        assert all("<answer>" in answer.text for answer in chat._said[-1].answers)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen))
        await app.workers.wait_for_complete()


async def test_a_node_goes_on_with_the_chosen_model_and_waits_while_one_chats(home: Home) -> None:
    """c starts the node with the model under the cursor, or lets it go on where it is paused; a chat pauses it, and closing the
    chat lets it go on."""
    made = sapo(home.config, "new", "slow", "--base", "fake:0.02", *FAKE[1:3], *TASK, "--eval-every", "0")
    assert made.returncode == 0, made.stderr
    feed = ControlFeed(home.socket)
    app = SapoDashboard(feed, model_actions=HomeModels(home))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot)
        assert screen.chosen is not None
        assert screen.chosen.model.name == "slow"
        await pilot.press("c")
        await until(pilot, lambda: app.state.run is not None and app.state.run.name == "slow")
        await until(pilot, lambda: app.state.rounds >= 1)
        screen.query_one("#models", OptionList).highlighted = 1
        await pilot.press("c")
        await until(pilot, lambda: app.state.run is not None and app.state.run.name == "my-model")
        await until(pilot, lambda: app.state.rounds > 3)
        status = await supervisor.query_status(home)
        assert status is not None
        await pilot.press("space")
        await until(pilot, lambda: app.state.state == "paused" and bool(screen.shelf.training))
        await pilot.press("c")
        await until(pilot, lambda: app.state.state == "running")
        await pilot.press("t")
        await until(pilot, lambda: app.state.state == "paused")
        await until(pilot, lambda: isinstance(app.screen, ChatScreen) and app.screen.ready)
        await pilot.press("escape")
        await until(pilot, lambda: app.state.state == "running")
        await pilot.press("x")
        await confirmed(pilot, "down", "enter")
        await until(pilot, lambda: len(store.all_models(home)) == 1)
    assert await supervisor.query_status(home) is None, "the node that trained it was stopped first"


async def test_a_thumb_on_an_answer_in_the_chat_is_a_row_of_a_task(home: Home) -> None:
    app = SapoDashboard(ReplayFeed([], 0), model_actions=HomeModels(home), task_actions=HomeTasks(home))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await opened(pilot)
        await pilot.press("t")
        await until(pilot, lambda: isinstance(app.screen, ChatScreen))
        await until(pilot, lambda: isinstance(app.screen, ChatScreen) and app.screen.ready)
        await pilot.press("f3")
        assert not (home.data / "ratings").exists(), "there is nothing to rate yet"
        chat = app.screen
        assert isinstance(chat, ChatScreen)
        for question, key, told in (
            ("What is 2 + 3?", "f3", "1 good and 0 bad"),
            ("And 4 + 5?", "f4", "1 good and 1 bad"),
            ("And 6 + 7?", "f3", "2 good and 1 bad"),
        ):
            chat.query_one("#question", Input).value = question
            await pilot.press("enter")
            await until(pilot, lambda question=question: chat._said[-1:] != [] and chat._said[-1].question == question)  # type: ignore[misc]
            await until(pilot, lambda: chat._ratable and "F4 bad" in said(pilot))
            assert "Esc close" in said(pilot).splitlines()[-1], "at 80 columns"
            await pilot.press(key)
            await until(pilot, lambda told=told: told in " ".join(said(pilot).split()))  # type: ignore[misc]
    (file,) = rated_files(home)
    found = draft_task(file, ImportOptions())
    assert [row["question"] for row in found.table.rows] == ["What is 2 + 3?", "And 6 + 7?"]
    assert found.table.problems == ["Row 2: you rated this answer bad."]
    assert "<answer>" not in found.table.rows[0]["answer"]


async def test_a_new_model_starts_from_a_base_and_is_trained(home: Home) -> None:
    home.settings.write_text(f'[run]\ntrainer = "fake"\nmodel = "fake"\n{home.settings.read_text()}')
    app = SapoDashboard(ControlFeed(home.socket), model_actions=HomeModels(home))
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, NewModelDialog))
        app.screen.query_one("#name", Input).value = "my-model"
        await pilot.press("enter")
        await until(pilot, lambda: "There is a model" in said(pilot))
        app.screen.query_one("#name", Input).value = "second"
        await pilot.press("enter")
        await until(pilot, lambda: app.state.run is not None and app.state.run.name == "second")
    assert store.find_model(home).name == "second"


async def test_the_settings_are_those_of_the_model_that_is_shown(home: Home) -> None:
    before = home.settings.read_text()
    actions = HomeSettings(home)
    await actions.change("run.temperature", "0.5", "my-model")
    assert store.find_model(home, "my-model").config.temperature == 0.5
    assert home.settings.read_text() == before, "the settings for new models stay"
    row = next(row for row in await actions.rows() if row.key == "run.temperature")
    assert (row.value, row.default, row.owner) == ("0.5", "1.0", "my-model")
    with pytest.raises(Exception, match="was made with method"):
        await actions.change("run.method", "lora", "my-model")
    await actions.reset("run.temperature", "my-model")
    assert store.find_model(home, "my-model").config.temperature == 1.0


async def test_a_broken_journal_is_told_and_the_model_still_shows(home: Home) -> None:
    (store.find_model(home).folder / "journal.db").write_bytes(b"not a database at all" * 100)
    async with dashboard(home).run_test(size=(120, 36)) as pilot:
        await opened(pilot)
        await until(pilot, lambda: "journal" in said(pilot))


async def test_without_a_model_the_screen_says_how_to_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    calm(tmp_path)
    async with dashboard(Home.find()).run_test(size=(80, 24)) as pilot:
        await pilot.press("4")
        await until(pilot, lambda: "There is no model yet. Press n" in said(pilot))


async def test_over_a_recording_key_4_does_nothing() -> None:
    app = SapoDashboard(ReplayFeed([], 0))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("4")
        assert app.current_mode == "dashboard"


async def test_a_terminal_without_focus_is_drawn_four_times_more_rarely() -> None:
    app = SapoDashboard(ReplayFeed([], 0))
    async with app.run_test(size=(80, 24)) as pilot:
        assert app._timer._interval == FOCUSED_S == 0.5
        app.post_message(events.AppBlur())
        await pilot.pause()
        assert app._timer._interval == BLURRED_S == 2.0
        app.post_message(events.AppFocus())
        await pilot.pause()
        assert app._timer._interval == FOCUSED_S


PICTURES = Path(__file__).resolve().parents[3] / "packaging" / "pictures.py"


async def test_the_picture_for_the_readme_names_no_host(home: Home) -> None:
    pictures = runpy.run_path(str(PICTURES))
    drawn = await pictures["render_screenshot"](store.find_model(home).folder / "journal.db", (120, 36), [])
    assert "Held-out" in drawn
    assert "https://" not in drawn
    assert "@font-face" not in drawn


async def test_a_new_model_can_train_on_a_task_of_ones_own(home: Home) -> None:
    """The person's tasks come first."""
    home.settings.write_text(f'[run]\ntrainer = "fake"\nmodel = "fake"\n{home.settings.read_text()}')
    sums(home.tasks / "my_sums")
    app = SapoDashboard(ControlFeed(home.socket), model_actions=HomeModels(home))
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, NewModelDialog))
        assert app.screen.query_one("#questions", Choice).answers[0] == ("my_sums", "a task of yours")
        app.screen.query_one("#name", Input).value = "second"
        await pilot.press("enter")
        await until(pilot, lambda: app.state.run is not None and app.state.run.name == "second")
    assert store.find_model(home).config.tasks == ("my_sums",)
