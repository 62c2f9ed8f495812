"""What screen 2 can have done to the swarm: the dialogs know this much of it, whoever opened the dashboard does the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class ActionFailed(Exception):
    """The message says why and what to do."""


@dataclass(frozen=True)
class Hosted:
    """A coordinator that runs. invites: one line each, the ones that others can reach first. page: its status page."""

    name: str
    invites: tuple[str, ...]
    page: str


class SwarmActions(Protocol):
    """Every method raises ActionFailed."""

    def hosting(self) -> bool:
        """A coordinator of this home runs."""
        ...

    async def join(self, invite: str) -> str:
        """Keep the invite; the node restarts in that swarm after its round. A sentence."""
        ...

    async def host(self, everybody: bool) -> Hosted:
        """A coordinator in the background (the one that runs, if any) and a fresh invite."""
        ...

    async def stop_hosting(self) -> str:
        """End the coordinator of this home. A sentence."""
        ...

    async def leave(self) -> str:
        """Leave the swarm and forget its invite. A sentence."""
        ...

    async def nearby(self) -> tuple[str, ...]:
        """Addresses of coordinators that announce themselves on this network: a hint, nothing to trust."""
        ...
