"""The plan for a million nodes (docs/scale.md), checked by a simulation: python tests/benchmarks/scale_plan.py [--nodes 1000000]

Nodes choose their coordinator by rendezvous hashing (the highest hash of node and coordinator wins). Printed: how even the
shards are, how many nodes move when one coordinator goes, how much of the swarm a node sees through snapshots, and how many
distinct groups it trains on. Prints one JSON object; the exit code is 1 when a claim of the plan does not hold.
"""

from __future__ import annotations

import argparse
import json
import sys

import numpy as np

SHARDS, PER_SHARD_SNAPSHOT = 64, 144
"""Coordinators; groups in a snapshot (measured: tests/benchmarks/snapshots.py)."""
WANT, ROUND_S, UPLOAD_S = 4, 5.0, 60.0
"""A node asks for the next snapshot when the last one is used up."""


def scores(nodes: np.ndarray, shard: int) -> np.ndarray:
    """A 64-bit mix (splitmix64) of node and shard: stands for SHA-256 here. (N,)"""
    with np.errstate(over="ignore"):
        x = nodes ^ np.uint64((shard + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        return x ^ (x >> np.uint64(31))


def chosen(nodes: np.ndarray, shards: range | list[int]) -> np.ndarray:
    """The shard of each node: the one with the highest score. (N,)"""
    best, winner = np.zeros(len(nodes), np.uint64), np.full(len(nodes), -1)
    for shard in shards:
        found = scores(nodes, shard)
        better = found >= best
        best, winner = np.where(better, found, best), np.where(better, shard, winner)
    return winner


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    count = parser.parse_args().nodes
    rng = np.random.default_rng(1)
    nodes = rng.integers(0, 2**63, count, dtype=np.uint64)
    before = chosen(nodes, range(SHARDS))
    sizes = np.bincount(before, minlength=SHARDS)
    after = chosen(nodes, [shard for shard in range(SHARDS) if shard != 7])
    moved = before != after
    # one shard over an hour: what a node samples from snapshots of a pool that holds each source's newest groups
    sources = int(sizes.mean())
    seen: set[int] = set()
    used = repeated = short = reads = 0
    left: list[int] = []
    for step in range(int(3600 / ROUND_S)):
        if len(left) < WANT:
            reads += 1
            epoch = int(step * ROUND_S / UPLOAD_S)
            drawn = rng.choice(sources, min(PER_SHARD_SNAPSHOT, sources), replace=False)
            fresh = [int(s) * 10_000 + epoch for s in drawn]  # a source's newest group at that time
            repeated += sum(group in seen for group in fresh)
            left = [group for group in fresh if group not in seen]
        taken, left = left[:WANT], left[WANT:]
        seen.update(taken)
        used += len(taken)
        short += WANT - len(taken)
    figures = {
        "nodes": count,
        "coordinators": SHARDS,
        "nodes_a_coordinator": {"mean": sources, "most": int(sizes.max()), "fewest": int(sizes.min())},
        "one_coordinator_goes": {
            "moved": round(float(moved.mean()), 5),
            "moved_needlessly": int((moved & (before != 7)).sum()),
            "most_after": int(np.bincount(after, minlength=SHARDS).max()),
        },
        "external_groups_of_a_node_in_an_hour": {"used": used, "short": short, "seen_before": repeated},
        "load_of_a_coordinator": {
            "uploads_per_s": round(int(sizes.max()) / UPLOAD_S),
            "snapshots_per_s": round(int(sizes.max()) * reads / 3600),
        },
    }
    print(json.dumps(figures, indent=1))
    good = figures["one_coordinator_goes"]["moved_needlessly"] == 0 and short == 0  # type: ignore[index]
    return 0 if good and sizes.max() < 1.05 * sources else 1


if __name__ == "__main__":
    sys.exit(main())
