"""`sapo-desktop coordinator`: host a swarm."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
from typing import TYPE_CHECKING

from sapo_desktop.commands.parsing import VerbParser
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.swarms import hosting
from sapo_desktop.settings import convert_schema, flags, schema_fields, split_lists
from sapo_swarm.coordinator.settings import CoordinatorSettings

if TYPE_CHECKING:
    from sapo_swarm.coordinator.host import RunningCoordinator

HIGHEST_PORT = 65535


EVERYDAY = ("host", "port", "store", "name", "open", "list", "public", "contact", "tasks", "approve")
"""Flags that --help explains; --help-all explains all of them."""


def add_arguments(parser: argparse.ArgumentParser, _verb: str) -> None:
    """The verb's flags."""
    defaults = {"store": "the app's data folder", "tasks": "all"}
    fields = schema_fields(CoordinatorSettings)
    flags.add_flags(parser, (field._replace(default=defaults.get(field.key, field.default)) for field in fields))
    if isinstance(parser, VerbParser):
        parser.shorten_help(*EVERYDAY)


def main(args: argparse.Namespace) -> int:
    """Run the verb; its exit code. Raises AppError."""
    from sapo_swarm.coordinator.store.base import StoreError

    home = Home.find()
    home.prepare()
    settings = _settings(args, home)
    if (other := hosting.find_coordinator(home)) is not None:
        raise AppError(f"A coordinator runs here already (process {other.pid}). End it with: sapo-desktop swarm stop")
    try:
        asyncio.run(_serve(home, settings))
    except StoreError as error:
        raise AppError(f"The coordinator cannot start: {error}") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            free = (settings.port + 1) % (HIGHEST_PORT + 1)
            raise AppError(f"Port {settings.port} is taken. Name another: --port {free}") from error
        raise AppError(
            f"The coordinator cannot listen on {settings.host}:{settings.port} ({error.strerror})."
        ) from error
    return 0


async def _serve(home: Home, settings: CoordinatorSettings) -> None:
    """Host until SIGINT, SIGTERM or `swarm stop`; meanwhile other verbs can find the coordinator."""
    from sapo_swarm.coordinator.host import admin_path, serve_coordinator

    admin = str(admin_path(settings).absolute())
    with contextlib.ExitStack() as word:

        async def listening(hosted: RunningCoordinator) -> None:
            swarm = hosted.coordinator.swarm
            state = hosting.this_process(swarm.name, swarm.open, admin)
            word.enter_context(hosting.record_coordinator(home, state))

        await serve_coordinator(settings, listening)


def _settings(args: argparse.Namespace, home: Home) -> CoordinatorSettings:
    """The defaults overridden by the typed flags. Raises UsageError."""
    typed = {k: v for k, v in vars(args).items() if k in CoordinatorSettings.__struct_fields__}
    typed.setdefault("store", f"sqlite:{home.data / 'swarm.sqlite'}")
    if not typed["store"].startswith("sqlite:"):
        typed.setdefault("folder", str(home.data))
    fields = list(schema_fields(CoordinatorSettings))
    return convert_schema(split_lists(typed, fields), CoordinatorSettings, fields, "command line", strict=False)
