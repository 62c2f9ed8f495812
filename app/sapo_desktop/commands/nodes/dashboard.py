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

from sapo_desktop import settings, umask
from sapo_desktop.errors import USER_ERRORS, AppError
from sapo_desktop.paths import Home, own_command

if TYPE_CHECKING:
    from sapo_desktop.dashboard.feed import ControlFeed
    from sapo_desktop.services.first_questions import FirstRunAnswers, FirstRunInfo
    from sapo_desktop.services.machine.finding import Finding
    from sapo_desktop.services.models.screen.actions import HomeModels
    from sapo_desktop.services.models.screen.settings_actions import HomeSettings
    from sapo_desktop.services.swarms.actions import HomeActions
    from sapo_desktop.services.tasks.wizard.actions import HomeTasks

PATIENCE_S = 1.0
"""A node that takes longer to stop is told of: an empty terminal looks like one that hangs."""


def main(args: argparse.Namespace) -> int:
    """Open the dashboard, start or find the node; the exit code. Raises UsageError, AppError, BackendError."""
    home = Home.find()
    home.prepare()
    if home.runs.is_dir():  # of a version that had no models yet
        from sapo_desktop.services.models.shelf.adopt import migrate_runs

        migrate_runs(home)
    chosen = settings.load_settings(home.settings)
    in_browser = "TEXTUAL_DRIVER" in os.environ  # set by textual-serve, which speaks through pipes
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
    """Raises AppError where there is none, nor a browser (textual-serve speaks through pipes)."""
    if "TEXTUAL_DRIVER" not in os.environ and not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise AppError(f"The dashboard needs a terminal. Without one: {instead}")


def in_lines(args: argparse.Namespace, chosen: settings.Settings) -> bool:
    """Sentences are wanted instead of drawings: typed, set, or the terminal cannot place its cursor (Emacs' shell, say)."""
    return bool(args.linear) or chosen.ui.linear or os.environ.get("TERM") == "dumb"


def is_new(home: Home) -> bool:
    """Nothing was answered yet, no model was made by a verb, and no node runs."""
    traces = (home.settings, home.socket, *home.models.glob("*/model.json"))
    return not any(path.exists() for path in traces)


def _feed(home: Home) -> ControlFeed:
    from sapo_desktop.dashboard.feed import ControlFeed
    from sapo_desktop.services.nodes.supervisor import last_words, starting_pid

    return ControlFeed(home.socket, lambda pid, since: last_words(home, pid, since), lambda: starting_pid(home))


async def _start(home: Home, answers: FirstRunAnswers | None) -> None:
    """Attach to the running node or start one; one that is there and does not answer is left to the feed, which says so.

    Raises USER_ERRORS.
    """
    from sapo_desktop.services import first_run as questions
    from sapo_desktop.services.nodes import supervisor
    from sapo_swarm.node.control_api import NodeNotAnswering

    name = []
    if answers is not None:
        name = await asyncio.to_thread(questions.first_model, answers, home)
    with contextlib.suppress(NodeNotAnswering):
        if await supervisor.wait_for_status(home) is None:
            await supervisor.launch_node(home, name)


def _tell(home: Home) -> str | None:
    """The dashboard in lines."""
    from sapo_desktop.linear.session import FirstRunQuestions, LinearSession, TypedLines
    from sapo_desktop.services import first_run as questions

    async def session() -> str | None:
        typed = TypedLines()
        answers: list[FirstRunAnswers | None] = [None]
        if is_new(home):
            answers = [await FirstRunQuestions(typed, print_line).ask(questions.detect_choices())]
            if answers[0] is None:
                print_line("Nothing was started. The questions come again: sapo-desktop --linear")
                return None
        feed = _feed(home)
        verb = functools.partial(_verb, home)
        return await LinearSession(
            feed, typed, print_line, verb, lambda: _start(home, answers.pop() if answers else None)
        ).run()

    try:
        return asyncio.run(session())
    except KeyboardInterrupt:
        return "background"


def print_line(line: str) -> None:
    """A line, at once."""
    print(line, flush=True)


async def _verb(home: Home, arguments: list[str]) -> int:
    """A verb that is typed in lines. An invite is for the node that is at work here, as on screen 2."""
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
    """A verb as it would be typed, with this terminal: a process of its own, so that it may ask and be ended."""
    lines = ["--linear"] if arguments[:1] in (["replay"], ["tour"]) else []
    process = await asyncio.create_subprocess_exec(*own_command(), *arguments, *lines, umask=umask.of_the_shell())
    try:
        return await process.wait()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise


def release_memory() -> None:
    """Return memory that is of no use. Lines that were on the screen once lie in the table of measured widths until 4,096 others
    came, half an hour later, and keep whole arenas of Python from being returned."""
    from rich import cells

    from sapo_backends.common import hardware

    if hasattr(cells, "cached_cell_len"):  # another version may keep none
        cells.cached_cell_len.cache_clear()
    hardware.release_free_memory()


def _show(home: Home, chosen: settings.Settings) -> tuple[str | None, int]:
    """How it was left, and the exit code: of a dashboard that crashed Textual tells the reason."""
    from sapo_backends.common import hardware
    from sapo_desktop.dashboard.app import SapoDashboard
    from sapo_desktop.dashboard.host import made_when_used

    hardware.return_freed()
    gc.disable()  # nothing that is imported becomes garbage, and looking for it takes a tenth of the time to the first frame
    problem: list[Exception] = []
    timers: list[object] = []

    async def start(answers: FirstRunAnswers | None) -> None:
        """An error ends the dashboard with its sentence."""
        _collect_again()
        if not timers:
            timers.append(app.set_interval(hardware.RETURN_EVERY_S, release_memory))
        try:
            await _start(home, answers)
        except USER_ERRORS as error:
            problem.append(error)
            app.exit(None)

    def offer() -> FirstRunInfo:
        from sapo_desktop.services import first_run as questions

        _collect_again()
        return questions.initial_choices()

    app = SapoDashboard(
        _feed(home),
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
    """After the first frame. What was imported stays: no collection looks at it again."""
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
    """Stop the node and say that it is gone. Raises AppError when it is not."""
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
