"""At which addresses a coordinator listens, and others reach it."""

from __future__ import annotations

import contextlib
import socket

import psutil

from sapo_swarm.servers.loopback import is_loopback

EVERYWHERE = ("0.0.0.0", "::", "")
"""Hosts that mean every address of this machine."""


def addresses(host: str, public: str = "") -> list[str]:
    """Where others may reach this host, the likeliest first: the name that its host gave, then itself, or every address of this
    machine when it listens on all."""
    named = [public] if public else []
    if host not in EVERYWHERE:
        return list(dict.fromkeys([*named, host]))
    families = (socket.AF_INET,) if host == "0.0.0.0" else (socket.AF_INET, socket.AF_INET6)
    found = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family in families and not entry.address.lower().startswith("fe80")
    ]
    routed = [_routed(family) for family in families]
    found.sort(key=lambda address: (is_loopback(address), address not in routed, ":" in address, address))
    return list(dict.fromkeys([*named, *found])) or ["127.0.0.1"]


def _routed(family: socket.AddressFamily) -> str:
    """This machine's address on the way to others, "" without one. Connecting a UDP socket sends nothing."""
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1" if family == socket.AF_INET else "2001:db8::1", 9))
        return str(probe.getsockname()[0])
    return ""
