"""Hosting a swarm: open the store, create or load the certificate, listen, print the invite, stop in order."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import logging
import os
import secrets
import signal
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from aiohttp import web

from sapo_swarm.coordinator.admin import add_admin, new_invite
from sapo_swarm.coordinator.admin_client import AdminAccess, read_access, write_access
from sapo_swarm.coordinator.listener import EVERYWHERE, Listener, raise_file_limit, reachable_addresses
from sapo_swarm.coordinator.listing import SwarmListing, listed_invite
from sapo_swarm.coordinator.reads import add_snapshots, add_tasks
from sapo_swarm.coordinator.records import SwarmRecord
from sapo_swarm.coordinator.requests import refuse_odd_expectations
from sapo_swarm.coordinator.server import Coordinator
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.coordinator.store import open_store
from sapo_swarm.coordinator.store.base import Store, StoreFormat
from sapo_swarm.coordinator.web import add_page
from sapo_swarm.loopback import is_loopback
from sapo_swarm.protocol.client import CoordinatorError
from sapo_swarm.protocol.invite import Certificate, Invite, make_certificate, new_swarm_id
from sapo_swarm.protocol.safe_text import SafeFormatter, safe_text
from sapo_swarm.protocol.wire import sha256_hex
from sapo_swarm.servers import server_runner

log = logging.getLogger("sapo.coordinator")
FIRST_NAME = "swarm"
"""Name of a swarm that was given none."""
COLLECTED_AFTER = 2_000, 20, 500
"""Thresholds of the cycle collector. A closed connection is a cycle of a kilobyte and some five objects. A full pass over ten
thousand connections takes 0.2 s and finds next to nothing: it runs every twenty million objects."""
STOP_S = 5.0
"""Time for requests in flight to finish."""


@dataclass(slots=True)
class RunningCoordinator:
    """A running coordinator. invites: the first invite at every address of this machine, the likeliest first."""

    coordinator: Coordinator
    store: Store
    runner: web.AppRunner
    host: str
    port: int
    invites: list[Invite]
    admin_key: str
    listener: Listener
    directory: str = ""
    """The line by which its list is found; "" if it serves none."""

    @property
    def invite(self) -> Invite:
        """The first address's invite."""
        return self.invites[0]

    @property
    def url(self) -> str:
        """Base URL of the coordinator at its first address."""
        return self.invite.url

    async def stop(self) -> None:
        """Refuse new requests, finish those in flight, close the store."""
        self.coordinator.admission.stopping = True
        await self.listener.stop()
        await self.runner.cleanup()
        await self.store.close()


async def launch_coordinator(settings: CoordinatorSettings) -> RunningCoordinator:
    """Listen and return. Raises StoreUnavailable, StoreFormat, OSError (address in use)."""
    store = open_store(settings)
    await store.open()
    try:
        swarm = await _swarm_record(store, settings)
        token = ""
        if not swarm.open:
            _, token = await new_invite(store, "made at start", settings.invite_hours, settings.invite_uses)
        coordinator = Coordinator(settings, store, swarm)
        admin_key = _admin_key(settings)
        listing = SwarmListing(coordinator) if settings.list else None
        runner = _runner(coordinator, admin_key, listing)
        await runner.setup()
        context = _tls_context(swarm) if _wants_tls(settings) else None
        assert runner.server is not None
        refuse_odd_expectations(runner.server)
        raise_file_limit()
        listener = Listener(runner.server, settings.connections, coordinator.metrics, context)
        coordinator.of_member = listener.of_member
        port = listener.start(settings.host, settings.port)
    except BaseException:
        await store.close()
        raise
    fingerprint = Certificate(swarm.certificate, swarm.key).fingerprint if context else ""
    invites = [
        Invite(address, port, swarm.swarm, fingerprint, token)
        for address in reachable_addresses(settings.host, settings.public)
        if fingerprint or is_loopback(address)
    ]
    _tell_admin(settings, invites, admin_key)
    hosted = RunningCoordinator(coordinator, store, runner, settings.host, port, invites, admin_key, listener)
    if listing is not None:
        listing.invite = listed_invite(invites, settings.public)
        hosted.directory = str(listing.address)
    return hosted


def _runner(coordinator: Coordinator, admin_key: str, listing: SwarmListing | None) -> web.AppRunner:
    settings, application = coordinator.settings, coordinator.application()
    add_admin(application, coordinator, admin_key)
    add_tasks(application, coordinator)
    add_snapshots(application, coordinator)
    if settings.page:
        add_page(application, coordinator)
    if listing is not None:
        listing.add(application)
    return server_runner(
        application,
        "sapo.coordinator.http",
        auto_decompress=False,
        keepalive_timeout=settings.idle_s,
        lingering_time=1.0,
        shutdown_timeout=STOP_S,
        max_line_size=4096,
        max_field_size=4096,
        max_headers=64,
    )


async def serve_coordinator(
    settings: CoordinatorSettings, listening: Callable[[RunningCoordinator], Awaitable[None]]
) -> None:
    """Host until SIGINT, SIGTERM or the host's stop. Prints the invite and every address. listening: called once, when it is
    up."""
    log_to_stderr()
    gc.set_threshold(*COLLECTED_AFTER)
    hosted = await launch_coordinator(settings)
    print(describe_coordinator(hosted), flush=True)
    ending = hosted.coordinator.ending
    loop = asyncio.get_running_loop()
    for name in ("SIGINT", "SIGTERM"):
        with contextlib.suppress(NotImplementedError, AttributeError):  # Windows: Ctrl-C raises instead
            loop.add_signal_handler(getattr(signal, name), ending.set)
    try:
        await listening(hosted)
        await ending.wait()
    finally:
        await hosted.stop()


def log_to_stderr() -> None:
    """Warnings and worse, made safe to show: they may quote what strangers send."""
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler])


def describe_coordinator(hosted: RunningCoordinator) -> str:
    """What a person needs to know: the invite, the addresses, who may come in."""
    swarm = hosted.coordinator.swarm
    lines = [f"Swarm {safe_text(swarm.name, 40, lines=False)!r} ({swarm.swarm}) listens at {hosted.url}"]
    if swarm.open:
        lines.append("Anyone who reaches it may join: nobody in it is trusted.")
    lines.append("Join it with:")
    lines += [f"  sapo-desktop node --join '{invite}'" for invite in hosted.invites]
    if is_loopback(hosted.host):
        lines.append("It listens on this machine only; --host 0.0.0.0 lets others in.")
    lines.append(f"Status page: {hosted.url}/")
    if hosted.directory:
        lines += ["Found by whoever looks in this directory:", f"  {hosted.directory}"]
    return "\n".join(lines)


async def _swarm_record(store: Store, settings: CoordinatorSettings) -> SwarmRecord:
    """The store's swarm, founded on first use; openness follows the settings, and so does its name if they give one."""
    record = await store.swarm()
    if record is None:
        _refuse_to_replace(settings)
        swarm, now = new_swarm_id(), datetime.datetime.now(datetime.UTC)
        certificate = make_certificate(swarm, now)
        record = await store.found(
            SwarmRecord(
                swarm=swarm,
                name=settings.name or FIRST_NAME,
                open=settings.open,
                certificate=certificate.certificate,
                key=certificate.key,
                created=now.timestamp(),
            )
        )
    name = settings.name or record.name
    if (record.name, record.open) != (name, settings.open):
        record = msgspec.structs.replace(record, name=name, open=settings.open)
        await store.rename(record)
    return record


def _refuse_to_replace(settings: CoordinatorSettings) -> None:
    """Raises StoreFormat if a swarm was hosted that the store does not hold: founding another would lock its members out."""
    path = admin_path(settings)
    try:
        access = read_access(path)
    except CoordinatorError:
        return
    if access.swarm and access.store == sha256_hex(settings.store.encode()):
        raise StoreFormat(
            f"The store held the swarm {access.swarm} and is empty. Put its file back, or import it "
            f"(sapo-desktop swarm import FILE). To found a new swarm instead, remove {path}."
        )


def _wants_tls(settings: CoordinatorSettings) -> bool:
    return settings.tls or not is_loopback(settings.host)


def _tls_context(swarm: SwarmRecord) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.TemporaryDirectory() as folder:  # mode 0700; the ssl module reads certificates from files only
        path = Path(folder) / "swarm.pem"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(swarm.key + swarm.certificate)
        context.load_cert_chain(path)
    return context


def _admin_key(settings: CoordinatorSettings) -> str:
    """The previous coordinator's key, or a new one."""
    try:
        return read_access(admin_path(settings)).key
    except CoordinatorError:
        return secrets.token_hex(32)


def admin_path(settings: CoordinatorSettings) -> Path:
    """The file with the address and the admin key of the coordinator that runs under these settings."""
    if settings.folder:
        return Path(settings.folder) / "coordinator-admin.json"
    if settings.store.startswith("sqlite:"):
        return Path(settings.store.removeprefix("sqlite:")).with_suffix(".admin.json")
    return Path("coordinator-admin.json")


def _tell_admin(settings: CoordinatorSettings, invites: list[Invite], key: str) -> None:
    """Write address and key for the host's own commands."""
    first = invites[0]
    local = first.at("127.0.0.1" if settings.host in EVERYWHERE else settings.host)
    access = AdminAccess(
        key=key,
        url=local.url,
        fingerprint=first.fingerprint,
        swarm=first.swarm,
        port=first.port,
        addresses=tuple(invite.host for invite in invites),
        store=sha256_hex(settings.store.encode()),
    )
    write_access(admin_path(settings), access)
