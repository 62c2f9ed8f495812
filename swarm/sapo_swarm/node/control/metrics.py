"""The node's metrics for Prometheus: one page on loopback, counted from its events since the process began."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter

from aiohttp import web

from sapo_swarm.events import STATES, Evaluated, Event, GreedyScore, RoundFinished, SwarmUpdated, Vitals
from sapo_swarm.node.clock import steady
from sapo_swarm.node.control.api import NodeStatus
from sapo_swarm.node.control.server import Controlled
from sapo_swarm.node.control.transport import LOOPBACK
from sapo_swarm.servers import CONTENT_TYPE, FewConnections, Page, server_runner


class Counted:
    """What the events say so far: sums since the process began, and the newest of each kind."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.sums: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.round: RoundFinished | None = None
        self.held_out: dict[float, Evaluated | GreedyScore] = {}
        self.swarm: SwarmUpdated | None = None
        self._told = 0.0
        """When the swarm was told of, on the steady clock."""
        self.vitals: Vitals | None = None

    def add(self, event: Event) -> None:
        """Count the event."""
        match event:
            case RoundFinished():
                self.round = event
                self.sums["rounds"] += 1
                for name in _SUMS:
                    self.sums[name] += getattr(event, name)
                for phase, seconds in event.seconds.items():
                    self.seconds[phase] += seconds  # type: ignore[assignment]  # a Counter holds floats too
            case Evaluated():
                self.held_out[event.temperature] = event
                if event.greedy is not None:
                    self.held_out[0.0] = event.greedy
            case SwarmUpdated():
                self.swarm, self._told = event, steady()
            case Vitals():
                self.vitals = event

    def text(self, status: NodeStatus) -> str:
        """The page that Prometheus reads."""
        page = Page("sapo_node_")
        about = {"model": status.name, "backend": status.backend, "device": status.device, "version": status.version}
        page.add_each("info", "gauge", "What is trained, with what.", [(about, 1.0)])
        states = [({"state": state}, float(state == status.state)) for state in STATES]
        page.add_each("state", "gauge", "1 for the state that the node is in.", states)
        page.add("start_time_seconds", "gauge", "Unix time at which the process began.", status.started)
        page.add("model_rounds", "gauge", "Rounds behind the model.", status.round)
        page.add("disk_bytes", "gauge", "Size of the model's folder.", status.disk)
        page.add("rounds_total", "counter", "Rounds finished by this process.", self.sums["rounds"])
        for field, (name, text) in _SUMS.items():
            page.add(f"{name}_total", "counter", text, self.sums[field])
        phases = [({"phase": phase}, float(seconds)) for phase, seconds in self.seconds.items()]
        page.add_each("phase_seconds_total", "counter", "Seconds worked, by phase of a round.", phases)
        for field, (name, text) in _LAST.items():
            page.add(name, "gauge", text, getattr(self.round, field, None))
        for field, text in _HELD_OUT.items():
            found = [({"temperature": f"{t:g}"}, getattr(one, field)) for t, one in self.held_out.items()]
            page.add_each(f"held_out_{field}", "gauge", text, found)
        stands = self.swarm is not None and status.state in _AT_WORK and steady() - self._told < self.swarm.window
        for source, fields in ((self.swarm if stands else None, _SWARM), (self.vitals, _VITALS)):
            for field, (name, text) in fields.items():
                page.add(name, "gauge", text, getattr(source, field, None))
        return page.text()


_SUMS = {
    "local_groups": ("groups_local", "Groups generated here and trained on."),
    "external_groups": ("groups_external", "Groups of other nodes trained on."),
    "nonzero_groups": ("groups_nonzero_advantage", "Groups generated here and trained on, with unequal rewards."),
    "completions": ("completions", "Completions generated."),
    "truncated": ("completions_truncated", "Completions cut at the token limit."),
    "tokens_generated": ("tokens_generated", "Tokens generated."),
    "tokens_trained": ("tokens_trained", "Tokens trained on."),
    "bytes_sent": ("sent_bytes", "Bytes sent to the swarm."),
    "bytes_received": ("received_bytes", "Bytes received from the swarm."),
}
"""Field of a round -> name and help of the counter."""
_LAST = {
    "time": ("last_round_timestamp_seconds", "Unix time at which the newest round ended."),
    "reward_local": ("reward_local", "Mean reward of local groups in the newest round, before the update."),
    "reward_external": ("reward_external", "Mean reward of external groups in the newest round."),
    "reward_batch": ("reward_batch", "Mean reward of the whole training batch in the newest round."),
    "loss": ("loss", "Loss of the newest update."),
    "grad_norm": ("grad_norm", "Gradient norm of the newest update."),
    "entropy": ("entropy", "Entropy of the policy in the newest round."),
    "clip_fraction": ("clip_fraction", "Share of tokens whose ratio was clipped in the newest update."),
}
_HELD_OUT = {
    "pass_at_1": "Held-out pass@1 of the newest evaluation.",
    "low": "Lower end of its 95 % interval.",
    "high": "Upper end of its 95 % interval.",
    "delta": "Difference to the base on the same questions.",
}
_AT_WORK = ("running", "pausing", "finishing")
"""States in which a node exchanges with its swarm: in others nothing is known of it now."""
_SWARM = {
    "connected": ("coordinator_connected", "1 while the coordinator answers."),
    "share": ("share", "Own accepted groups of all accepted groups in the window."),
    "external_share": ("external_share", "External groups of all groups in the last batches."),
    "uptake": ("uptake", "Times that other nodes sampled own groups in the window."),
    "nodes": ("swarm_nodes", "Nodes of the swarm seen lately."),
}
_VITALS = {
    "tokens_per_s": ("tokens_per_second", "Tokens generated per second, lately."),
    "memory": ("memory_bytes", "Memory of the node's processes."),
    "cpu_percent": ("cpu_percent", "Processor time of the node's processes, 100 is a core."),
    "celsius": ("temperature_celsius", "Temperature of the machine, where it can be read."),
}


class MetricsServer:
    """GET /metrics on a bound loopback socket, for programs of this machine. Use `async with`."""

    def __init__(self, node: Controlled, bound: socket.socket) -> None:
        """bound: see listen."""
        self._node, self._bound = node, bound
        self._counted = Counted()
        self._runner: web.AppRunner | None = None
        self._connections: FewConnections | None = None
        self._counting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> MetricsServer:
        ready = asyncio.Event()
        self._counting = asyncio.create_task(self._count(ready))
        await ready.wait()
        app = web.Application(client_max_size=1024)
        app.add_routes([web.get("/metrics", self._page)])
        self._runner = server_runner(app, "sapo.metrics", shutdown_timeout=1.0)
        await self._runner.setup()
        assert self._runner.server is not None
        self._connections = await FewConnections(self._runner.server, self._bound).__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._counting is not None:
            self._counting.cancel()
            await asyncio.gather(self._counting, return_exceptions=True)
        if self._connections is not None:
            await self._connections.__aexit__(*exc)
        if self._runner is not None:
            await self._runner.cleanup()

    async def _count(self, ready: asyncio.Event) -> None:
        """The newest held-out result of before, then everything that happens."""
        try:
            async with self._node.bus.subscribe(0, ("evaluation",), tail=1) as (past, queue):
                for stored in past:
                    self._counted.add(stored)
                ready.set()
                while (event := await queue.get()) is not None:
                    self._counted.add(event)
        finally:
            ready.set()

    async def _page(self, request: web.Request) -> web.Response:
        """The name check keeps out pages whose own name was made to point here."""
        if request.host.rpartition(":")[0] not in (LOOPBACK, "localhost"):
            return web.Response(status=403, text="Metrics are for programs of this machine.\n")
        assert self._connections is not None
        with self._connections.answering(request):
            text = self._counted.text(self._node.status())
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})


def listen(port: int) -> socket.socket:
    """A loopback socket for MetricsServer; port 0: any that is free. Raises OSError."""
    return socket.create_server((LOOPBACK, port))
