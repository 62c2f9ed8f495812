"""Follows the Aha trails of three real nodes through their journals by hand, and compares them with what the screen says.

    python tests/benchmarks/aha.py --rounds 60

A coordinator and three nodes in processes of their own train together until each has done so many rounds. By hand means:
from the recorded groups alone (all are kept), without the events and functions that the screen's trails are made of. Of
every task and node it looks up the round of the first success here, and how many groups of others with a success were trained
on before, from which round to which; and in the journal of the node whose success came in first, that it made such a group in
the round that is named. Then the same is read off the state of the dashboard, made of the history that a node tells it.
It prints one task in full and ends with 1 where one figure differs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.node_process import CALM, node, reaches
from tests.support.swarm_process import coordinator, journal

from sapo_desktop.dashboard import feed
from sapo_desktop.dashboard.screens.swarm import trail as screen
from sapo_desktop.dashboard.state import DashboardState, apply_event
from sapo_swarm.config import PAPER_TASKS
from sapo_swarm.events import Event, GroupRecorded, SwarmUpdated

NODES: dict[str, tuple[str, ...]] = {
    "Ada": ("--group-size", "8", "--local-groups", "4", "--external-groups", "2"),
    "Bo": ("--group-size", "6", "--local-groups", "3", "--external-groups", "3"),
    "Cy": ("--group-size", "2", "--local-groups", "1", "--external-groups", "4"),
}
"""Cy makes few attempts of its own and takes many of the others': what it learns from them first is seen best on it."""
NAMES = tuple(NODES)
TASKS = (*PAPER_TASKS, "chain_sum", "bitwise_arithmetic", "count_bits", "gcd", "lcm", "letter_counting", "products")
NONE = -1


@dataclass(frozen=True)
class ByHand:
    """Rounds from 0; NONE where there is none."""

    solved: int
    taught: int
    since: int
    until: int


async def play(count: int, model: str, tasks: str, folder: Path) -> dict[str, list[Event]]:
    """The nodes' journals once all have done `count` rounds."""
    async with (
        coordinator(folder / "host", "--port", "0", "--round-every-s", "0.2") as (invite, _),
        AsyncExitStack() as on,
    ):
        clients = []
        for place, name in enumerate(NAMES):
            home = folder / name
            home.mkdir()
            (home / "config.toml").write_text(f'{CALM}[person]\nname = "{name}"\n')
            flags = ["--join", invite, "--model", model, "--tasks", tasks, "--seed", str(place), "--threads", "1"]
            flags += [*NODES[name], "--keep-groups", "0", "--eval-every", "0", "--sampling", "uniform_nonzero"]
            flags += ["--trainer", "fake"] if model.startswith("fake") else []
            clients.append((await on.enter_async_context(node(home, *flags)))[0])
        for client in clients:
            await reaches(client, ("round",), lambda e: e.round >= count - 1)
    return {name: journal(folder / name) for name in NAMES}


def groups(story: list[Event], task: str) -> list[GroupRecorded]:
    return [e for e in story if isinstance(e, GroupRecorded) and e.group.question.ref.dataset == task]


def by_hand(story: list[Event], task: str) -> ByHand:
    """From the recorded groups alone."""
    found = groups(story, task)
    own = [e.round for e in found if e.group.source == "own" and any(r.reward >= 1 for r in e.group.rollouts)]
    first = min(own, default=NONE)
    trained = [
        e.round
        for e in found
        if e.group.source == "external"
        and any(r.reward >= 1 and a > 0 for r, a in zip(e.group.rollouts, e.group.advantages, strict=True))
        and (first == NONE or e.round < first)
    ]
    return ByHand(first, len(trained), min(trained, default=NONE), max(trained, default=NONE))


def as_shown(story: list[Event]) -> DashboardState:
    """What a dashboard that connects now makes of it: the history without groups."""
    state = DashboardState()
    for event in story:
        if type(event).__struct_config__.tag in feed._HISTORY:
            state = apply_event(state, event)
    return state


def ids(stories: dict[str, list[Event]]) -> dict[str, str]:
    """Node id -> name, from what each node says of itself."""
    return {e.node: name for name, story in stories.items() for e in story if isinstance(e, SwarmUpdated) and e.node}


def wrong(name: str, task: str, stories: dict[str, list[Event]], state: DashboardState) -> list[str]:
    """Where the screen's trail and the journals differ."""
    hand, trail = by_hand(stories[name], task), state.trails.get(task)
    if trail is None:
        return [] if hand == ByHand(NONE, 0, NONE, NONE) else [f"{name} {task}: no trail, but {hand}"]
    shown = ByHand(trail.solved.round if trail.solved else NONE, trail.taught, trail.since, trail.until)
    said = [] if shown == hand else [f"{name} {task}: the screen has {shown}, the journal {hand}"]
    came = trail.received
    if came is None:
        return said
    giver = ids(stories).get(came.node, "")
    made = (
        [e for e in groups(stories[giver], task) if e.group.source == "own" and e.round == came.step] if giver else []
    )
    if not any(e.group.solved for e in made):
        said.append(f"{name} {task}: {giver or came.node} made no success in its round {came.step + 1}")
    if trail.name != giver:
        said.append(f"{name} {task}: called {trail.name!r}, its name is {giver!r}")
    if 0 <= hand.since < came.round:
        said.append(f"{name} {task}: trained on before it came in")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--model", default="starter-1m", help="or fake:SECONDS a token")
    parser.add_argument("--tasks", default=",".join(TASKS))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stories = asyncio.run(play(args.rounds, args.model, args.tasks, Path(folder)))
    states = {name: as_shown(story) for name, story in stories.items()}
    tasks = args.tasks.split(",")
    faults = [fault for name in NAMES for task in tasks for fault in wrong(name, task, stories, states[name])]
    learned = [(t, n) for n in NAMES for t, trail in states[n].trails.items() if screen.after_others(trail)]
    task = max(learned, key=lambda pair: by_hand(stories[pair[1]], pair[0]).solved)[0] if learned else tasks[0]
    print(f"{task}, by hand from the groups in three journals:")
    for name in NAMES:
        print(f"  {name}: {by_hand(stories[name], task)}")
    print("as the screen of each node says it:")
    for name in NAMES:
        trail = states[name].trails.get(task)
        print(f"  {name}: {'; '.join(screen.trail_steps(trail)) if trail else 'nothing'}")
    count = sum(len(state.trails) for state in states.values())
    print(f"{count} trails of {len(tasks)} tasks on {len(NAMES)} nodes, {len(learned)} learned after others: ", end="")
    print("all agree" if not faults else f"{len(faults)} differ", *faults, sep="\n" if faults else "")
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
