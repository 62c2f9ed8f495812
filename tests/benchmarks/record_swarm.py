"""Records a real swarm for the tests and demonstrations: a coordinator and three unlike nodes that train together.

    python tests/benchmarks/record_swarm.py --out assets/sapo_assets/tour/swarm.jsonl

Ada is starter-1m with GRPO, Bo the larger starter with RLOO, Cy starter-1m with GSPO and groups of six, and 48 held-out
questions a task; all else is what the app does by itself. They train until Ada has done so many rounds and each has drawn
groups of others; then Ada's run is cut to so many rounds and written without the groups of all but its last rounds and with
every fourth of the coordinator's news. It says what each node did, and refuses to write where one drew nothing, the shares
do not add up to 1, or the file would be too large.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.node_process import CALM, node, reaches
from tests.support.swarm_process import coordinator, journal, news, rounds

from sapo_swarm.events import Event, GroupRecorded, RoundFinished, RunStarted, SwarmUpdated, encode_event

LARGEST = 500_000
"""Bytes of the recording that ships."""
NODES: dict[str, tuple[str, ...]] = {
    "Ada": ("--model", "starter-1m", "--algorithm", "grpo", "--group-size", "8"),
    "Bo": ("--model", "starter", "--algorithm", "rloo", "--group-size", "8"),
    "Cy": ("--model", "starter-1m", "--algorithm", "gspo", "--group-size", "6"),
}
SHARED = ("--threads", "1", "--keep-groups", "0", "--eval-items", "48")
NEWS = 4
"""Every so many rounds the recording has news of the swarm."""


async def play(count: int, eval_every: int, folder: Path) -> dict[str, list[Event]]:
    """The nodes' journals once all have done `count` rounds."""
    async with (
        coordinator(folder / "host", "--port", "0", "--round-every-s", "1") as (invite, _),
        AsyncExitStack() as on,
    ):
        clients = []
        for name, kind in NODES.items():
            home = folder / name
            home.mkdir()
            (home / "config.toml").write_text(f'{CALM}[person]\nname = "{name}"\n')
            flags = ("--join", invite, *kind, *SHARED, "--eval-every", str(eval_every))
            clients.append((await on.enter_async_context(node(home, *flags)))[0])
        for name, client in zip(NODES, clients, strict=True):
            await reaches(client, ("round",), lambda e: e.external_groups > 0)
            print(f"{name} has drawn groups of others.", file=sys.stderr, flush=True)
        await reaches(clients[0], ("round",), lambda e: e.round >= count - 1)
    return {name: journal(folder / name) for name in NODES}


def cut(story: list[Event], count: int, groups_of: int) -> list[Event]:
    """The first `count` rounds, with the groups of the last `groups_of` of them and of first successes, and some news."""
    last = next(at for at, event in enumerate(story) if isinstance(event, RoundFinished) and event.round == count - 1)
    ends = [at for at in range(last, len(story)) if isinstance(story[at], GroupRecorded) and _round(story[at]) >= count]
    whole = story[: min(ends, default=len(story))]
    told = [event for event in whole if isinstance(event, SwarmUpdated)]
    left_out = {id(event) for at, event in enumerate(reversed(told)) if at % NEWS}
    return [
        event
        for event in whole
        if id(event) not in left_out
        and (not isinstance(event, GroupRecorded) or event.first_solved or event.round >= count - groups_of)
    ]


def _round(event: Event) -> int:
    return event.round if isinstance(event, GroupRecorded) else -1


def describe(name: str, story: list[Event]) -> str:
    """What a node did, in a line. Raises SystemExit when it drew nothing of others."""
    began = next(event for event in story if isinstance(event, RunStarted))
    drawn, last = sum(r.external_groups for r in rounds(story)), news(story)[-1]
    if not drawn:
        raise SystemExit(f"{name} drew no group of others: nothing is written.")
    return (
        f"{name}: {began.model}, {began.algorithm}, groups of {began.group_size}; {len(rounds(story))} rounds, "
        f"{drawn} external groups, share {last.share:.3f}, uptake {last.uptake}, rejected {dict(last.rejected)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=250)
    parser.add_argument("--eval-every", type=int, default=50)
    parser.add_argument("--keep-groups-of", type=int, default=2, help="last rounds whose groups are in the recording")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stories = asyncio.run(play(args.rounds, args.eval_every, Path(folder)))
    for name, story in stories.items():
        print(describe(name, story))
    kept = cut(stories["Ada"], args.rounds, args.keep_groups_of)
    board = [event.peers for event in news(kept)][-1]
    whole = sum(peer.share for peer in board)
    if len(board) != len(NODES) or abs(whole - 1.0) > 0.01:
        raise SystemExit(
            f"The leaderboard holds {len(board)} nodes with {whole:.3f} of the groups: record more rounds."
        )
    data = b"".join(encode_event(event) + b"\n" for event in kept)
    if len(data) > LARGEST:
        raise SystemExit(f"{len(data):,} bytes are more than {LARGEST:,}: keep the groups of fewer rounds.")
    args.out.write_bytes(data)
    print(f"{args.out}: {len(kept)} events, {len(data):,} bytes")


if __name__ == "__main__":
    main()
