"""`sapo-desktop` without a verb: the dashboard, drawn or in lines, with a node behind it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import os
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from sapo_desktop import settings
from sapo_desktop.errors import USER_ERRORS, AppError
from sapo_desktop.paths import Home, own_command, shell_umask

if TYPE_CHECKING:
    from sapo_desktop.dashboard.feed import ControlFeed
    from sapo_desktop.services.first_questions import FirstRunAnswers, FirstRunInfo
    from sapo_desktop.services.machine.self_test import Finding
    from sapo_desktop.services.models.screen.actions import HomeModels
    from sapo_desktop.services.models.screen.settings_actions import HomeSettings
    from sapo_desktop.services.swarms.actions import HomeActions
    from sapo_desktop.services.tasks.wizard.actions import HomeTasks

PATIENCE_S = 1.0
"""Seconds until a stop that takes longer is announced: an empty terminal looks like a hang."""


def main(args: argparse.Namespace) -> int:
    """Open the dashboard, start or find the node; the exit code. Raises UsageError, AppError, BackendError."""
    home = Home.find()
    home.prepare()
    chosen = settings.load_settings(home.settings)
    in_browser = "TEXTUAL_DRIVER" in os.environ  # set by textual-serve, which communicates through pipes
    if not in_browser and in_lines(args, chosen):
        choice, code = _tell(home), 0
    else:
        require_terminal("sapo-desktop --linear, or sapo-desktop node --silo")
        choice, code = _show(home, chosen)
    if choice == "stop":
        return asyncio.run(stop_node(home))
    if choice == "background":
        print("The node keeps working. Look again with sapo-desktop, end it with sapo-desktop stop.")
    return code


def require_terminal(instead: str) -> None:
    """Raises AppError without a terminal or a browser (textual-serve communicates through pipes)."""
    if "TEXTUAL_DRIVER" not in os.environ and not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise AppError(f"The dashboard needs a terminal. Without one: {instead}")


def in_lines(args: argparse.Namespace, chosen: settings.Settings) -> bool:
    """Whether to use lines instead of drawings: by flag or setting, or if the terminal cannot move its cursor (Emacs' shell)."""
    return bool(args.linear) or chosen.ui.linear or os.environ.get("TERM") == "dumb"


def is_new(home: Home) -> bool:
    """Whether this is a first start: no settings, no model and no node exist."""
    traces = (home.settings, home.socket, *home.models.glob("*/model.json"))
    return not any(path.exists() for path in traces)


def _feed(home: Home) -> ControlFeed:
    from sapo_desktop.dashboard.feed import ControlFeed
    from sapo_desktop.services.nodes.supervisor import last_words, starting_pid

    return ControlFeed(home.socket, lambda pid, since: last_words(home, pid, since), lambda: starting_pid(home))


async def _start(home: Home, feed: ControlFeed, answers: FirstRunAnswers | None) -> str:
    """Attach to the running node or start one; if a node is there but does not answer, the feed reports that.

    Returns why a node that has a model did not start, "" if it did: the dashboard, where the way out of it is, stays open and
    the feed reports that too. Raises USER_ERRORS where there is no model, or none could be made.
    """
    from sapo_desktop.services import first_run as questions
    from sapo_desktop.services.nodes import supervisor
    from sapo_swarm.node.control_api import NodeNotAnswering
    from sapo_swarm.protocol.safe_text import safe_text

    arguments = ["--as-left"]  # opening the dashboard is no wish to train what had finished or was paused
    if answers is not None:
        arguments = await asyncio.to_thread(questions.first_model, answers, home)
    feed.refused = ""
    try:
        with contextlib.suppress(NodeNotAnswering):
            if await supervisor.wait_for_status(home) is None:
                await supervisor.launch_node(home, arguments)
    except USER_ERRORS as error:
        if answers is not None or not any(home.models.glob("*/model.json")):
            raise
        feed.refused = safe_text(str(error), 300, lines=False)
    return feed.refused


class _LinearStart:
    """Starts the node for a session in lines, and asks what there is to ask. given: the answers to the first questions, for
    the first start."""

    def __init__(self, home: Home, feed: ControlFeed) -> None:
        from sapo_desktop.linear.questions import FirstRunQuestions, TypedLines

        self.feed = feed
        self.home, self.typed, self.tasks = home, TypedLines(), _tasks(home)
        self.first = FirstRunQuestions(self.typed, print_line, self.tasks)
        self.given: FirstRunAnswers | None = None
        self._begun = False

    async def ask(self) -> bool:
        """Ask the first questions; whether they were answered."""
        from sapo_desktop.services import first_run

        self.given = await self.first.ask(first_run.detect_choices())
        return self.given is not None

    async def start(self) -> None:
        """Start or find the node; once the last model was deleted, ask what the next one shall be."""
        again, self._begun = self._begun, True
        if again and not any(self.home.models.glob("*/model.json")) and not await self.ask():
            print_line("Nothing was started.")
            return
        given, self.given = self.given, None
        if why := await _start(self.home, self.feed, given):
            print_line(why)

    async def make_task(self) -> None:
        """From a table to a model in training."""
        from sapo_desktop.linear.questions import Left, TableQuestions

        try:
            made = await TableQuestions(self.tasks, self.typed, print_line).ask()
            print_line(await self.tasks.train(made.task, made.base))
        except Left:
            print_line("Nothing new is trained")
        except USER_ERRORS as error:
            print_line(str(error))


def _tell(home: Home) -> str | None:
    """Run the dashboard in lines; how the person left it."""
    from sapo_desktop.linear.session import LinearSession

    async def session() -> str | None:
        feed = _feed(home)
        lines = _LinearStart(home, feed)
        if is_new(home) and not await lines.ask():
            print_line("Nothing was started. The questions come again: sapo-desktop --linear")
            return None
        verb = functools.partial(_verb, home)
        return await LinearSession(feed, lines.typed, print_line, verb, lines.start, lines.make_task).run()

    try:
        return asyncio.run(session())
    except KeyboardInterrupt:
        return "background"


def print_line(line: str) -> None:
    """Print a line and flush."""
    print(line, flush=True)


async def _verb(home: Home, arguments: list[str]) -> int:
    """Run a verb typed in the linear dashboard. An invite applies to the node that is running here, as on screen 2."""
    if arguments[:2] != ["node", "--join"] or len(arguments) != 3 or not arguments[2].startswith("sapo:"):
        return await run_verb(arguments)
    from sapo_desktop.services.swarms.actions import HomeActions
    from sapo_swarm.protocol.safe_text import safe_text

    print_line("The node finishes its round, then joins")
    try:
        print_line(await HomeActions(home).join(arguments[2]))
    except USER_ERRORS as error:
        print_line(safe_text(str(error), 600, lines=False))
        return 1
    return 0


async def run_verb(arguments: list[str]) -> int:
    """Run a verb in this terminal as if typed in a shell, in a separate process, so that it can ask and be interrupted."""
    lines = ["--linear"] if arguments[:1] in (["replay"], ["tour"]) else []
    process = await asyncio.create_subprocess_exec(*own_command(), *arguments, *lines, umask=shell_umask())
    try:
        return await process.wait()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise


def release_memory() -> None:
    """Return unused memory to the system. Lines once shown stay in rich's cache of measured widths until 4,096 others
    replace them, half an hour later, and keep whole arenas of Python's allocator from being released."""
    from rich import cells

    from sapo_backends.common import hardware

    if hasattr(cells, "cached_cell_len"):  # another version may have no cache
        cells.cached_cell_len.cache_clear()
    hardware.release_free_memory()


def _show(home: Home, chosen: settings.Settings) -> tuple[str | None, int]:
    """How the person left the dashboard, and the exit code; after a crash Textual prints the reason."""
    from sapo_backends.common import hardware
    from sapo_desktop.dashboard.app import SapoDashboard
    from sapo_desktop.dashboard.host import made_when_used

    hardware.return_freed()
    gc.disable()  # imports create no garbage, and collecting takes a tenth of the time to the first frame
    problem: list[Exception] = []
    timers: list[object] = []

    async def start(answers: FirstRunAnswers | None) -> None:
        """Start the node. An error is shown where the way out of it is; a first start without a model ends with it."""
        _collect_again()
        if not timers:
            timers.append(app.set_interval(hardware.RETURN_EVERY_S, release_memory))
        try:
            if why := await _start(home, feed, answers):
                app.say(why, error=True)
        except USER_ERRORS as error:
            problem.append(error)
            app.exit(None)

    def offer() -> FirstRunInfo:
        from sapo_desktop.services import first_run as questions

        _collect_again()
        return questions.initial_choices()

    feed = _feed(home)
    app = SapoDashboard(
        feed,
        is_new(home),
        start,
        offer,
        glyphs=chosen.ui.glyphs,
        theme=chosen.ui.theme,
        model_actions=made_when_used(functools.partial(_models, home)),
        swarm_actions=made_when_used(functools.partial(_swarms, home)),
        settings_actions=made_when_used(functools.partial(_settings, home)),
        task_actions=made_when_used(functools.partial(_tasks, home)),
        examine=_examine,
        cache=home.cache,
    )
    choice = app.run()
    if problem:
        raise problem[0]
    return choice, app.return_code or 0


def _collect_again() -> None:
    """Turn collection on again after the first frame. What was imported is frozen, so that no collection scans it again."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _models(home: Home) -> HomeModels:
    from sapo_desktop.services.models.screen.actions import HomeModels

    return HomeModels(home)


def _swarms(home: Home) -> HomeActions:
    from sapo_desktop.services.swarms.actions import HomeActions

    return HomeActions(home)


def _settings(home: Home) -> HomeSettings:
    from sapo_desktop.services.models.screen.settings_actions import HomeSettings

    return HomeSettings(home)


def _tasks(home: Home) -> HomeTasks:
    from sapo_desktop.services.tasks.wizard.actions import HomeTasks

    return HomeTasks(home)


async def _examine() -> AsyncIterator[Finding]:
    from sapo_desktop.services.machine.doctor import stream_findings

    async for finding in stream_findings():
        yield finding


async def stop_node(home: Home) -> int:
    """Stop the node and report that it is gone. Raises AppError if it is not."""
    from sapo_desktop.services.nodes import supervisor
    from sapo_desktop.services.swarms import hosting

    stopping = asyncio.ensure_future(supervisor.shut_down_node(home))
    if not (await asyncio.wait({stopping}, timeout=PATIENCE_S))[0]:
        print("The node saves and exits …", flush=True)
    if await stopping is None:
        print("No node is running.")
    else:
        print("The node has stopped. Everything is saved, and the memory is free.")
    if hosted := hosting.still_open(home):
        print(hosted)
    return 0
