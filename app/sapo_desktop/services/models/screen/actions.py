"""Screen 4's actions over this home. What is heavy runs in threads or in processes of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import ParamSpec, TypeVar

import msgspec

from sapo_backends.errors import size_text
from sapo_desktop import settings
from sapo_desktop.errors import known
from sapo_desktop.paths import Home
from sapo_desktop.services.models import control
from sapo_desktop.services.models.screen import children
from sapo_desktop.services.models.screen.conversation import Conversation
from sapo_desktop.services.models.screen.interface import (
    ChatLine,
    ExportChoice,
    ModelActionFailed,
    NewModel,
    NewModelInfo,
    Shelf,
    Told,
)
from sapo_desktop.services.models.screen.own_tasks import fitted
from sapo_desktop.services.models.shelf import base_folder, names, store
from sapo_desktop.services.models.shelf.overview import Overview, overview
from sapo_desktop.services.models.shelf.store import Model
from sapo_desktop.settings import flags

_GGUF = {
    "f16": "for llama.cpp, LM Studio and Ollama: 16 bits a weight",
    "q8_0": "the same in 8 bits: half as large, hardly worse",
    "q4_0": "the same in 4 bits: the smallest, worse for small models",
}
P = ParamSpec("P")
T = TypeVar("T")


class HomeModels:
    """Implements ModelActions."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._known: dict[str, tuple[float, Overview]] = {}

    # Looking

    async def shelf(self) -> Shelf:
        """See ModelActions."""
        training = await control.in_training(self._home)
        models, problems = await _thread(self._look)
        return Shelf(models, training.record.id if training else "", problems)

    def _look(self) -> tuple[tuple[Overview, ...], tuple[str, ...]]:
        found = tuple(self._overview(model) for model in store.all_models(self._home))
        return found, tuple(one.sentence for one in store.unreadable(self._home))

    def _overview(self, model: Model) -> Overview:
        """Read again only where something was written since."""
        stamp, id = store.stamp(model.folder), model.record.id
        if id not in self._known or self._known[id][0] != stamp:
            self._known[id] = stamp, overview(model)
        return self._known[id][1]

    async def _find(self, id: str) -> Model:
        for model in await _thread(store.all_models, self._home):
            if model.record.id == id:
                return model
        raise ModelActionFailed("This model is not there any more.")

    # Changing

    async def offer(self) -> NewModelInfo:
        """See ModelActions."""
        return await _thread(self._offer)

    def _offer(self) -> NewModelInfo:
        from sapo_desktop.services.models.shelf import creating

        models = store.all_models(self._home)
        mine = tuple((e, f"exported from {m.name}") for m in models for e in _folders(m))
        bundled = tuple((name, "bundled, nothing to download") for name, _ in creating.bases())
        chosen = settings.load(self._home.settings).run
        first = ((chosen.model, "as in your settings"),) if chosen.model not in dict(bundled) else ()
        count = f"{len(chosen.tasks)} task{'' if len(chosen.tasks) == 1 else 's'}"
        levels = (("starter", "easy"), ("paper", "as hard as in the paper"), ("hard", "harder"))
        presets = tuple((name, f"{count}, {how}") for name, how in levels)
        ordered = sorted(presets, key=lambda pair: pair[0] != chosen.preset)
        return NewModelInfo(names.free(names.FIRST, store.taken(self._home)), (*first, *bundled, *mine), tuple(ordered))

    async def new(self, answers: NewModel) -> str:
        """See ModelActions."""
        model = await _thread(self._new, answers)
        await _app(control.switch(self._home, model))
        return f"{model.name} starts from {model.record.base}; the node trains it now"

    def _new(self, answers: NewModel) -> Model:
        from sapo_desktop.services.bases import fetching
        from sapo_desktop.services.models.shelf import creating

        config = settings.load(self._home.settings).run
        wanted = msgspec.structs.replace(
            config,
            model=answers.base,
            preset=answers.preset or config.preset,
            tasks=answers.tasks or config.tasks,
        )
        if answers.tasks:
            wanted = fitted(wanted)
        return creating.new(self._home, answers.name, flags.with_room(wanted, fetching.look))

    async def proceed(self, id: str) -> str:
        """See ModelActions."""
        model = await self._find(id)
        status = await _app(control.switch(self._home, model))
        return f"The node trains {model.name}" + (f", from round {status.round + 1} on" if model.trained else "")

    async def rename(self, id: str, name: str) -> str:
        """See ModelActions."""
        from sapo_desktop.services.models.shelf import keeping

        model = await self._find(id)
        renamed = await _thread(keeping.rename, self._home, model, name)
        return f"{model.name} is called {renamed.name} now"

    async def duplicate(self, id: str, name: str) -> str:
        """See ModelActions."""
        from sapo_desktop.services.models.shelf import keeping

        model = await self._find(id)
        copy = await _thread(keeping.duplicate, self._home, model, name)
        return f"{copy.name} has the weights and the history of {model.name}"

    async def delete(self, id: str) -> str:
        """See ModelActions."""
        model = await self._find(id)
        await _thread(base_folder.require_unused, self._home, model)
        freed = await _app(control.delete(self._home, model))
        return f"Deleted {model.name}: {size_text(freed)} are free again"

    async def spare(self, id: str) -> tuple[int, int]:
        """See ModelActions."""
        from sapo_desktop.services.models.shelf import keeping

        found = await _thread(keeping.spare, await self._find(id), time.time())
        return len(found), sum(one.size for one in found)

    async def free(self, id: str) -> str:
        """See ModelActions."""
        from sapo_desktop.services.models.shelf import keeping

        model = await self._find(id)
        freed = await _thread(lambda: keeping.remove(keeping.spare(model, time.time())))
        return f"{size_text(freed)} are free again"

    # Long work

    async def compare(self, first: str, second: str, items: int) -> AsyncIterator[Told]:
        """See ModelActions."""
        one = await self._find(first)
        pair = [one.name, (await self._find(second)).name if second else "base"]
        arguments = ["compare", *pair, "--items", str(items), "--progress", "--table"]
        async for told in _work(arguments):
            if not told.result:
                yield told
                continue
            *table, data = told.result
            yield Told(result=tuple(table), data=json.loads(data))

    async def chat(self, id: str) -> ChatLine:
        """See ModelActions."""
        model = await self._find(id)
        if not model.trained:
            raise ModelActionFailed(
                f"{model.name} has not been trained yet: there is nothing to compare the base with."
            )
        return await Conversation.open(self._home, model)

    def exports(self, id: str) -> tuple[ExportChoice, ...]:
        """See ModelActions."""
        from sapo_desktop.services.models.exports import FORMATS, QUANTS

        sessions = self._known[id][1].story.sessions if id in self._known else ()
        lora = bool(sessions) and sessions[-1].method == "lora"
        found = []
        for name, info in FORMATS.items():
            if name == "gguf":
                found += [ExportChoice(f"gguf {q}", _GGUF[q], ("--format", name, "--quant", q)) for q in QUANTS]
            elif name != "adapter" or lora:
                found.append(ExportChoice(name, info.what, ("--format", name)))
        return tuple(found)

    async def export(self, id: str, choice: ExportChoice) -> AsyncIterator[Told]:
        """See ModelActions."""
        model = await self._find(id)
        async for told in _work(["export", model.name, *choice.arguments, "--progress"]):
            yield told


def _folders(model: Model) -> list[str]:
    return [str(path.parent) for path in sorted((model.folder / "exports").glob("*/config.json"))]


async def _work(arguments: list[str]) -> AsyncIterator[Told]:
    """A verb to its end: its error stream is the progress, its output the result. Raises ModelActionFailed."""
    async with children.child(arguments) as process:
        said = ""
        async with contextlib.aclosing(children.words(process)) as lines:
            async for said in lines:
                yield Told(progress=said)
        written = await children.result(process, said)
    yield Told(result=tuple(written.decode("utf-8", "replace").splitlines()))


async def _thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """In a worker thread; errors of the lower floors are sentences."""
    return await _app(asyncio.to_thread(function, *args, **kwargs))


async def _app(work: Awaitable[T]) -> T:
    try:
        return await work
    except known() as error:
        raise ModelActionFailed(str(error)) from error
