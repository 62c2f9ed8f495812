"""Which model the node trains, and switching it to another one or restarting it with other settings."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from sapo_desktop import settings
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import keeping, store
from sapo_desktop.services.models.shelf.store import Model
from sapo_desktop.services.nodes import supervisor
from sapo_swarm.node.control_api import ControlClient, NodeError, NodeStatus

_POLL_S = 0.1


async def in_training(home: Home) -> Model | None:
    """The model that the running node trains; None without a node, or while it does not answer."""
    try:
        status = await supervisor.query_status(home)
    except NodeError:
        return None
    return _of(status) if status is not None else None


def _of(status: NodeStatus) -> Model | None:
    try:
        return store.read_model(Path(status.folder))
    except AppError:  # it works in a folder of another kind: the lab's, or an older version's
        return None


SAVED_S = 10.0
"""Seconds that a node which has just paused gets to save its weights."""


async def unsaved_rounds(home: Home, model: Model) -> int:
    """Rounds that the node has trained this model since its newest checkpoint; 0 without a node, or with another model. A
    pause writes a checkpoint: while the node is paused, this waits for it, at most SAVED_S."""
    deadline, folder = time.monotonic() + SAVED_S, model.folder
    while True:
        try:
            status = await supervisor.query_status(home)
        except NodeError:
            return 0
        if status is None or Path(status.folder) != folder:
            return 0
        saved = (await asyncio.to_thread(store.read_model, folder)).checkpoints
        unsaved = status.round - (store.rounds_of(saved[-1]) if saved else 0)
        if unsaved <= 0 or status.state != "paused" or time.monotonic() > deadline:
            return max(unsaved, 0)
        await asyncio.sleep(_POLL_S)


async def current_model(home: Home) -> Model | None:
    """The model that the dashboard shows: the one in training, else the one used last; None where there is none."""
    model = await in_training(home)
    return model or next(iter(store.all_models(home)), None)


async def restart_node(home: Home, keep_mode: bool = False) -> NodeStatus:
    """Let the node finish its round and restart with the present settings; without a node, start one.

    keep_mode: it stays in its swarm, or alone, even if the settings changed. Raises AppError.
    """
    status = await supervisor.wait_for_status(home)
    if status is None:
        return await supervisor.launch_node(home, [])
    model = _of(status)
    arguments = [model.name] if model else []
    if model is not None:
        try:
            async with ControlClient(home.socket) as node:
                goal = (await node.config()).rounds
        except NodeError:
            goal = model.config.rounds
        practised = status.trained.rounds if status.trained else status.round
        arguments += [f"--rounds={goal}"] if goal > practised and goal != model.config.rounds else []
    if keep_mode:
        arguments += _mode(home, status)
    return await supervisor.relaunch_node(home, arguments)


def _mode(home: Home, status: NodeStatus) -> list[str]:
    """The flag that keeps the node in its swarm or alone, where the settings would not."""
    joined = settings.load_settings(home.settings).swarm.join
    if status.mode == "silo":
        return ["--silo"] if joined else []
    return [] if joined else ["--join=saved"]


async def switch_model(home: Home, model: Model) -> NodeStatus:
    """Switch the node to that model, after it finished its round with the other one. Raises AppError."""
    status = await supervisor.wait_for_status(home)
    if status is None:
        return await supervisor.launch_node(home, [model.name])
    if Path(status.folder) == model.folder:
        return status
    return await supervisor.relaunch_node(home, [model.name])


async def stop_and_delete_model(home: Home, model: Model) -> int:
    """Delete the model, after stopping the node that trains it (or is starting to); returns the bytes freed. Raises
    AppError."""
    try:
        status = await supervisor.wait_for_status(home)
    except NodeError as error:
        raise AppError(f"{error} Nothing was deleted.") from error
    training = _of(status) if status is not None else None
    if training is not None and training.folder == model.folder:
        await supervisor.shut_down_node(home)
    return await asyncio.to_thread(keeping.delete_model, model)
