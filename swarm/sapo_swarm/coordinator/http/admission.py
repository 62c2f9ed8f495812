"""Who gets in: rates of networks, nodes and joins, room for one more request, what only the host itself may request."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator

from aiohttp import web

from sapo_swarm.coordinator.domain.limits import UNKNOWN, Buckets, jittered, prefix_of
from sapo_swarm.coordinator.http.addresses import EVERYWHERE
from sapo_swarm.coordinator.http.metrics import Metrics
from sapo_swarm.coordinator.http.problems import Refusal
from sapo_swarm.coordinator.http.requests import client_address
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.servers.loopback import is_loopback

UNREAD_BYTES = 32 * 2**20
"""Of bodies of members that are under way, all together;"""
UNREAD_BYTES_OF_STRANGERS = 8 * 2**20
"""of those whose sender is not known before they are read;"""
UNREAD_PER_NETWORK = 4 * 2**20
"""and of either kind of one network."""
FORWARDED = ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via")
"""Headers by which a proxy gives itself away."""
TASKS_PER_S, TASKS_BURST = 0.1, 20
"""Requests of a member for tasks: each may be answered with two megabytes."""


class Admission:
    """Every method raises Refusal for what stays outside. rng: jitter of Retry-After."""

    def __init__(self, settings: CoordinatorSettings, metrics: Metrics, rng: random.Random) -> None:
        self.stopping = False
        self._settings, self._metrics, self._rng = settings, metrics, rng
        self._unread: Counter[bool] = Counter()
        self._unread_of: Counter[tuple[bool, str]] = Counter()
        self._nodes = Buckets(1.0 / settings.round_every_s, settings.round_burst)
        self._tasks = Buckets(TASKS_PER_S, TASKS_BURST)
        self._prefixes = Buckets(settings.prefix_per_s, 2 * settings.prefix_per_s)
        self._joins = Buckets(settings.joins_per_s, 40 * settings.joins_per_s)

    def request(self, request: web.Request) -> None:
        """Any request at all."""
        if self.stopping:
            raise self.busy("stopping", "The coordinator is shutting down.", 5.0)
        self._network(self._prefixes, request, "Too many requests from this network.")
        if self._metrics.in_flight > self._settings.in_flight:
            raise self.busy("busy", "The coordinator serves as many requests as it can.", 1.0)

    @contextlib.contextmanager
    def reading(self, request: web.Request, limit: int, member: bool) -> Iterator[None]:
        """Room for a body of at most `limit` bytes while it arrives: so much for each network, and so much for all. member: a
        member signed its digest; strangers never take the room of members."""
        size = min(limit, request.content_length or limit)
        network = prefix_of(client_address(request, self._settings.trust_proxy))
        most, of = UNREAD_BYTES if member else UNREAD_BYTES_OF_STRANGERS, (member, network)
        if self._unread[member] + size > most or (network and self._unread_of[of] + size > UNREAD_PER_NETWORK):
            raise self.busy("busy", "Too many bodies are under way.", 2.0)
        self._unread[member] += size
        self._unread_of[of] += size
        try:
            yield
        finally:
            self._unread[member] -= size
            self._unread_of[of] -= size
            if not self._unread_of[of]:
                del self._unread_of[of]

    def join(self, request: web.Request) -> None:
        """A join from this network."""
        self._network(self._joins, request, "Too many nodes join from this network.")

    def node(self, node: str) -> None:
        """A signed request of a member."""
        wait = self._nodes.take(node, time.monotonic())
        if wait:
            raise self.busy("rate_limited", f"One round every {self._settings.round_every_s:g} s.", wait)

    def task(self, node: str) -> None:
        """A member's request for tasks."""
        wait = self._tasks.take(node, time.monotonic())
        if wait:
            raise self.busy("rate_limited", "Too many requests for tasks.", wait)

    def host_only(self, request: web.Request) -> None:
        """The peer itself (no proxy) must be on this machine, and mean it: the name of another site's page may point here. A
        coordinator that listens at one address alone is asked there, from that address."""
        name, chosen = request.host.rpartition(":")[0].strip("[]") or request.host, self._settings.host
        here, named = not prefix_of(request.remote or UNKNOWN), is_loopback(name)
        if chosen not in EVERYWHERE:
            own = request.get_extra_info("sockname", ("",))[0]
            here, named = here or request.remote == own, named or name.lower() in (own, chosen.lower())
        if not here or not named or any(name in request.headers for name in FORWARDED):
            raise Refusal("loopback_only", "This is answered on the host itself only.")

    def busy(self, code: str, detail: str, wait_s: float) -> Refusal:
        """To be raised: come again after about so many seconds."""
        wait = jittered(wait_s, self._rng)
        return Refusal(code, f"{detail} Come again in {wait:.1f} s.", wait)

    def _network(self, buckets: Buckets, request: web.Request, detail: str) -> None:
        prefix = prefix_of(client_address(request, self._settings.trust_proxy))
        wait = buckets.take(prefix, time.monotonic()) if prefix else 0.0
        if wait:
            raise self.busy("rate_limited", detail, wait)
