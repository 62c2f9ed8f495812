"""`sapo-desktop` without a verb: the dashboard, with a node behind it."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import TYPE_CHECKING

from sapo_desktop import settings
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf.adopt import adopt

if TYPE_CHECKING:
    from sapo_backends.base import BackendError


def main(args: argparse.Namespace) -> int:
    """Open the dashboard, start or find the node; the exit code. Raises UsageError, AppError."""
    home = Home.find()
    home.prepare()
    adopt(home)
    chosen = settings.load(home.settings)
    in_browser = "TEXTUAL_DRIVER" in os.environ  # set by textual-serve, which speaks through pipes
    if not in_browser and (not sys.stdout.isatty() or not sys.stdin.isatty()):
        raise AppError("The dashboard needs a terminal. Without one: sapo-desktop node --silo")
    choice = _show(home, chosen)
    if choice == "stop":
        return asyncio.run(stop_node(home))
    if choice == "background":
        print("The node keeps working. Look again with sapo-desktop, end it with sapo-desktop stop.")
    return 0


def _show(home: Home, chosen: settings.Settings) -> str | None:
    from sapo_desktop.dashboard.app import SapoDashboard
    from sapo_desktop.dashboard.feed import ControlFeed
    from sapo_desktop.services.first_questions import FirstRunAnswers, FirstRunInfo
    from sapo_desktop.services.machine.doctor import stream
    from sapo_desktop.services.models.screen.actions import HomeModels
    from sapo_desktop.services.models.screen.settings_actions import HomeSettings
    from sapo_desktop.services.nodes.supervisor import last_words, starting
    from sapo_desktop.services.swarms.actions import HomeActions
    from sapo_desktop.services.tasks.wizard.actions import HomeTasks

    first_run = not home.settings.exists() and not home.socket.exists()
    problem: list[AppError | BackendError] = []

    async def start(answers: FirstRunAnswers | None) -> None:
        """Attach to the running node or start one; an error ends the dashboard with its sentence."""
        from sapo_backends.base import BackendError
        from sapo_desktop.services import first_run as questions
        from sapo_desktop.services.nodes import supervisor

        try:
            name = []
            if answers is not None:
                name = await asyncio.to_thread(questions.first_model, answers, home)
            if await supervisor.running(home) is None:
                await supervisor.start(home, name)
        except (AppError, BackendError) as error:
            problem.append(error)
            app.exit(None)

    def offer() -> FirstRunInfo:
        from sapo_desktop.services import first_run as questions

        return questions.info()

    app = SapoDashboard(
        ControlFeed(home.socket, last_words=lambda: last_words(home), starting=lambda: starting(home)),
        first_run,
        start,
        offer,
        glyphs=chosen.ui.glyphs,
        theme=chosen.ui.theme,
        model_actions=HomeModels(home),
        swarm_actions=HomeActions(home),
        settings_actions=HomeSettings(home),
        task_actions=HomeTasks(home),
        examine=stream,
        cache=home.cache,
    )
    choice = app.run()
    if problem:
        raise problem[0]
    return choice


async def stop_node(home: Home) -> int:
    """Stop the node and say that it is gone. Raises AppError when it is not."""
    from sapo_desktop.services.nodes import supervisor

    if await supervisor.stop(home) is None:
        print("Nothing is running.")
    else:
        print("Stopped. Everything is saved, and the memory is free.")
    return 0
