"""Coordinators on the local network, by multicast DNS: a hint where one might be, never a reason to trust it.

Needs the extra `lan` (zeroconf). Whoever joins still needs an invite, which holds the certificate's fingerprint.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sapo_backends.packages import install
from sapo_desktop.errors import UsageError
from sapo_swarm.protocol.safe_text import safe_text

SERVICE = "_sapo._tcp.local."
LOOK_S = 2.0
MOST = 8
"""Names shown: a network full of announcements must not fill the screen."""


@asynccontextmanager
async def announced(name: str, port: int, addresses: Sequence[str]) -> AsyncIterator[None]:
    """Tell the local network of a coordinator for as long as the context lasts.

    Raises UsageError without zeroconf, OSError where there is no multicast.
    """
    try:
        from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf
    except ImportError as error:
        raise UsageError(f"Announcing needs zeroconf: {install('zeroconf')}") from error
    packed = [socket.inet_pton(socket.AF_INET6 if ":" in a else socket.AF_INET, a.split("%")[0]) for a in addresses]
    label = "".join(c if c.isalnum() or c in " -" else "-" for c in name)[:40] or "swarm"
    info = AsyncServiceInfo(SERVICE, f"{label}.{SERVICE}", addresses=packed, port=port)
    network = AsyncZeroconf()
    try:
        await network.async_register_service(info, allow_name_change=True)
        yield
    finally:
        await network.async_unregister_all_services()
        await network.async_close()


async def look(seconds: float = LOOK_S) -> tuple[str, ...]:
    """host:port of what announces itself, as text that is safe to show; nothing where zeroconf is not installed."""
    try:
        from zeroconf import ServiceStateChange
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf
    except ImportError:
        return ()
    names: list[str] = []

    def changed(name: str, state_change: ServiceStateChange, **_rest: object) -> None:
        if state_change is ServiceStateChange.Added and len(names) < MOST:
            names.append(name)

    try:
        network = AsyncZeroconf()
    except OSError:  # no network, no hint
        return ()
    try:
        browser = AsyncServiceBrowser(network.zeroconf, SERVICE, handlers=[changed])
        await asyncio.sleep(seconds)
        await browser.async_cancel()
        found = [AsyncServiceInfo(SERVICE, name) for name in names]
        known = [info for info in found if await info.async_request(network.zeroconf, 1000)]
    finally:
        await network.async_close()
    places = [f"{address}:{info.port}" for info in known for address in info.parsed_scoped_addresses()[:1]]
    return tuple(safe_text(place, 60, lines=False) for place in places)
