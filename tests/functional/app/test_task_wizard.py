"""The wizard of tasks: from a messy file to training by keys alone, at every size, and by the mouse."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from rich.cells import cell_len
from tests.functional.app.test_models_by_keys import ENTER, Keys
from tests.functional.app.test_own_task import messy
from tests.support.node_process import CALM
from tests.support.own_tasks import library_in
from tests.support.terminal import terminal
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.replay import ReplayFeed
from sapo_desktop.dashboard.screens.dialogs import ChoiceDialog
from sapo_desktop.dashboard.screens.first_run import FirstRunScreen
from sapo_desktop.dashboard.screens.task_wizard import DraftScreen, MeasuringScreen, PlacesScreen
from sapo_desktop.dashboard.widgets.choice import Choice
from sapo_desktop.dashboard.widgets.frame import KeyBar
from sapo_desktop.paths import Home
from sapo_desktop.services import first_run
from sapo_desktop.services.first_questions import OTHER, OWN, FirstRunAnswers, FirstRunInfo
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.nodes import supervisor
from sapo_desktop.services.tasks import store as examples
from sapo_desktop.services.tasks.wizard.actions import HomeTasks
from sapo_swarm.evaluation import regular_items
from sapo_swarm.events import Evaluated
from sapo_swarm.node.journal import read_only
from sapo_swarm.tasks.own.folder import read_task

SETTINGS = f"""\
[run]
trainer = "fake"
model = "fake:0.3"
local_groups = 4
eval_every = 2
{CALM}"""


@pytest.fixture
async def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Home]:
    """A home beside a folder with the messy file, in which the dashboard is started; its node is gone after the test."""
    (tmp_path / "me").mkdir()
    (tmp_path / "docs").mkdir()
    messy(tmp_path / "docs" / "my sums.csv")
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "me"))
    monkeypatch.chdir(tmp_path / "docs")
    found = Home.find()
    found.prepare()
    found.settings.write_text(SETTINGS)
    yield found
    await supervisor.shut_down_node(found)


def dashboard(home: Home) -> SapoDashboard:
    return SapoDashboard(ReplayFeed([], 0), task_actions=HomeTasks(home))


def said(pilot: Pilot[object]) -> str:
    return "\n".join("".join(s.text for s in strip) for strip in pilot.app.screen._compositor.render_strips())


async def until(pilot: Pilot[object], wanted: Callable[[], bool]) -> None:
    """Wait for the screen to be as wanted; what it shows instead is the failure."""
    try:
        async with asyncio.timeout(60):
            while not wanted():
                await pilot.pause(0.02)
    except TimeoutError:
        raise AssertionError(said(pilot)) from None


async def stopped(pilot: Pilot[object]) -> None:
    """Stop the measuring that has begun, and wait for the end of its process."""
    await until(pilot, lambda: isinstance(pilot.app.screen, MeasuringScreen))
    measuring = list(pilot.app.workers)
    await pilot.press("escape")
    await until(pilot, lambda: "Measuring was stopped" in said(pilot))
    await until(pilot, lambda: all(worker.is_finished for worker in measuring))


async def drafted(pilot: Pilot[object]) -> DraftScreen:
    """The second step, its file read."""
    await pilot.press("m")
    await until(pilot, lambda: isinstance(pilot.app.screen, PlacesScreen) and "my sums.csv" in said(pilot))
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, DraftScreen) and "number" in said(pilot))
    screen = pilot.app.screen
    assert isinstance(screen, DraftScreen)
    await until(pilot, lambda: screen.focused is not None)
    return screen


@pytest.mark.timeout(300)
async def test_a_messy_file_becomes_a_model_with_a_held_out_figure_by_ten_keys(home: Home, tmp_path: Path) -> None:
    async with terminal(home.config, [sys.executable, "-m", "sapo_desktop"], 80, 24) as shown:
        keys = Keys(shown)
        await keys.press(until=r"Last rollouts")
        await keys.press("m", until=r"my sums\.csv")
        await keys.press(
            ENTER, until="236 rows to train on, 59 held out.*number +the answers are whole numbers.*Row 10: "
        )
        told = shown.text()
        await keys.press("\x1b[6~", until=r"has several rows")
        told += shown.text()
        for sentence in ("Row 30: column question has 20,000", "Row 50: ", "Row 60: a quote", "Row 70: 2 cells"):
            assert f"Left out. {sentence}" in told
        await keys.press(ENTER, until=r"What to expect.*training questions.*judged wrong.*40\)")
        await keys.press(ENTER, until=r"my_sums · silo.*my_sums +\d+")
        await keys.press("4", until=r"my_sums.*made from fake:0")
    found = store.find_model(home, "my_sums")
    assert found.config.tasks == ("my_sums",)
    measured = [e for e in read_only(found.folder / "journal.db") if isinstance(e, Evaluated)]
    assert [(score.task, score.items) for score in measured[0].tasks] == [("my_sums", 59)]


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (200, 60)])
async def test_every_step_can_be_read_and_worked_by_keys_at_every_size(home: Home, size: tuple[int, int]) -> None:
    async with dashboard(home).run_test(size=size) as pilot:
        screen = await drafted(pilot)
        for field in ("question", "answer", "prompt", "rules", "extract", "verifier", "base"):
            await pilot.press("down")
            assert screen.focused is not None
            assert screen.focused.id == field
            await pilot.pause()
            assert screen.focused.region.y < size[1] - 1, "the field is in sight, above the keys"
        read = said(pilot)
        for _ in range(12):
            await pilot.press("pagedown")
            await pilot.pause()
            read += said(pilot)
        assert "stay together" in " ".join(read.replace("│", " ").split())
        assert "Esc back" in said(pilot)
        await pilot.press("escape", "escape")
        assert not isinstance(pilot.app.screen, (DraftScreen, PlacesScreen))
    assert not home.tasks.exists()


async def test_what_is_wrong_with_a_file_stands_before_its_rows_and_in_sight(home: Home) -> None:
    async with dashboard(home).run_test(size=(80, 24)) as pilot:
        await drafted(pilot)
        text = said(pilot)
        assert "things to look at" in text
        assert "Row 10: answer is empty" in text


async def test_a_file_that_cannot_be_read_leaves_only_the_way_back(home: Home, tmp_path: Path) -> None:
    (tmp_path / "docs" / "one.csv").write_text("question\nwhat?\n")
    async with dashboard(home).run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await until(pilot, lambda: "one.csv" in said(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: "one.csv holds one question" in said(pilot))
        await pilot.pause()
        assert "one moment" not in said(pilot)
        assert "store" not in said(pilot)
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, PlacesScreen)


async def test_columns_wording_and_verifier_are_the_persons_to_change(home: Home) -> None:
    async with dashboard(home).run_test(size=(120, 50)) as pilot:
        screen = await drafted(pilot)
        screen.query_one("#verifier").focus()
        await pilot.press("right")
        assert screen.query_one("#verifier", Choice).value == "exact"
        screen.query_one("#prompt", Input).value = "Tell me: {question} ({note})"
        screen.query_one("#name", Input).value = "sums two"
        await until(pilot, lambda: "Tell me: Calculate 0 + 0. (x)" in said(pilot))
        screen.query_one("#prompt", Input).value = "{nothing}"
        await until(pilot, lambda: "has no column 'nothing'" in said(pilot))
        screen.query_one("#prompt", Input).value = "Tell me: {question}"
        await until(pilot, lambda: "has no column" not in said(pilot))
        await pilot.press("enter")
        await stopped(pilot)
        await pilot.press("escape")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceDialog) and "already" in said(pilot))
        await pilot.press("escape")
    spec = read_task(home.tasks / "sums_two").spec
    assert (spec.prompt, [type(part).__name__ for part in spec.verifier]) == ("Tell me: {question}", ["ExactVerifier"])


async def test_a_table_without_answers_becomes_a_task_by_rules_that_are_typed(home: Home, tmp_path: Path) -> None:
    (tmp_path / "docs" / "goods.csv").write_text("product\n" + "".join(f"lamp {n}\n" for n in range(40)), "utf-8")
    async with dashboard(home).run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await until(pilot, lambda: isinstance(pilot.app.screen, PlacesScreen) and "goods.csv" in said(pilot))
        pilot.app.screen.query_one(Input).value = "goods.csv"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, DraftScreen) and "rows to train on" in said(pilot))
        screen = pilot.app.screen
        rules = screen.query_one("#rules", Input)
        assert rules.value == "at most 20 words"
        assert "No rule names a column" in said(pilot)
        assert not screen.query_one("#answer").display
        rules.value = "short"
        await until(pilot, lambda: "'short' is no rule" in said(pilot))
        rules.value = "at most 8 words; contains {product}"
        await until(pilot, lambda: "Nothing to warn of" in said(pilot) or "Only" in said(pilot))
        await pilot.press("enter")
        await stopped(pilot)
    spec = read_task(home.tasks / "goods").spec
    assert spec.prompt == "{product}\nRules: at most 8 words; contains {product}"


async def test_the_mouse_does_the_same(home: Home) -> None:
    async with dashboard(home).run_test(size=(100, 40)) as pilot:
        await pilot.press("m")
        await until(pilot, lambda: isinstance(pilot.app.screen, PlacesScreen) and "my sums.csv" in said(pilot))
        await pilot.click("#places", offset=(3, 0))
        await until(pilot, lambda: isinstance(pilot.app.screen, DraftScreen) and "rows to train on" in said(pilot))
        await pilot.click("#extract", offset=(3, 0))
        await until(pilot, lambda: "its last line is the answer" in said(pilot))
        bar = pilot.app.screen.query_one(KeyBar).region
        line = said(pilot).splitlines()[bar.y]
        await pilot.click(offset=(line.index("store and"), bar.y))
        await stopped(pilot)
    assert read_task(home.tasks / "my_sums").spec.extract == "last_line"


async def test_a_path_is_typed_with_its_folders_on_offer(home: Home, tmp_path: Path) -> None:
    (tmp_path / "docs" / "deep").mkdir()
    (tmp_path / "docs" / "deep" / "codes.tsv").write_text("question\tanswer\nA?\tB\nC?\tD\n")
    (tmp_path / "docs" / "empty.csv").write_text("question,answer\n")
    app = dashboard(home)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await until(pilot, lambda: isinstance(pilot.app.screen, PlacesScreen) and "deep" in said(pilot))
        assert "unit_conversion" in said(pilot)
        screen = pilot.app.screen
        screen.query_one("#path", Input).value = f"{tmp_path}/docs/dee"
        await until(pilot, lambda: "my sums.csv" not in said(pilot))
        await pilot.press("down", "enter")
        await until(pilot, lambda: "codes.tsv" in said(pilot))
        screen.query_one("#path", Input).value = str(tmp_path / "docs" / "empty.csv")
        await until(pilot, lambda: "codes.tsv" not in said(pilot) and "empty.csv" in said(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: "holds no usable row" in said(pilot))
        await pilot.press("escape")
        screen.query_one("#path", Input).value = "/nowhere/at/all/"
        await until(pilot, lambda: "cannot be read" in said(pilot))
        screen.query_one("#path", Input).value = "/nowhere/file.csv"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, DraftScreen) and "No such file" in said(pilot))
        await pilot.press("escape")
        screen.query_one("#path", Input).value = ""
        for key in (*"deep/codes.tsv", "enter"):
            app.post_message(events.Key(key, key if len(key) == 1 else None))
        await until(pilot, lambda: isinstance(pilot.app.screen, DraftScreen) and "codes.tsv" in said(pilot))


async def test_beside_names_in_wide_characters_the_sizes_of_files_stand_in_one_column(
    home: Home, tmp_path: Path
) -> None:
    messy(tmp_path / "docs" / "數學題目數學題目.csv")
    async with dashboard(home).run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await until(pilot, lambda: isinstance(pilot.app.screen, PlacesScreen) and "my sums.csv" in said(pilot))
        options = pilot.app.screen.query_one("#places", OptionList).options
        lines = [str(option.prompt) for option in options if ".csv" in str(option.prompt)]
    assert len(lines) == 2
    assert len({cell_len(re.split(" {2,}", line)[0] + re.findall(" {2,}", line)[0]) for line in lines}) == 1


async def test_an_example_is_taken_in_the_wizard(home: Home) -> None:
    async with dashboard(home).run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await until(pilot, lambda: isinstance(pilot.app.screen, PlacesScreen) and "gear_ratio" in said(pilot))
        await pilot.press(*["down"] * (2 + examples.example_names().index("gear_ratio")), "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, DraftScreen) and "446 rows" in said(pilot))
        await pilot.press("enter")
        await stopped(pilot)
    assert (home.tasks / "gear_ratio" / "task.toml").exists()


async def test_the_first_questions_lead_through_the_wizard_to_a_model_on_the_file(home: Home) -> None:
    answered: list[FirstRunAnswers | None] = []
    info = FirstRunInfo(
        hardware=(("fake", "tests"),), models=(("fake:0.3", ""),), tasks=((OWN, "mine"),), limits=(("full", ""),)
    )
    app = SapoDashboard(
        ReplayFeed([], 0), True, lambda given: answered.append(given), lambda: info, task_actions=HomeTasks(home)
    )
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: isinstance(pilot.app.screen, FirstRunScreen))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, PlacesScreen) and "my sums.csv" in said(pilot))
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, FirstRunScreen), "Esc leads back to the questions"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, PlacesScreen) and "my sums.csv" in said(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, DraftScreen) and "rows to train on" in said(pilot))
        await pilot.press("enter")
        await stopped(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: bool(answered))
    assert answered[0] is not None
    assert first_run.first_model(answered[0], home) == ["my_sums"]
    made = store.find_model(home, "my_sums").config
    with library_in(home.tasks):
        assert (made.tasks, made.model, regular_items(made)) == (("my_sums",), "fake:0.3", 59)


async def test_a_model_typed_in_the_first_questions_is_the_one_that_is_trained(home: Home) -> None:
    """It is none of the models on this computer, so the wizard does not know it by itself."""
    answered: list[FirstRunAnswers | None] = []
    info = FirstRunInfo(
        hardware=(("fake", "tests"),), models=((OTHER, "type one"),), tasks=((OWN, "mine"),), limits=(("full", ""),)
    )
    app = SapoDashboard(
        ReplayFeed([], 0), True, lambda given: answered.append(given), lambda: info, task_actions=HomeTasks(home)
    )
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: isinstance(pilot.app.screen, FirstRunScreen))
        pilot.app.screen.query_one("#typed", Input).value = "fake:0.41"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, PlacesScreen) and "my sums.csv" in said(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, DraftScreen) and "rows to train on" in said(pilot))
        assert "fake:0.41" in said(pilot)
        await pilot.press("enter")
        await stopped(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: bool(answered))
    assert answered[0] is not None
    assert (answered[0].model, answered[0].task) == ("fake:0.41", "my_sums")
