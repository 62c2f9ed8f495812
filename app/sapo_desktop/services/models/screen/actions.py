"""Screen 4's actions on this home, and its chat. Heavy work runs in threads or in separate processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from sapo_backends.child_process import last_line, stderr_lines
from sapo_backends.errors import size_text
from sapo_backends.packages import is_here
from sapo_desktop import settings
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.models import control
from sapo_desktop.services.models.pieces import NEXT, STOP, ChatChunk, HeldOut, Marks, from_message
from sapo_desktop.services.models.screen.interface import (
    ExportChoice,
    KeptRow,
    KeptTable,
    ModelListing,
    NewModel,
    NewModelInfo,
    ProgressUpdate,
)
from sapo_desktop.services.models.shelf import history, mending, store
from sapo_desktop.services.models.shelf.overview import ModelOverview, load_overview
from sapo_desktop.services.models.shelf.store import Model
from sapo_desktop.services.nodes import children, supervisor
from sapo_desktop.settings import flags
from sapo_swarm.node.control_api import ControlClient, NodeError
from sapo_swarm.node.training_count import TrainingCount

# A working node waits while the dashboard needs the processor and the memory for something else.
#
# The wait is a lease that is renewed: a dashboard that is killed, or whose last message gets lost, holds the node for
# at most LEASE_S.

_AT_WORK = ("running", "starting", "finishing")
LEASE_S, RENEWED_S = 60.0, 20.0
"""Seconds that a node waits without a renewal, and seconds between two renewals."""


@asynccontextmanager
async def node_held(home: Home, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> AsyncIterator[None]:
    """A working node waits during the block and continues after it, unless it was asked to pause before or meanwhile, or
    another block holds it; a paused node stays paused, and without a node nothing happens."""
    holder = 1 + secrets.randbelow(2**53 - 1)
    if not await _hold(home, holder):
        yield
        return
    renewing = asyncio.create_task(_renew(home, holder, sleep))
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with contextlib.suppress(NodeError):
            async with ControlClient(home.socket) as node:
                await node.post("release", holder=holder)


async def _hold(home: Home, holder: int) -> bool:
    """Returns once the node waits, so that what reads its model finds the weights of this moment on the disk."""
    try:
        status = await supervisor.query_status(home)
        if status is None or status.state not in _AT_WORK:
            return False
        await supervisor.send_command(home, "hold", LEASE_S, holder)
    except NodeError:
        return False
    if (model := await control.in_training(home)) is not None:
        await control.unsaved_rounds(home, model)  # the node waits first, then saves
    return True


async def _renew(home: Home, holder: int, sleep: Callable[[float], Awaitable[None]]) -> None:
    """Renew the lease until cancelled."""
    while True:
        await sleep(RENEWED_S)
        with contextlib.suppress(NodeError):
            async with ControlClient(home.socket) as node:
                await node.post("renew", for_s=LEASE_S, holder=holder)


# A chat in the dashboard: a separate process loads the models, and a working node waits meanwhile.


class ChatProcess:
    """An open conversation, over `sapo-desktop chat --json`; closing it releases the memory."""

    def __init__(self, home: Home, model: Model) -> None:
        self.labels = ("base", model.name)
        self.early = ""
        """Why both may well answer alike, "" where an evaluation tells them apart."""
        self.without_marks = ""
        """Why there are no held-out questions to mark; "" where there are."""
        self.wording = ""
        """How a typed question is put to both; "" where it is asked as it is."""
        self._home, self._model = home, model
        self._stack = AsyncExitStack()

    @classmethod
    async def open(cls, home: Home, model: Model) -> ChatProcess:
        """Pause the node if it is working, and load both models. Raises AppError; then the node continues."""
        chat = cls(home, model)
        try:
            await chat._open()
        except BaseException:
            await chat.close()
            raise
        return chat

    async def _open(self) -> None:
        await self._stack.enter_async_context(node_held(self._home))
        self._process = await self._stack.enter_async_context(
            children.verb_process(["chat", self._model.name, "--json"])
        )
        opened = await self._read()
        if "ready" not in opened:
            raise AppError("The chat answers something that is not understood: update sapo-desktop.")
        self.early, self.without_marks = str(opened.get("early", "")), str(opened.get("without_marks", ""))
        self.wording = str(opened.get("wording", ""))

    async def ask(self, question: str) -> AsyncIterator[ChatChunk]:
        """Each model's answer so far, until both are done. Raises AppError."""
        line = " ".join(question.split())
        if not line or line == STOP:
            return
        await self._write(line)
        while "done" not in (part := await self._read()):
            piece = from_message(part)
            assert isinstance(piece, ChatChunk)
            yield piece

    async def next_held_out(self) -> AsyncIterator[HeldOut | ChatChunk | Marks]:
        """The next held-out question, each model's answer to it so far, and the marks; nothing where no question is left.
        Raises AppError."""
        await self._write(NEXT)
        while "done" not in (part := await self._read()):
            yield from_message(part)

    async def stop(self) -> None:
        """End the answer being written; who waits for it gets its end. Raises AppError."""
        await self._write(STOP)

    async def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            await self._process.stdin.drain()
        except OSError as error:
            raise AppError("The chat ended. Close it and open it again.") from error

    async def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            errors = [text async for text in stderr_lines(self._process)]
            raise AppError(last_line("\n".join(errors)) or "The chat ended without a word.")
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    async def close(self) -> None:
        """Release the memory, and let a waiting node continue."""
        await self._stack.aclose()


# Screen 4's actions on this home. Heavy work runs in threads or in separate processes.

_GGUF = {
    "f16": "for llama.cpp, LM Studio and Ollama: 16 bits a weight",
    "q8_0": "the same in 8 bits: half as large, hardly worse",
    "q4_0": "the same in 4 bits: the smallest, worse for small models",
    "same": "your GGUF file itself with the training in it: the same size, for llama.cpp, LM Studio and Ollama",
}
_ROUNDED = "your GGUF file's types, rounded by llama.cpp: the same size, for llama.cpp, LM Studio and Ollama"
_NOT_CHECKED = "; llama.cpp is not installed here, so it is written but not checked"
_NEEDS_LLAMA = "; needs llama.cpp, which is not installed here"
_GGUF_ADAPTER = "an adapter on the GGUF file that you have, for llama.cpp and Ollama: nothing is rounded"
_TO_LM_STUDIO = "a GGUF file in 8 bits in LM Studio's folder, where it lists the model"


class HomeModels:
    """Models are named by their id. Every method raises USER_ERRORS."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._known: dict[str, tuple[float, ModelOverview]] = {}

    # Looking

    async def shelf(self) -> ModelListing:
        """All models as they are now."""
        training = await control.in_training(self._home)
        models, problems = await asyncio.to_thread(self._look)
        return ModelListing(models, training.record.id if training else "", problems)

    def _look(self) -> tuple[tuple[ModelOverview, ...], tuple[str, ...]]:
        overviews = tuple(self._overview(model) for model in store.all_models(self._home))
        return overviews, tuple(unreadable.sentence for unreadable in store.unreadable_models(self._home))

    def _overview(self, model: Model) -> ModelOverview:
        """The model's overview, read again only where something was written since."""
        stamp, id = store.last_change_time(model.folder), model.record.id
        if id not in self._known or self._known[id][0] != stamp:
            self._known[id] = stamp, load_overview(model)
        return self._known[id][1]

    async def _find(self, id: str) -> Model:
        for model in await asyncio.to_thread(store.all_models, self._home):
            if model.record.id == id:
                return model
        raise AppError("This model is not there any more.")

    # Changing

    async def offer(self) -> NewModelInfo:
        """The choices and defaults of "New model"."""
        return await asyncio.to_thread(self._offer)

    def _offer(self) -> NewModelInfo:
        import sapo_assets
        from sapo_desktop.services.bases import local_models
        from sapo_swarm.tasks.own import library

        models = store.all_models(self._home)
        mine = tuple((e, f"exported from {m.name}") for m in models for e in _folders(m))
        toys = tuple((name, sapo_assets.describe_model(name)) for name in sorted(sapo_assets.models()))
        run = settings.load_settings(self._home.settings).run
        first = ((run.model, "as in your settings"),) if run.model not in dict(toys) else ()
        count = f"{len(run.tasks)} task{'' if len(run.tasks) == 1 else 's'}"
        levels = (("starter", "easy"), ("paper", "as hard as in the paper"), ("hard", "harder"))
        presets = tuple((name, f"{count}, {how}") for name, how in levels)
        library.set_task_folder(self._home.tasks)
        own = tuple((name, "a task of yours") for name in library.task_names())
        ordered = (*own, *sorted(presets, key=lambda pair: pair[0] != run.preset))
        listing = local_models.scan_local_bases(run)
        ordered_bases = (*listing.recommended, *(base for base in listing.trainable if base not in listing.recommended))
        local = [(base.base, base.short) for base in ordered_bases if base.base != run.model]
        best = len([base for base in listing.recommended if base.base != run.model])
        bases = (*first, *local[:best], *toys, *mine, *local[best:])
        return NewModelInfo(
            store.unused_name(store.FIRST, store.taken_model_names(self._home)), bases, ordered, len(own)
        )

    async def new(self, answers: NewModel) -> str:
        """Create the model and let the node train it; returns a sentence."""
        model = await asyncio.to_thread(self._new, answers)
        await control.switch_model(self._home, model)
        return f"{model.name} starts from {model.record.base}; the node trains it now"

    def _new(self, answers: NewModel) -> Model:
        from sapo_desktop.services.bases import fetching
        from sapo_desktop.services.models.shelf import keeping

        config = settings.load_settings(self._home.settings).run
        typed = {"model": answers.base, "preset": answers.preset, "tasks": answers.tasks}
        chosen = {name: value for name, value in typed.items() if value}
        run = flags.propose_run(config, fetching.fetch_base_metadata, **chosen)
        return keeping.create_model(self._home, answers.name, run)

    async def proceed(self, id: str) -> str:
        """Let the node train this model; returns a sentence."""
        model = await self._find(id)
        status = await control.switch_model(self._home, model)
        trained = status.trained or (history.trained_count(model) if model.trained else TrainingCount())
        return f"The node trains {model.name}" + (f", which had {trained}" if trained.newest else "")

    async def rename(self, id: str, name: str) -> str:
        """Rename it; returns a sentence."""
        from sapo_desktop.services.models.shelf import keeping

        model = await self._find(id)
        renamed = await asyncio.to_thread(keeping.rename_model, self._home, model, name)
        return f"{model.name} is called {renamed.name} now"

    async def duplicate(self, id: str, name: str) -> str:
        """Create another model with the same weights and history; returns a sentence."""
        from sapo_desktop.services.models.shelf import keeping

        model = await self._find(id)
        copy = await asyncio.to_thread(keeping.duplicate_model, self._home, model, name)
        return f"{copy.name} has the weights and the history of {model.name}"

    async def delete(self, id: str) -> str:
        """Delete it, stopping the node that trains it first; refused while another model starts from an export of it. Returns
        a sentence that says how much space was freed."""
        model = await self._find(id)
        await asyncio.to_thread(mending.require_unused, self._home, model)
        freed = await control.stop_and_delete_model(self._home, model)
        return f"Deleted {model.name}: {size_text(freed)} are free again"

    async def spare(self, id: str) -> tuple[int, int]:
        """(number of checkpoints that can be removed, their bytes)."""
        from sapo_desktop.services.models.shelf import keeping

        checkpoints = await asyncio.to_thread(keeping.spare_checkpoints, await self._find(id), time.time())
        return len(checkpoints), sum(checkpoint.size for checkpoint in checkpoints)

    async def free(self, id: str) -> str:
        """Remove them; returns a sentence."""
        from sapo_desktop.services.models.shelf import keeping

        model = await self._find(id)
        freed = await asyncio.to_thread(lambda: keeping.remove_folders(keeping.spare_checkpoints(model, time.time())))
        return f"{size_text(freed)} are free again"

    async def kept_states(self, id: str) -> KeptTable:
        """The states that it can go back to, newest first."""
        from sapo_desktop.services.models import going_back

        model = await self._find(id)
        states, now = await asyncio.to_thread(going_back.load_kept_states, model), time.time()
        rows = tuple(KeptRow(s.round, going_back.kept_state_line(s, now), s.current) for s in reversed(states))
        return KeptTable(going_back.kept_state_header(), rows, going_back.LEGEND)

    async def go_back(self, id: str, target: int) -> str:
        """Restore the weights of the checkpoint `target`, through the node that trains it or without one; returns a sentence."""
        from sapo_desktop.services.models import going_back

        return await going_back.go_back(self._home, await self._find(id), target)

    # Long work

    async def compare(self, first: str, second: str, items: int) -> AsyncGenerator[ProgressUpdate, None]:
        """Both on the same held-out questions, `items` per task; second "" = the base of the first. Closing it stops the
        work."""
        model = await self._find(first)
        pair = [model.name, (await self._find(second)).name if second else "base"]
        arguments = ["compare", *pair, "--items", str(items), "--table"]
        async for update in _work(arguments):
            if not update.result:
                yield update
                continue
            *table, data = update.result
            yield ProgressUpdate(result=tuple(table), data=json.loads(data))

    async def chat(self, id: str) -> ChatProcess:
        """Load base and trained model; a working node pauses until the conversation is closed."""
        model = await self._find(id)
        if not model.trained:
            raise AppError(f"{model.name} has not been trained yet: there is nothing to compare the base with.")
        return await ChatProcess.open(self._home, model)

    def exports(self, id: str) -> tuple[ExportChoice, ...]:
        """The formats that this model can be written in."""
        from sapo_backends.checkpoints import local_models
        from sapo_desktop.services.models.exports import FORMATS, QUANTS

        sessions = self._known[id][1].story.sessions if id in self._known else ()
        lora = bool(sessions) and sessions[-1].method == "lora"
        from_gguf, missing = self._is_from_gguf(id), "" if is_here("llama_cpp") else _NOT_CHECKED
        found = []
        for name, info in FORMATS.items():
            if name == "gguf":
                quants = [quant for quant in QUANTS if quant != "same" or from_gguf]
                whats = {q: _GGUF[q] + missing for q in quants}
                if not lora and from_gguf:
                    whats["same"] = _ROUNDED + (_NEEDS_LLAMA if missing else "")
                found += [ExportChoice(f"gguf {q}", whats[q], ("--format", name, "--quant", q)) for q in quants]
            elif name != "adapter":
                found.append(ExportChoice(name, info.what, ("--format", name)))
            elif lora:
                what = _GGUF_ADAPTER + missing if from_gguf else info.what
                found.insert(0 if from_gguf else len(found), ExportChoice(name, what, ("--format", name)))
        if any(folder.is_dir() for folder in local_models.lm_studio_folders()):
            arguments = ("--to-lmstudio", "--quant", "q8_0")
            found.insert(
                1 if from_gguf and lora else 0, ExportChoice("gguf for LM Studio", _TO_LM_STUDIO + missing, arguments)
            )
        return tuple(found)

    def _is_from_gguf(self, id: str) -> bool:
        from sapo_backends.checkpoints import locate

        return id in self._known and locate.gguf_file(self._known[id][1].model.config.model) is not None

    async def export(self, id: str, choice: ExportChoice) -> AsyncGenerator[ProgressUpdate, None]:
        """Export it, with what a node has trained so far; a working node waits meanwhile. Closing the generator stops the
        work, and leaves nothing half written."""
        model = await self._find(id)
        yield ProgressUpdate(progress="Waiting for the node to pause")
        async with node_held(self._home):
            async for update in _work(["export", model.name, *choice.arguments]):
                yield update


def _folders(model: Model) -> list[str]:
    return [str(path.parent) for path in sorted((model.folder / "exports").glob("*/config.json"))]


async def _work(arguments: list[str]) -> AsyncGenerator[ProgressUpdate, None]:
    """Run a command to its end: its error stream is the progress, its output the result. Raises USER_ERRORS."""
    async with contextlib.aclosing(children.stream_verb(arguments)) as steps:
        async for step in steps:
            if isinstance(step, str):
                yield ProgressUpdate(progress=step)
            else:
                yield ProgressUpdate(result=tuple(step.decode("utf-8", "replace").splitlines()))
