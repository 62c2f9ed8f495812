"""`sapo-desktop swarm`: the swarm hosted here: its status, moving it, ending it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from pathlib import Path

from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home, quote_command
from sapo_desktop.services.swarms import hosting
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.coordinator.store import open_store
from sapo_swarm.coordinator.store.base import Store
from sapo_swarm.protocol.client import CoordinatorError
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.whole_file import write_atomically

LEADING = 20
"""How many nodes status lists, those with the most groups first."""
ACTIONS = ("status", "stop", "waiting", "approve", "export", "import")


def add_arguments(parser: argparse.ArgumentParser, _verb: str) -> None:
    """The verb's flags."""
    parser.add_argument("action", nargs="?", choices=ACTIONS, default="status", help="default: status")
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE|NODE",
        help="export, import: the file (with the swarm's private key); approve: one node (default: all)",
    )
    parser.add_argument(
        "--store", default="", help="import: sqlite:PATH, redis://… or valkey://… (default: the app's own)"
    )


def main(args: argparse.Namespace) -> int:
    """Run the verb; its exit code. Raises AppError."""
    home = Home.find()
    home.prepare()
    if args.action in {"export", "import"} and args.file is None:
        raise UsageError(f"Which file? sapo-desktop swarm {args.action} FILE")
    if args.action == "import":
        return asyncio.run(_import(home, args.file, args.store))
    if args.action == "export":
        if args.file.exists():
            raise UsageError(f"{args.file} exists already: choose another name.")
        return asyncio.run(_export(home, args.file))
    if args.action in {"waiting", "approve"}:
        return asyncio.run(_members(hosting.require_coordinator(home), args.action, str(args.file or "")))
    if args.action == "stop":
        stopped = asyncio.run(hosting.stop_coordinator(home))
        print(
            f"The coordinator (process {stopped.pid}) has stopped. Members go on alone; it knows them when it is back."
        )
        return 0
    return asyncio.run(_status(hosting.require_coordinator(home)))


async def _status(state: hosting.HostedCoordinator) -> int:
    access = state.access()
    print(f"Swarm {safe_text(state.name, 40, lines=False)!r} ({access.swarm}) is hosted by process {state.pid}.")
    print(f"Status page: {access.url}/")
    print(f"Reachable at: {', '.join(access.addresses)}, port {access.port}")
    print("Anyone may join: nobody in it is trusted." if state.open else "Let others in: sapo-desktop invite")
    with contextlib.suppress(CoordinatorError, OSError):  # the coordinator hangs or is ending
        async with state.visitor() as client:
            active, board = (await client.info()).nodes, await client.leaderboard()
        print(
            f"Seen in the last 5 minutes: {active} node{'' if active == 1 else 's'}. Groups in the last hour: {board.total:,}"
        )
        for row in board.nodes[:LEADING]:
            named = f"{safe_text(row.name, 40, lines=False)}, {safe_text(row.model, 40, lines=False)}"
            print(f"{row.node}  {row.groups:>7,} groups, taken {row.uptake:,} times  {named}")
    return 0


async def _members(state: hosting.HostedCoordinator, action: str, node: str) -> int:
    """List the nodes waiting for approval, or approve them."""
    async with state.client() as admin:
        if action == "approve":
            await admin.approve(node)
        waiting = await admin.waiting()
    for member in waiting:
        description = f"{safe_text(member.name, 40, lines=False)}, {safe_text(member.model, 40, lines=False)}"
        print(f"{member.node}  {description}")
    print("Let them in: sapo-desktop swarm approve [NODE]" if waiting else "Nobody waits.")
    return 0


async def _export(home: Home, path: Path) -> int:
    """Export from the running coordinator, or else from the app's store."""
    state = hosting.find_coordinator(home)
    if state is not None:
        async with state.client() as admin:
            data = await admin.export()
    else:
        from sapo_swarm.coordinator.admin import export_swarm

        store = await _open(_own_store(home))
        try:
            data = await export_swarm(store)
        finally:
            await store.close()
    write_atomically(path, data, private=True)
    print(
        f"The swarm is in {path} ({len(data):,} bytes). Whoever has the file can host the swarm: keep it as a password."
    )
    return 0


async def _import(home: Home, path: Path, store_url: str) -> int:
    from sapo_swarm.coordinator.admin import import_swarm

    if hosting.find_coordinator(home) is not None:
        raise AppError("A coordinator runs here. Stop it first: sapo-desktop swarm stop")
    data = await asyncio.to_thread(path.read_bytes)
    store = await _open(store_url or _own_store(home))
    try:
        swarm = await import_swarm(store, data)
    finally:
        await store.close()
    name = safe_text(swarm.name, 40, lines=False)
    print(f"Swarm {name!r} ({safe_text(swarm.swarm, 40, lines=False)}) is in.")
    flags = ["--host", "0.0.0.0", *(["--open"] if swarm.open else []), *(["--store", store_url] if store_url else [])]
    print(f"Host it with: {quote_command('sapo-desktop', 'coordinator', *flags)}")
    print("Other flags that it had, such as --approve or --public, are not in the file: type them again.")
    return 0


def _own_store(home: Home) -> str:
    return f"sqlite:{home.data / 'swarm.sqlite'}"


async def _open(url: str) -> Store:
    store = open_store(CoordinatorSettings(store=url))
    await store.open()
    return store
