"""A node's place in a swarm, from the coordinator's receipts and its own count. Pure bookkeeping."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import asdict, replace

from sapo_swarm.events import SwarmUpdated
from sapo_swarm.protocol.client import CoordinatorError, ExchangeResult, NodeClient
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.protocol.wire import MAX_WANT
from sapo_swarm.types import Peer

SHARE_WINDOW = 50
"""Rounds over which the external share is averaged."""
DEFAULT_WINDOW_S = 3600.0


class ExchangeHold(msgspec.Struct, frozen=True):
    """Why the exchange is held until the next start. sentence: the whole of it for people, with what lifts it."""

    reason: str
    sentence: str


@dataclass(slots=True)
class SwarmStats:
    """coordinator: its URL, for people. node: this one. made / accepted / refused: groups sent since the node started.

    held: until the next start. While the coordinator is away, the figures of the last
    successful exchange stay; `sentence` says that it is away.
    """

    coordinator: str
    node: str = ""
    made: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    peers: tuple[Peer, ...] = ()
    held: ExchangeHold | None = None
    _last: ExchangeResult | None = None
    _good: ExchangeResult | None = None
    _batches: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=SHARE_WINDOW))
    _uptakes: deque[tuple[float, int]] = field(default_factory=deque)
    _uptake: int | None = None

    def exchanged(self, result: ExchangeResult, now: float) -> None:
        """Record an exchange that ended, successfully or not. now: seconds that are never set back."""
        self._last = result
        if not result.connected:
            return
        self._good = result
        self.made += result.sent
        self.accepted += result.accepted
        self.refused.update(result.refused)
        self._count_uptake(result.uptake, now)

    @property
    def others(self) -> int:
        """Nodes besides this one that the coordinator saw lately; before it says so, as many as a sample may have."""
        return MAX_WANT if self._good is None else max(1, self._good.nodes - 1)

    def hold(self, hold: ExchangeHold | None) -> None:
        """The exchange is held, or (None) no longer held."""
        self.held = hold

    def said(self, sentence: str) -> None:
        """The coordinator answered something other than an exchange, such as a refused join."""
        self._last = ExchangeResult(False, sentence)

    def trained(self, external: int, batch: int) -> None:
        """Record a batch of this many groups with this many external ones."""
        self._batches.append((external, batch))

    def _count_uptake(self, ever: int, now: float) -> None:
        """The coordinator's count never forgets, so a lost reply loses nothing; a newly founded coordinator starts at 0."""
        before = ever if self._uptake is None else self._uptake
        self._uptake = ever
        if ever > before:
            self._uptakes.append((now, ever - before))

    def uptake(self, now: float) -> int:
        """How often other nodes drew this node's groups within the window (or since this node started, if that is less)."""
        while self._uptakes and now - self._uptakes[0][0] > self.window_s:
            self._uptakes.popleft()
        return sum(count for _, count in self._uptakes)

    @property
    def window_s(self) -> float:
        """Seconds that the shares cover, as the coordinator says."""
        return (self._good.window_s if self._good else 0.0) or DEFAULT_WINDOW_S

    @property
    def external_share(self) -> float:
        """J_actual / (I + J) over the last SHARE_WINDOW batches."""
        external, total = (sum(column) for column in zip(*self._batches, strict=True)) if self._batches else (0, 0)
        return external / total if total else 0.0

    def news(
        self, rejected: Mapping[str, int], now: float, alarm: str = "", unheard: Iterable[str] = ()
    ) -> SwarmUpdated:
        """The complete picture. rejected: reason -> groups received and not taken. alarm: put first if there is one. unheard:
        peers whose groups are never taken."""
        last, good = self._last, self._good
        share, uptake = good.share if good else 0.0, self.uptake(now)
        sentence = (
            f"{self.held.sentence} · training goes on alone" if self.held else last.sentence if last else "Connecting"
        )
        return SwarmUpdated(
            coordinator=self.coordinator,
            connected=last is not None and last.connected and not self.held,
            sentence=" · ".join(filter(None, (alarm, sentence))),
            held=self.held.reason if self.held else "",
            window=self.window_s,
            share=share,
            uptake=uptake,
            external_share=self.external_share,
            nodes=good.nodes if good else 0,
            rounds_per_s=good.rounds_per_s if good else 0.0,
            made=self.made,
            accepted=self.accepted,
            rejected=dict(rejected),
            refused=dict(self.refused),
            peers=tuple(_as_here(peer, share, uptake) if peer.node == self.node else peer for peer in self.peers),
            node=self.node,
            unheard=tuple(unheard),
        )


def _as_here(own: Peer, share: float, uptake: int) -> Peer:
    """This node's row of the leaderboard with its own current figures: the board is read less often."""
    return msgspec.structs.replace(own, share=share, uptake=uptake)


# The leaderboard as this node sees it: read from time to time, sooner when the number of nodes has changed.

LEADERBOARD_S, NEWCOMER_S = 15.0, 2.0
PEERS = 100
"""Peers of the leaderboard that are kept, those with most groups: each picture of the swarm goes into the journal."""


class LeaderboardPoller:
    """Puts the peers into the stats. clock: seconds that are never set back."""

    def __init__(self, client: NodeClient, stats: SwarmStats, clock: Callable[[], float]) -> None:
        self._client, self._stats, self._clock = client, stats, clock
        self._at = -LEADERBOARD_S

    async def look(self, nodes: int) -> None:
        """nodes: the coordinator's count. A coordinator that does not answer changes nothing."""
        pause = LEADERBOARD_S if nodes <= len(self._stats.peers) else NEWCOMER_S
        if self._clock() - self._at < pause:
            return
        self._at = self._clock()
        try:
            board = await self._client.leaderboard()
        except CoordinatorError:
            return
        peers = (Peer(**asdict(row)) for row in board.nodes[:PEERS])
        self._stats.peers = tuple(
            replace(p, name=safe_text(p.name, 40, lines=False), model=safe_text(p.model, 80, lines=False))
            for p in peers
        )
