"""A swarm's private task in the dashboard: shown as plain text on joining, accepted with one key, trained on from then on."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.functional.app.test_join_and_host import dashboard, home, until  # noqa: F401 - home is a fixture
from tests.support.node_process import sapo
from tests.support.own_tasks import sums
from tests.support.swarm_process import coordinator
from textual.widgets import Input, Static

from sapo_desktop.dashboard.screens.swarm.dialogs import JoinDialog, TaskDialog
from sapo_desktop.paths import Home
from sapo_desktop.services.nodes import supervisor
from sapo_swarm.tasks.own import library

EVIL = 'description = "[/bad] \\u001b]52;c;AAAA\\u0007 \\u202e sums"\n'
UNITS = [f"{n:064}" for n in range(64)]


async def test_joining_asks_about_the_task_and_one_key_accepts_it(home: Home, tmp_path: Path) -> None:  # noqa: F811
    host = tmp_path / "host"
    folder = sums(host / "data" / "tasks" / "my_sums")
    text = (folder / "task.toml").read_text()
    (folder / "task.toml").write_text(text.replace("[[verifier]]", f"{EVIL}[[verifier]]") + f"units = {UNITS}\n")
    library.set_task_folder(home.tasks)
    async with coordinator(host, "--port", "0") as (invite, _):
        done = await asyncio.to_thread(sapo, host, "tasks", "share", "my_sums")
        assert done.returncode == 0, done.stderr
        await supervisor.launch_node(home, [])
        app = dashboard(home)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: app.state.rounds >= 1)
            await pilot.press("2", "j")
            await until(pilot, lambda: isinstance(app.screen, JoinDialog) and bool(app.screen.query("#invite")))
            app.screen.query_one("#invite", Input).value = invite
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, TaskDialog) and bool(app.screen.query("#lines")))
            shown = str(app.screen.query_one("#lines", Static).visual)
            assert "Description: [/bad] ·]52;c;AAAA· · sums" in shown
            assert "1. Calculate 0 + 0." in shown
            assert "none held out" in shown
            assert all(unit in shown for unit in UNITS)
            assert not library.has_task("my_sums")
            await pilot.press("escape")
            await until(pilot, lambda: not isinstance(app.screen, TaskDialog))
            await pilot.press("t")
            await until(pilot, lambda: isinstance(app.screen, TaskDialog))
            await pilot.press("y")
            await until(pilot, lambda: app.state.run is not None and "my_sums" in app.state.run.tasks)
            assert app.state.run is not None
            assert (app.state.run.mode, app.state.run.tasks) == ("swarm", ("basic_arithmetic", "my_sums"))
            assert library.has_task("my_sums")
        await supervisor.shut_down_node(home)
    library.set_task_folder(None)
