"""The three figures of a node's place in a swarm: each has one name and one value, wherever it is shown.

All are the node's word in its newest SwarmUpdated. A chart draws them as they were told, without a mean over rounds of its
own, so that its last value is the one on the swarm page and in this node's row among the peers.
"""

from __future__ import annotations

from sapo_swarm.events import SwarmUpdated

MY_SHARE, UPTAKE, EXTERNAL_SHARE = "my share", "uptake", "external share"
MEANINGS = {
    MY_SHARE: "of all groups accepted",
    UPTAKE: "times others sampled mine",
    EXTERNAL_SHARE: "of my last 50 batches",
}
"""What each is of: the first two within the coordinator's window."""


def shares(swarm: SwarmUpdated) -> tuple[tuple[str, str], ...]:
    """Name and value as shown."""
    return (
        (MY_SHARE, f"{100 * swarm.share:.1f} %"),
        (UPTAKE, f"{swarm.uptake:,}"),
        (EXTERNAL_SHARE, f"{100 * swarm.external_share:.1f} %"),
    )
