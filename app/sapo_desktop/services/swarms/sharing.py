"""Custom tasks in a swarm: the host shares one, members review and accept it, a node trains on what was accepted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from sapo_desktop import settings
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.swarms import hosting, membership
from sapo_desktop.services.tasks import store
from sapo_desktop.services.tasks.looking import shorten_text
from sapo_swarm.protocol.client import NodeClient, Refused
from sapo_swarm.protocol.invite import Invite
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.protocol.wire import TaskOffer, build_task_upload
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import FIXTURE, OwnTask
from sapo_swarm.tasks.own.library import SharedTask
from sapo_swarm.tasks.own.spec import needs_truth, truth_column

SHOWN = 5
TRUTH = 2000
"""Characters shown of what a sample row's answer is compared with."""
LINE = 2**20
"""Longer than any line: verifiers, prompts and schema have limits of their own and are shown in full."""


async def share_task(home: Home, name: str, held_out: bool) -> str:
    """Let the members of the swarm hosted here train on a task of this home. held_out: share its held-out rows too.

    Raises NotRunning, UsageError, BadTask, CoordinatorError, AppError.
    """
    if not library.has_task(name):
        raise UsageError(f"There is no task of your own named {name!r}. {store.describe_custom_tasks()}")
    host = hosting.require_coordinator(home)
    if host.open:
        raise UsageError(
            "Anyone may join the swarm that you host, so nothing private is shared in it. Host one by invite."
        )
    task = library.load_task(name)
    upload = await asyncio.to_thread(build_task_upload, task, held_out)
    async with host.client() as admin:
        await admin.share(upload)
    offer = upload.offer
    swarm = host.access().swarm
    _note(
        home,
        SharedTask(swarm=swarm, name=name, digest=offer.hash, held_out=held_out and bool(offer.held_out), mine=True),
    )
    rows = f"{offer.train:,} rows to train on" + (f", {offer.held_out:,} held out" if offer.held_out else "")
    note = "" if offer.held_out else " Its held-out rows stay here: members measure no held-out score of it."
    return (
        f"The swarm trains on {name} now, version {offer.hash[:12]}: whoever holds an invite can read it ({rows}) and sees "
        f"your model's attempts at it.{note}"
    )


async def unshare_task(home: Home, name: str) -> str:
    """Remove a task from the swarm hosted here. Raises NotRunning, CoordinatorError, AppError."""
    host = hosting.require_coordinator(home)
    async with host.client() as admin:
        await admin.unshare(name)
    try:
        library.remove_shared_task(home.tasks, host.access().swarm, name)
    except OSError as error:
        raise AppError(f"Cannot write {home.tasks / library.FILE} ({error.strerror}).") from error
    library.set_task_folder(home.tasks)
    return f"{name} is yours alone again. Members who fetched it still have it; what they do with it stays with them."


def require_unshared(home: Home, name: str) -> None:
    """Raise UsageError while the swarm hosted here trains on the task, CoordinatorError."""
    host = hosting.find_coordinator(home)
    shared = library.shared_in(host.access().swarm).get(name) if host is not None else None
    if shared is not None and shared.mine:
        raise UsageError(
            f"The swarm that you host trains on {name}. Take it out first: sapo-desktop tasks unshare {name}"
        )


@asynccontextmanager
async def member_client(home: Home, invite: Invite | None = None) -> AsyncIterator[NodeClient]:
    """A connection to the coordinator of the invite, or of the saved one. Raises UsageError without one."""
    invite = invite or membership.load_invite(home.invite)
    signer = await asyncio.to_thread(membership.load_identity, home)
    async with NodeClient(invite, signer.identity) as client:
        yield client


async def list_task_offers(client: NodeClient, home: Home) -> tuple[TaskOffer, ...]:
    """The tasks that the swarm offers this member, which joins first where it has not yet. Raises CoordinatorError."""
    try:
        return await client.tasks()
    except Refused as refused:
        if refused.code != "unknown_node":
            raise
    loaded = settings.load_settings(home.settings)
    await client.join(loaded.person.name, membership.public_model_name(loaded.run.model))
    return await client.tasks()


def accept_task(home: Home, swarm: str, offer: TaskOffer, task: OwnTask) -> str:
    """Accept this version for the person and store it under its name. Raises UsageError, AppError."""
    name = offer.name
    accepted = library.shared_in(swarm).get(name)
    if accepted is not None and accepted.mine:
        raise UsageError(f"You share {name} yourself: there is nothing to accept.")
    local = library.load_task(name) if library.is_loadable_task(name) else None
    same = local is not None and offer.hash == (local.digest if offer.held_out else local.train_digest)
    mine = local is None or accepted is None or not library.has_shared_version(name, swarm)
    if library.has_task(name) and not same and mine:
        raise UsageError(
            f"You have another task named {name!r} in {home.tasks / name}, which would be lost. Rename that folder and the "
            f"name in its task.toml, then accept again."
        )
    replaced = None if same else store.store_task(task, home, replace=True)
    _note(home, SharedTask(swarm=swarm, name=name, digest=offer.hash, held_out=bool(offer.held_out), mine=False))
    return f"Accepted {name}, version {offer.hash[:12]}." + (
        f" The one of before is kept in {replaced}." if replaced else ""
    )


def _note(home: Home, entry: SharedTask) -> None:
    try:
        library.add_shared_task(home.tasks, entry)
    except OSError as error:
        raise AppError(f"Cannot write {home.tasks / library.FILE} ({error.strerror}).") from error
    library.set_task_folder(home.tasks)


def preview_offer(offer: TaskOffer, task: OwnTask) -> list[str]:
    """What a person accepts, as lines of plain text: in full, except for the rows, of which the first are shown, and a
    database."""
    spec = task.spec
    held_out = (
        f"{offer.held_out:,} held out" if offer.held_out else "none held out (they stay with the host; no score here)"
    )
    lines = [
        f"Task {spec.name}, version {offer.hash}",
        f"Description: {spec.description or 'none'}",
        f"Licence: {spec.licence or 'not said'}",
        f"Rows: {len(task.train):,} to train on, {held_out}; {offer.size:,} bytes",
        *(f"Judged by: {_verifier(part)}" for part in spec.verifier),
        f"The answer is taken from: {spec.extract}",
        *([f"Tokens of an answer, at most: {spec.max_new_tokens}"] if spec.max_new_tokens else []),
        *([f"JSON Schema: {msgspec.json.encode(task.schema).decode()}"] if task.schema is not None else []),
        *([_database(task)] if task.fixture else []),
        f"Asked: {spec.prompt}",
        *([f"System prompt: {spec.system}"] if spec.system else []),
    ]
    truths = (truth_column(spec, part) for part in spec.verifier if needs_truth(part))
    columns = dict.fromkeys([*truths, *([spec.difficulty] if spec.difficulty else [])])
    for number, row in enumerate(task.train[:SHOWN], 1):
        lines += [f"{number}. {shorten_text(task.question(row))}"]
        lines += [f"   {column}: {shorten_text(row[column], TRUTH)}" for column in columns if column in row]
    return [safe_text(line, LINE, lines=False) for line in lines]


def _verifier(part: msgspec.Struct) -> str:
    """The kind and what differs from its defaults."""
    fields: dict[str, Any] = msgspec.to_builtins(part)
    usual: dict[str, Any] = msgspec.to_builtins(type(part)())
    fields_text = ", ".join(f"{k} = {v!r}" for k, v in fields.items() if k != "kind" and v != usual[k])
    return f"{fields['kind']}{f' ({fields_text})' if fields_text else ''}"


def _database(task: OwnTask) -> str:
    return (
        f"A database of {len(task.fixture):,} bytes, which queries are tried on. What is in it is not shown here. To look first: "
        f"sapo-desktop tasks accept {task.spec.name} stores it as {task.spec.name}/{FIXTURE} among your tasks, and nothing is "
        "trained on before you name the task to a node"
    )
