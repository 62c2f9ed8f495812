"""`sapo-desktop coordinator`: host a swarm."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import sys
from typing import TYPE_CHECKING

import msgspec

from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.swarms import hosting, lan
from sapo_swarm.coordinator.settings import CoordinatorSettings

if TYPE_CHECKING:
    from sapo_swarm.coordinator.host import Hosted

HIGHEST_PORT = 65535


def add_arguments(parser: argparse.ArgumentParser, _verb: str) -> None:
    """The verb's flags."""
    parser.add_argument(
        "--announce", action="store_true", help="tell the local network where it is (mDNS); an invite is still needed"
    )
    for field in msgspec.structs.fields(CoordinatorSettings):
        node = msgspec.inspect.type_info(field.type)
        text = str((getattr(node, "extra_json_schema", None) or {}).get("description", ""))
        default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
        shown = "the app's data folder" if field.name == "store" else "all" if field.name == "tasks" else default
        flag = f"--{field.name.replace('_', '-')}"
        help_text = (f"{text} (default: {shown})" if shown != "" else text).replace("%", "%%")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=help_text)
        else:
            metavar = field.name.upper()
            parser.add_argument(flag, default=argparse.SUPPRESS, help=help_text, metavar=metavar)


def main(args: argparse.Namespace) -> int:
    """Run the verb; its exit code. Raises AppError."""
    from sapo_swarm.coordinator.store.base import StoreError

    home = Home.find()
    home.prepare()
    settings = _settings(args, home)
    if (other := hosting.find(home)) is not None:
        raise AppError(f"A coordinator runs here already (process {other.pid}). End it with: sapo-desktop swarm stop")
    try:
        asyncio.run(_serve(home, settings, args.announce))
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


async def _serve(home: Home, settings: CoordinatorSettings, announce: bool) -> None:
    """Host until SIGINT, SIGTERM or `swarm stop`; other verbs find the coordinator meanwhile."""
    from sapo_swarm.coordinator.host import admin_path, serve
    from sapo_swarm.coordinator.http.addresses import addresses
    from sapo_swarm.servers.loopback import is_loopback

    admin = str(admin_path(settings).absolute())
    async with contextlib.AsyncExitStack() as word:

        async def listening(hosted: Hosted) -> None:
            swarm = hosted.coordinator.swarm
            state = hosting.this_process(swarm.name, swarm.open, admin)
            word.enter_context(hosting.announced(home, state))
            if announce:
                outside = [address for address in addresses(settings.host) if not is_loopback(address)]
                try:
                    await word.enter_async_context(lan.announced(swarm.name, hosted.port, outside))
                except OSError as error:
                    why = error.strerror or error
                    print(f"sapo-desktop: The local network could not be told of the swarm ({why}).", file=sys.stderr)

        await serve(settings, listening=listening)


def _settings(args: argparse.Namespace, home: Home) -> CoordinatorSettings:
    """The typed flags over the defaults. Raises UsageError."""
    typed = {k: v for k, v in vars(args).items() if k in CoordinatorSettings.__struct_fields__}
    for name in ("tasks", "presets"):
        if name in typed:
            typed[name] = [part.strip() for part in typed[name].split(",") if part.strip()]
    if "store" not in typed:
        typed["store"] = f"sqlite:{home.data / 'swarm.sqlite'}"
    if not typed["store"].startswith("sqlite:"):
        typed.setdefault("folder", str(home.data))
    try:
        return msgspec.convert(typed, CoordinatorSettings, strict=False)
    except msgspec.ValidationError as error:
        if str(error).endswith("`$.port`"):
            raise UsageError(f"--port is 0 to {HIGHEST_PORT}.") from error
        raise UsageError(str(error)) from error
