"""The doctor's dialog under a pilot; the examination itself where a node or the doctor does not answer."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.functional.app.test_settings_screen import said, until

from sapo_desktop.commands.machine import doctor as verb
from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.look import UNICODE
from sapo_desktop.dashboard.replay import ReplayFeed
from sapo_desktop.dashboard.screens.help import DoctorScreen, finding_line
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.machine import doctor
from sapo_desktop.services.machine.doctor import stream_findings
from sapo_desktop.services.machine.self_test import COLUMN, Finding
from sapo_desktop.services.nodes import children, supervisor
from sapo_swarm.node.control_api import NodeNotAnswering


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    return Home.find()


async def test_the_doctor_tells_its_findings_as_they_come_and_what_mends_them() -> None:
    goes_on = asyncio.Event()

    async def examine() -> AsyncIterator[Finding]:
        yield Finding("ok", "disk", "plenty")
        await goes_on.wait()
        yield Finding("fail", "trainer", "No engine: pip install [x]")

    app = SapoDashboard(ReplayFeed([], 0), examine=examine)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("d")
        await until(pilot, lambda: "✓ disk" in said(pilot))
        assert "Looking" in said(pilot)
        goes_on.set()
        await until(pilot, lambda: "One thing does not work" in said(pilot))
        assert "✗ trainer          No engine: pip install [x]" in said(pilot)
        await pilot.press("escape")
        assert not isinstance(app.screen, DoctorScreen)


async def test_a_doctor_that_fails_itself_says_so() -> None:
    async def examine() -> AsyncIterator[Finding]:
        yield Finding("ok", "disk", "There is room")
        raise AppError("The doctor itself failed.")

    app = SapoDashboard(ReplayFeed([], 0), examine=examine)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("d")
        await until(pilot, lambda: "The doctor itself failed." in said(pilot))


async def test_the_dialog_and_the_terminal_ask_the_same_doctor(home: Home) -> None:
    """One real examination, in the process of its own that the dialog uses."""
    found = [finding.what async for finding in stream_findings()]
    assert {"version", "machine", "disk", "settings", "torch", "activity", "scorer", "node"} <= set(found)
    assert "fake" not in found  # no engine for a person who trains


def test_between_a_findings_name_and_its_text_stands_a_blank_for_every_finding_of_doctor(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.prepare()
    verb.main(Namespace(json=False, self_test=False))
    lines = capsys.readouterr().out.splitlines()
    found = [Finding("ok", line[2 : COLUMN + 2].rstrip(), line[COLUMN + 3 :]) for line in lines]
    assert {"thermal pressure"} <= {finding.what for finding in found}
    assert {line[COLUMN + 2] for line in lines} == {" "}
    for finding in found:
        shown = finding_line(finding, 1000, UNICODE).plain
        assert shown.split() == ["✓", *finding.what.split(), *finding.text.split()]


async def test_a_doctor_that_dies_on_its_way_is_not_taken_for_one_with_nothing_to_mend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = 'print(\'{"verdict": "ok", "what": "disk", "text": "plenty"}\'); raise SystemExit(3)'
    monkeypatch.setattr(children, "own_command", lambda: [sys.executable, "-c", one])
    with pytest.raises(AppError, match="sapo-desktop doctor"):
        assert [finding.what async for finding in stream_findings()] == ["disk"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('trainer = "tourch"', "Did you mean 'torch'?"),
        ('tasks = ["gone_task"]', "gone_task"),
        ('algorithm = "ppo"', "ppo"),
        ('precision = "float23"', "Did you mean 'float32'?"),
        ('device = "gpu"', "There is no device 'gpu'"),
        ('task_tokens = ["bf"]', "such as bf=256"),
    ],
)
def test_the_doctor_fails_on_a_settings_file_that_names_no_such_engine_task_or_algorithm(
    home: Home, line: str, said: str
) -> None:
    home.prepare()
    home.settings.write_text(f"[run]\n{line}\n")
    found = doctor._settings(home)
    assert (found.verdict, found.what) == ("fail", "settings")
    assert said in found.text
    assert {one.what for one in doctor.memory_and_speed_findings(home)} <= {"memory", "speed"}, "the other checks go on"


async def test_a_node_that_does_not_answer_is_a_finding_with_the_way_out(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(_home: Home) -> None:
        raise NodeNotAnswering(0, 9.0)

    monkeypatch.setattr(supervisor, "query_status", silent)
    found = await doctor._node(home)
    assert (found.verdict, found.what) == ("fail", "node")
    assert "not answering for 9 s: try again" in found.text
