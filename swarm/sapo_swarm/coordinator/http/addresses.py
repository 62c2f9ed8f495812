"""At which addresses a coordinator listens, and others reach it."""

from __future__ import annotations

import socket

import psutil

from sapo_swarm.protocol.invite import is_loopback

EVERYWHERE = ("0.0.0.0", "::", "")
"""Hosts that mean every address of this machine."""


def addresses(host: str) -> list[str]:
    """Where others may reach this host: itself, or every address of this machine when it listens on all."""
    if host not in EVERYWHERE:
        return [host]
    found = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family in ((socket.AF_INET,) if host == "0.0.0.0" else (socket.AF_INET, socket.AF_INET6))
        and not entry.address.lower().startswith("fe80")
    ]
    return sorted(found, key=lambda address: (is_loopback(address), ":" in address, address)) or ["127.0.0.1"]
