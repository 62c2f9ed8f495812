"""A model's life by keys alone at 80x24: made, trained, changed, in a swarm and out, measured, asked, taken away, deleted."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.node_process import CALM
from tests.support.terminal import Terminal, terminal

from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import history, store
from sapo_desktop.services.nodes import supervisor
from sapo_desktop.services.swarms import hosting
from sapo_swarm.events import CheckpointSaved, RunStarted
from sapo_swarm.node.journal import read_only

SETTINGS = f"""\
[run]
trainer = "torch"
model = "starter-1m"
threads = 1
tasks = ["basic_arithmetic"]
local_groups = 4
eval_every = 0
eval_items = 8
{CALM}"""
DOWN, ESC, ENTER, F2, PALETTE = "\x1b[B", "\x1b", "\r", "\x1bOQ", "\x10"


@pytest.fixture
async def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Home]:
    """A home whose node and coordinator are gone after the test."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    found = Home.find()
    found.prepare()
    found.settings.write_text(SETTINGS)
    yield found
    await supervisor.shut_down_node(found)
    if hosting.find_coordinator(found) is not None:
        await hosting.stop_coordinator(found)


class Keys:
    """Presses keys and waits for what they bring."""

    def __init__(self, shown: Terminal) -> None:
        self._shown = shown

    async def press(self, *keys: str, until: str) -> None:
        """One key after the other, then until the screen holds the pattern."""
        for key in keys:
            self._shown.press(key)
            await asyncio.sleep(0.05)  # an Esc right before another key would be one sequence
        try:
            await self._shown.shows(lambda text: bool(re.search(until, text, re.DOTALL)))
        except TimeoutError:
            raise AssertionError(f"{until!r} never showed:\n{self._shown.text()}") from None


def events(home: Home, name: str) -> list[object]:
    journal = store.find_model(home, name).folder / "journal.db"
    return list(read_only(journal)) if journal.exists() else []


@pytest.mark.timeout(600)
async def test_a_model_lives_its_life_by_keys_alone(home: Home) -> None:
    async with terminal(home.config, [sys.executable, "-m", "sapo_desktop"], 80, 24) as shown:
        keys = Keys(shown)
        await keys.press(until=r"my-model")
        await keys.press("4", until=r"My models \(1\)")
        await keys.press("n", until="New model")
        await keys.press(*["\x7f"] * 9, *"kim", ENTER, until="kim starts from")
        await keys.press("1", until=r"kim · silo.*Round 1\d")

        await keys.press(F2, until="Settings of the model kim")
        await keys.press("/", *"run.temperature", ENTER, until="Sampling temperature")
        await keys.press(ENTER, until="Enter write")
        await keys.press(*["\x7f"] * 4, *"0.8", ENTER, until=r"0\.8 +! model")
        await keys.press("a", until=r"from the same weights|0\.8    model")
        await keys.press(ESC, until="run.disk_budget_gb")  # the search is cleared first
        await keys.press(ESC, until="Last rollouts")
        await keys.press("1", until=r"local \.\d+.*In the charts: .*C changed")

        await keys.press("2", until="This node trains alone")
        await keys.press("h", until="Host for this machine only")
        await keys.press(DOWN, ENTER, until="sapo://")
        await keys.press("j", until=r"kim · swarm.*made +[1-9]")
        await keys.press("l", until="Leave the swarm")
        await keys.press(ENTER, until=r"kim · silo.*This node trains alone")

        await keys.press(PALETTE, until="Search for commands")
        await keys.press(*"evaluate now", until="Held-out pass@1 after this round")
        gone = r"^(?!.*Held-out pass@1 after this round)"  # until then the palette takes what is typed
        await keys.press(ENTER, until=gone)
        await keys.press("4", until=r"My models \(2\)")
        await keys.press(until=r"▶ kim +\d+\.\d %")

        await keys.press("1", until="Last rollouts")
        await keys.press(" ", until="Paused")
        await keys.press("4", until=r"My models \(2\)")
        await keys.press("v", until="Compare kim with")
        await keys.press(ENTER, until="Items gained")
        await keys.press(ESC, until=r"My models \(2\)")
        await keys.press("t", until=r"kim  \d of 1 right")
        await keys.press(*"What is 2 + 3?", ENTER, until="<answer>[^<]*</answer>.*<answer>")
        await keys.press(ESC, until=r"My models \(2\)")

        await keys.press("e", until="Export kim as")
        await keys.press(DOWN, ENTER, until=r"Wrote kim.*as gguf \(\d+ MB\) to.*Esc close")
        await keys.press(ESC, until=r"^(?!.*Esc close).*My models \(2\)")
        assert list((store.find_model(home, "kim").folder / "exports").rglob("*.gguf"))

        story = history.load_history(store.find_model(home, "kim").folder)
        assert [s.changed for s in story.sessions] == [
            (),
            ("temperature 1.0 -> 0.8",),
            ("joined the swarm at 127.0.0.1",),
            ("left the swarm",),
        ]
        told = events(home, "kim")
        links = [e for e in told if isinstance(e, CheckpointSaved)]
        known = {link.weights for link in links}
        assert all(link.parent in known for link in links[1:]), "each checkpoint goes on from one before it"
        assert all(e.weights in known for e in told if isinstance(e, RunStarted)), "and so does each session"

        await keys.press("x", until="Delete kim")
        await keys.press(DOWN, ENTER, until=r"My models \(1\)")
        assert [model.name for model in store.all_models(home)] == ["my-model"]
