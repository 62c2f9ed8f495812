"""A terminal that goes away takes the dashboard with it, and nothing else: no process is left behind that spins. One that was
stopped takes its terminal back."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest
from tests.support.node_process import FAKE, node, reaches
from tests.support.terminal import terminal

from sapo_swarm.events import RoundFinished

RECORDING = Path(__file__).parents[3] / "assets" / "sapo_assets" / "tour" / "swarm.jsonl"
DASHBOARD = (sys.executable, "-m", "sapo_desktop")


async def test_a_dashboard_whose_terminal_is_gone_ends_and_the_node_goes_on(tmp_path: Path) -> None:
    async with node(tmp_path, *FAKE, "--model", "fake:0.02") as (client, _), terminal(tmp_path, DASHBOARD) as screen:
        await screen.shows(lambda text: "Held-out" in text)
        screen.close()
        assert await screen.ended() == 0
        seen = (await client.status()).seq
        await reaches(client, ("round",), lambda event: isinstance(event, RoundFinished), after=seen)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM], ids=lambda number: number.name)
async def test_a_signal_ends_the_dashboard_and_gives_the_terminal_back(tmp_path: Path, number: signal.Signals) -> None:
    async with terminal(tmp_path, (*DASHBOARD, "replay", str(RECORDING))) as screen:
        await screen.shows(lambda text: "Held-out" in text)
        screen.process.send_signal(number)
        assert await screen.ended() == 0
        await screen.shows(lambda _: b"\x1b[?1049l" in screen.raw)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTSTP], ids=lambda number: number.name)
async def test_a_dashboard_that_was_stopped_goes_on_with_as_many_threads_and_gives_the_terminal_back(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with terminal(tmp_path, (*DASHBOARD, "replay", str(RECORDING))) as screen:
        await screen.shows(lambda text: "Held-out" in text)
        program = psutil.Process(screen.process.pid)
        threads = program.num_threads()
        for taken in range(2, 5):
            program.send_signal(number)
            await screen.shows(lambda _: program.status() == psutil.STATUS_STOPPED)
            program.send_signal(signal.SIGCONT)
            await screen.shows(lambda _, taken=taken: screen.raw.count(b"\x1b[?1049h") == taken)
        await screen.shows(lambda text: "Held-out" in text and "Last rollouts" in text)
        assert program.num_threads() <= threads + 1
        screen.press("2")
        await screen.shows(lambda text: "Last rollouts" not in text)
        assert not screen.echoes
        screen.press("q")
        assert await screen.ended() == 0
        assert screen.echoes
