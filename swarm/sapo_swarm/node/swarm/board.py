"""The leaderboard as this node sees it: looked at from time to time, sooner when the number of nodes has changed."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import asdict, replace

from sapo_swarm.node.swarm.swarm_stats import SwarmStats
from sapo_swarm.protocol.client import CoordinatorError, NodeClient
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.types import Peer

LEADERBOARD_S, NEWCOMER_S = 15.0, 2.0
PEERS = 100
"""Of the leaderboard, with most groups first: each picture of the swarm goes into the journal."""


class Board:
    """Puts the peers into the stats. clock: seconds that are never set back."""

    def __init__(self, client: NodeClient, stats: SwarmStats, clock: Callable[[], float]) -> None:
        self._client, self._stats, self._clock = client, stats, clock
        self._at = -LEADERBOARD_S

    async def look(self, nodes: int) -> None:
        """nodes: that the coordinator tells of. A coordinator that does not answer changes nothing."""
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
