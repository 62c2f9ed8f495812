"""What the dashboard can have done, scripted: the same on every machine and at every hour, so that screens can be compared."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from sapo_desktop.services.machine.finding import Finding
from sapo_desktop.services.models.screen.interface import (
    ChatLine,
    ExportChoice,
    ModelActionFailed,
    NewModel,
    NewModelInfo,
    Shelf,
)
from sapo_desktop.services.models.screen.settings_actions import HomeSettings
from sapo_desktop.services.models.shelf.history import Story
from sapo_desktop.services.models.shelf.overview import Overview
from sapo_desktop.services.models.shelf.store import Model, Record
from sapo_desktop.services.tasks.wizard.interface import Place
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Evaluated, Event, RoundFinished, RunStarted

FOLDER = Path("/home/me/models")


def _model(name: str, number: int, events: list[Event], now: float) -> Overview:
    record = Record(
        id=f"{number:032x}",
        name=name,
        base="starter",
        created=now - 86_400 * number,
        method="full",
        precision="float32",
        lora_rank=0,
        config=RunConfig(),
        last_trained=now - 600 * number,
    )
    story = Story(
        tuple(event for event in events if isinstance(event, RunStarted)),
        tuple(event for event in events if isinstance(event, RoundFinished)),
        tuple(event for event in events if isinstance(event, Evaluated)),
    )
    return Overview(Model(FOLDER / name, record, ()), story, 61_000_000 * number)


class ScriptedModels:
    """Two models: one with the rounds that are given, one without any. Nothing can be done with them."""

    def __init__(self, events: list[Event]) -> None:
        now = max(event.time for event in events)
        self.models = (_model("sums", 1, events, now), _model("new-one", 2, [], now))

    async def shelf(self) -> Shelf:
        return Shelf(self.models, self.models[0].model.record.id)

    async def offer(self) -> NewModelInfo:
        return NewModelInfo("another", (("starter", "bundled"),), (("starter", "easy settings"),))

    async def new(self, answers: NewModel) -> str:
        return f"Made {answers.name}"

    async def proceed(self, id: str) -> str:
        return f"The node goes on with {id[-1]}"

    async def spare(self, id: str) -> tuple[int, int]:
        return 0, 0

    def exports(self, id: str) -> tuple[ExportChoice, ...]:
        return (ExportChoice("hf", "for transformers", ("hf",)),)

    async def chat(self, id: str) -> ChatLine:
        raise ModelActionFailed(f"{id[-1]} cannot be loaded here")


class ScriptedTasks:
    """The wizard's first screen: a folder with two tables."""

    async def places(self, typed: str) -> tuple[Place, ...]:
        found = (
            Place("my sums.csv", "/home/me/my sums.csv", "12 kB, 3 min ago"),
            Place("words.jsonl", "/home/me/words.jsonl", "1.2 MB, 4 d ago"),
            Place("..", "/home/", "the folder above", True),
        )
        return tuple(place for place in found if place.name.startswith(typed))

    async def models(self) -> tuple[tuple[str, str], ...]:
        return (("starter", "bundled, nothing to download"),)


class SettingsOfNowhere(HomeSettings):
    """The settings of an empty home, whose place is not told."""

    def describe(self) -> str:
        return "/home/me/config.toml"

    async def restart(self) -> str:
        return "The node starts again."


async def findings() -> AsyncIterator[Finding]:
    """What the doctor of some machine says."""
    yield Finding("ok", "version", "sapo-desktop 0.1.0, Python 3.12.0")
    yield Finding("ok", "machine", "Linux x86_64, 4 cores, 5.5 of 7.7 GiB memory free")
    yield Finding("note", "llama.cpp", "is not installed. To install it: pip install 'sapo-desktop[llamacpp]'")
    yield Finding("fail", "disk", "0.4 GiB free at /home/me. Free at least 1 GiB.")
