"""The listening sockets: at which addresses, and who is let in before a byte of HTTP is read."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import time
from asyncio import sslproto
from collections import OrderedDict
from collections.abc import Callable

import psutil

from sapo_swarm.coordinator.metrics import CoordinatorMetrics
from sapo_swarm.coordinator.rules import prefix_of
from sapo_swarm.loopback import is_loopback

# The addresses at which a coordinator listens and others reach it.

EVERYWHERE = ("0.0.0.0", "::", "")
"""Hosts that mean every address of this machine."""


def reachable_addresses(host: str, public: str = "") -> list[str]:
    """Where others may reach this host, the likeliest first: the configured public name, then `host` itself, or every address
    of this machine if it listens on all."""
    named = [public] if public else []
    if host not in EVERYWHERE:
        return list(dict.fromkeys([*named, host]))
    families = (socket.AF_INET,) if host == "0.0.0.0" else (socket.AF_INET, socket.AF_INET6)
    addresses = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family in families and not entry.address.lower().startswith("fe80")
    ]
    routed = [_routed(family) for family in families]
    addresses.sort(key=lambda address: (is_loopback(address), address not in routed, ":" in address, address))
    return list(dict.fromkeys([*named, *addresses])) or ["127.0.0.1"]


def _routed(family: socket.AddressFamily) -> str:
    """This machine's address on the route to others, "" without one. Connecting a UDP socket sends nothing."""
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1" if family == socket.AF_INET else "2001:db8::1", 9))
        return str(probe.getsockname()[0])
    return ""


# The listening sockets: who is let in before a byte of HTTP is read.
#
# Half-open TLS handshakes are not yet connections to the server above, so they are counted and timed here. When there
# is no room, the oldest handshake is closed, or the oldest connection on which no member signed anything, of the
# network that holds most: honest clients finish their handshake in milliseconds and come back by themselves. Running
# out of descriptors is a short pause and one line in the log.

log = logging.getLogger("sapo.coordinator.http")
HANDSHAKE_S = 5.0
HANDSHAKES = 128
"""Handshakes at once; beyond that the oldest is closed."""
HANDSHAKES_PER_NETWORK = 32
TLS_BUFFER = 32 * 1024
"""Bytes that asyncio reserves for each TLS connection (256 KiB by default)."""
SPARE_FILES = 64
"""Descriptors left for the store, the log and whatever else a process needs."""
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE_S = 0.2
SWEEP_S = 0.25
BACKLOG = 1024

Protocols = Callable[[], asyncio.BaseProtocol]


class Listener:
    """Accepts connections for a server. most: open ones at once; fewer if the process may not have that many files."""

    def __init__(
        self, protocols: Protocols, most: int, metrics: CoordinatorMetrics, context: ssl.SSLContext | None = None
    ) -> None:
        self.most = min(most, _files() - SPARE_FILES)
        self._metrics = metrics
        self._protocols, self._context = protocols, context
        self._sockets: list[socket.socket] = []
        self._loops: list[asyncio.Task[None]] = []
        self._handshakes: OrderedDict[asyncio.Task[None], str] = OrderedDict()
        self._open: dict[str, OrderedDict[int, asyncio.Transport]] = {}
        self._members: OrderedDict[int, asyncio.Transport] = OrderedDict()
        self._swept = -SWEEP_S
        self._said = -PAUSE_S
        if context is not None:
            sslproto.SSLProtocol.max_size = TLS_BUFFER

    def start(self, host: str, port: int) -> int:
        """Listen on every address of the host; returns the port. Raises OSError. :: means all, like "": one socket per
        family, so that IPv4 peers keep their IPv4 addresses."""
        name = None if host in ("", "::") else host
        addresses = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(addresses):
            if family not in (socket.AF_INET, socket.AF_INET6):
                continue
            place = (address[0], port or self._port(), *address[2:])
            bound = socket.create_server(place, family=family, backlog=BACKLOG)
            bound.setblocking(False)
            self._sockets.append(bound)
        self._loops = [asyncio.create_task(self._accept(bound)) for bound in self._sockets]
        return self._port()

    def _port(self) -> int:
        return int(self._sockets[0].getsockname()[1]) if self._sockets else 0

    async def stop(self) -> None:
        """Accept nothing more; open connections stay the server's."""
        tasks = [*self._loops, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for bound in self._sockets:
            bound.close()

    async def _accept(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(bound)
            except OSError as error:
                if error.errno not in OUT_OF_FILES:
                    continue  # the client was gone before it was let in
                self._make_room(f"The coordinator ran out of files ({error.strerror}); raise `ulimit -n`.")
                await asyncio.sleep(PAUSE_S)
                continue
            self._admit(connection, prefix_of(str(address[0])))

    def _admit(self, connection: socket.socket, network: str) -> None:
        """Start the connection's handshake, in place of an older one if there is no room."""
        self._sweep()
        if self._count() >= self.most:
            self._make_room("The coordinator has as many connections as it may.")
        same = [task for task, of in self._handshakes.items() if of == network] if network else []
        if len(same) >= HANDSHAKES_PER_NETWORK:
            self._give_up(same[0])
        elif len(self._handshakes) >= HANDSHAKES:
            self._give_up(next(iter(self._handshakes)))
        task = asyncio.create_task(self._shake(connection, network))
        self._handshakes[task] = network
        task.add_done_callback(lambda done: self._ended(done, connection))

    def _ended(self, task: asyncio.Task[None], connection: socket.socket) -> None:
        self._handshakes.pop(task, None)
        if task.cancelled():  # before it started
            connection.close()

    async def _shake(self, connection: socket.socket, network: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(HANDSHAKE_S):
                transport, _ = await loop.connect_accepted_socket(self._protocols, connection, ssl=self._context)
        except (OSError, TimeoutError, asyncio.CancelledError):
            connection.close()
            return
        self._open.setdefault(network, OrderedDict())[id(transport)] = transport

    def _give_up(self, task: asyncio.Task[None]) -> None:
        self._metrics.turned_away += 1
        self._handshakes.pop(task, None)
        task.cancel()

    def _make_room(self, why: str) -> None:
        """End the oldest handshake, or the oldest connection of the network that holds most."""
        self._sweep()
        if self._count() >= self.most or why.endswith("`."):
            if self._handshakes:
                self._give_up(next(iter(self._handshakes)))
            else:
                self._end_one()
        if time.monotonic() - self._said > 60.0:
            self._said = time.monotonic()
            log.warning("%s", why)

    def of_member(self, transport: asyncio.BaseTransport) -> None:
        """A member signed a request on this connection: strangers' connections are closed before it."""
        key = id(transport)
        if key in self._members:
            return
        for transports in self._open.values():
            if key in transports:
                self._members[key] = transports.pop(key)
                return

    def _count(self) -> int:
        """Connections and handshakes, some of which may have been closed since the last sweep."""
        return sum(map(len, self._open.values())) + len(self._members) + len(self._handshakes)

    def _end_one(self) -> None:
        """Close the oldest connection of the network with most strangers; a member's only if there are no strangers."""
        crowd = max(self._open.values(), key=len, default=None)
        transports = crowd or self._members
        if transports:
            self._metrics.turned_away += 1
            transports.popitem(last=False)[1].abort()

    def _sweep(self) -> None:
        """Forget closed connections, a kilobyte each; that means checking each, so it is not done at every new one."""
        if time.monotonic() - self._swept < SWEEP_S:
            return
        self._swept = time.monotonic()
        for transports in (*self._open.values(), self._members):
            for key in [key for key, transport in transports.items() if transport.is_closing()]:
                del transports[key]
        self._open = {network: transports for network, transports in self._open.items() if transports}


def raise_file_limit() -> None:
    """Ten thousand connections need as many descriptors: take what the system allows."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, target), hard))


def _files() -> int:
    """Descriptors that this process may have."""
    try:
        import resource
    except ImportError:
        return 1 << 20
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if soft == resource.RLIM_INFINITY else max(soft, 2 * SPARE_FILES)
