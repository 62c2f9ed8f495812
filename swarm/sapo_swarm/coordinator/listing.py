"""A coordinator that wants to be found serves a directory of one swarm, its own, signed anew with current figures."""

from __future__ import annotations

from aiohttp import web
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sapo_swarm.coordinator.metrics import CachedValue
from sapo_swarm.coordinator.records import SwarmRecord
from sapo_swarm.coordinator.server import Coordinator
from sapo_swarm.coordinator.window_stats import rounds_per_s
from sapo_swarm.loopback import is_loopback
from sapo_swarm.protocol.directory import DirectoryAddress, DirectoryEntry, SwarmList, sign_directory
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import Invite
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.tasks.catalogue import CATALOGUE

PATH = "/directory.json"
EVERY_S = 600.0
"""How often it is signed anew, if anybody asks."""
LIFE_S = 7 * 86_400
NAMED = 4
"""Most tasks that are named; with more, only their number."""
CHECKS = (
    "each node makes every question anew and scores the answers itself; the coordinator checks signatures and sizes"
)


def directory_identity(swarm: SwarmRecord) -> Identity:
    """The key of the swarm's list: derived from the swarm's private key, so that it moves with the swarm."""
    secret = HKDF(hashes.SHA256(), 32, salt=None, info=b"sapo-directory-v1").derive(swarm.key)
    return Identity(secret)


class SwarmListing:
    """The list of this swarm. invite: how to reach it, set once it listens."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.invite: Invite | None = None
        self._coordinator = coordinator
        self._identity = directory_identity(coordinator.swarm)
        self._sealed = CachedValue(self._seal, EVERY_S, lambda: coordinator.clock())

    @property
    def address(self) -> DirectoryAddress | None:
        """What readers put into their settings; None before it listens."""
        if self.invite is None:
            return None
        return DirectoryAddress(self.invite.url + PATH, self._identity.node, self.invite.fingerprint)

    def add(self, app: web.Application) -> None:
        """The list's route."""
        app.router.add_get(PATH, self._get)

    async def _get(self, _request: web.Request) -> web.Response:
        """GET /directory.json: SignedDirectory."""
        headers = {"Cache-Control": f"max-age={EVERY_S:.0f}"}
        return web.Response(body=await self._sealed(), content_type="application/json", headers=headers)

    async def _seal(self) -> bytes:
        coordinator, swarm, now = self._coordinator, self._coordinator.swarm, self._coordinator.clock()
        stats = await coordinator.stats()
        entry = DirectoryEntry(
            name=safe_text(swarm.name, 39, lines=False) or swarm.swarm,
            trains=describe_tasks(coordinator.settings.tasks),
            nodes=stats.nodes,
            rounds_per_hour=round(3600 * rounds_per_s(stats, now), 1),
            who="anyone" if swarm.open else "invited",
            checks=CHECKS,
            join=str(self.invite) if swarm.open and self.invite is not None else "",
            ask=safe_text(coordinator.settings.contact, 199, lines=False),
        )
        listing = SwarmList(name=entry.name, issued=int(now), expires=int(now) + LIFE_S, swarms=(entry,))
        return sign_directory(listing, self._identity)


def listed_invite(invites: list[Invite], public: str) -> Invite:
    """The invite that is listed, without its token: with the host's public name, else with the first address that others can
    reach."""
    first = next((invite for invite in invites if not is_loopback(invite.host)), invites[0])
    return Invite(public or first.host, first.port, first.swarm, first.fingerprint)


def describe_tasks(tasks: tuple[str, ...]) -> str:
    """What a swarm of these tasks trains on, in words."""
    if set(tasks) >= set(CATALOGUE):
        return f"any of the {len(CATALOGUE)} reasoning tasks"
    more = len(tasks) - NAMED
    return ", ".join(tasks[:NAMED])[:180] + (f" and {more} more" if more > 0 else "")
