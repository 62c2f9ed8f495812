"""What the log of a soak says: losses, and whether a process grows.

A training node breathes: its memory is larger by the buffers of an update while one runs, smaller for a moment when it has
given back what was free, and a sample meets either by chance. So growth is read off what nineteen of twenty samples of
every ten minutes lie above, and of a node off what it holds when it is paused and has given back what is free. It counts
from the second hour of a life: by then the coordinator's memory of what came lately, which is bounded by age, has filled,
and so have the holes in the dashboard's heap.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import linear_regression
from typing import Any

WARM_S, FLOOR_S = 3600.0, 600.0
"""Of a process's life before its growth counts; of which one low sample counts."""


def report(log: Path) -> dict[str, Any]:
    """What a log says: faults, losses, and for each process that lived long its growth an hour after WARM_S."""
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    lives: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for line in lines:
        if line["kind"] == "sample":
            lives.setdefault((line["name"], line["pid"]), []).append(line)
    growth = {}
    rests = [line for line in lines if line["kind"] == "rest"]
    for (name, pid), samples in lives.items():
        late = [s for s in samples if s["t"] - samples[0]["t"] >= WARM_S]
        if late and late[-1]["t"] - late[0]["t"] >= 1200:
            growth[name] = {
                "hours": round((late[-1]["t"] - late[0]["t"]) / 3600, 2),
                "MB at first, at the end": [round(s["rss"] / 1e6, 1) for s in (late[0], late[-1])],
                "MB an hour": slope(late, "rss"),
                **at_rest([s for s in rests if (s["name"], s["pid"]) == (name, pid) and s["t"] >= late[0]["t"]]),
                "all samples, MB an hour": slope(late, "rss", 0.0),
                "anonymous, MB an hour": slope(late, "anonymous"),
                "of its workers, MB an hour": slope(late, "children"),
                "descriptors, first, most, last": [late[0]["files"], max(s["files"] for s in late), late[-1]["files"]],
            }
    checks = [line for line in lines if line["kind"] == "check"]
    return {
        "minutes": round(lines[-1]["t"] / 60, 1),
        "faults": sum(line["kind"] == "fault" for line in lines),
        "kills of the coordinator": len(checks),
        "acknowledged and looked for": sum(line["acknowledged"] for line in checks),
        "acknowledged and lost": sum(line["lost"] for line in checks),
        "trouble": [line for line in lines if line["kind"] == "trouble"],
        "growth": growth,
        "nodes": [line for line in lines if line["kind"] == "node"],
    }


def at_rest(rests: list[dict[str, Any]]) -> dict[str, Any]:
    """Of a node that was paused now and then."""
    if len(rests) < 3:
        return {}
    return {
        "at rest, MB": [round(s["rss"] / 1e6, 1) for s in rests],
        "at rest, MB an hour": slope(rests, "rss", 0.0),
    }


def slope(samples: list[dict[str, Any]], what: str, floor_s: float = FLOOR_S) -> float:
    """MB an hour of a line through a low sample of every stretch of so many seconds; floor_s 0: through all samples."""
    stretches: dict[float, list[tuple[float, float]]] = {}
    for sample in samples:
        stretches.setdefault(sample["t"] // floor_s if floor_s else sample["t"], []).append((sample[what], sample["t"]))
    low = [sorted(stretch)[len(stretch) // 20] for stretch in stretches.values()]
    return round(linear_regression([at / 3600 for _, at in low], [size / 1e6 for size, _ in low]).slope, 2)
