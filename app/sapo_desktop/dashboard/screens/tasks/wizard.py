"""The wizard from its first step to the model that is trained on what it made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sapo_desktop.dashboard.host import DashboardHost
from sapo_desktop.dashboard.screens.tasks.places import PlacesScreen
from sapo_desktop.errors import known
from sapo_desktop.services.tasks.wizard.interface import Made

if TYPE_CHECKING:
    from sapo_desktop.services.tasks.wizard.actions import HomeTasks


def open_wizard(app: DashboardHost) -> None:
    """Ask for the file and the rest, then let the node train a new model on the task."""
    actions = app.task_actions
    if actions is None:
        app.say("There are no tasks to be made over a recording")
        return

    def done(made: Made | None) -> None:
        if made is not None:
            app.say(f"Starting a model on {made.task}")
            app.run_worker(_train(app, actions, made), name="train-on", exit_on_error=True)

    app.push_screen(PlacesScreen(actions), done)


async def _train(app: DashboardHost, actions: HomeTasks, made: Made) -> None:
    try:
        app.say(await actions.train(made.task, made.base))
    except known() as error:
        app.say(str(error), error=True)
    else:
        app.switch_mode("dashboard")
