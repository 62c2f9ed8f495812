"""The control API over its real socket: permissions, bad requests, streams."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from blockbuster import blockbuster_ctx

from sapo_backends.base import Engine, LoadRequest, Progress, Sampling
from sapo_backends.fake import FakeBackend
from sapo_swarm.config import RunConfig
from sapo_swarm.events import EPHEMERAL, RoundFinished, RunStarted
from sapo_swarm.node.control_api import ControlClient, ControlError, heartbeat_path
from sapo_swarm.node.control_server import ControlServer
from sapo_swarm.node.governor.rules import ResourceLimits
from sapo_swarm.node.loop import Node
from sapo_swarm.node.setup import NodeSetup

CONFIG = RunConfig(model="fake:0.01", trainer="fake", tasks=("calendar_arithmetic",), eval_every=0)


def build(progress: Progress) -> Engine:
    return FakeBackend().load(LoadRequest(CONFIG.model), progress)


@pytest.fixture
async def socket(tmp_path: Path) -> AsyncIterator[Path]:
    """A node in this process that trains until the test is over.

    From its first round on, anything that would stop the event loop (disk, database, sleep) fails the test.
    """
    calm = ResourceLimits(pause_on_battery=False, max_celsius=0, min_free_memory=0, min_free_disk=0)
    node = Node(NodeSetup(CONFIG, "test", tmp_path / "run", build, lambda: calm))
    path = tmp_path / "s" / "node.sock"
    async with ControlServer(node, path):
        running = asyncio.create_task(node.run())
        with blockbuster_ctx(scanned_modules=["sapo_swarm"]) as watch:
            watch.functions["threading.Lock.acquire"].deactivate()  # handing work to a thread takes one for a moment
            yield path
        node.command("stop")
        await running


async def test_only_the_owner_can_open_the_socket(socket: Path) -> None:
    modes = [stat.S_IMODE((await asyncio.to_thread(path.stat)).st_mode) for path in (socket.parent, socket)]
    assert modes == [0o700, 0o600]


async def test_a_node_that_answers_can_be_named_when_it_falls_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sign of life is there before its socket is."""
    node = Node(NodeSetup(CONFIG, "test", tmp_path / "run", build, ResourceLimits))
    path, seen = tmp_path / "s" / "node.sock", []

    class Site(web.UnixSite):
        async def start(self) -> None:
            seen.append(await asyncio.to_thread(heartbeat_path(path).read_text, "ascii"))
            await super().start()

    monkeypatch.setattr(web, "UnixSite", Site)
    async with ControlServer(node, path):
        assert seen == [str(os.getpid())]
    node.journal.close()


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/dance", b"{}", "dance"),
        ("/v1/pause", b'{"for_s": "soon"}', "for_s"),
        ("/v1/pause", b'{"for": 3}', "for"),
        ("/v1/pause", b"[" * 5000, "body"),
        ("/v1/pause", b"\xff", "body"),
        ("/v1/pause", b'{"for_s": 1e12}', "30 days"),
    ],
)
async def test_a_bad_command_is_refused_with_a_sentence(socket: Path, path: str, body: bytes, said: str) -> None:
    connector = aiohttp.UnixConnector(path=str(socket))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"http://node{path}", data=body) as reply,
    ):
        assert reply.status == 400
        assert reply.content_type == "application/problem+json"
        assert said in (await reply.text())
    async with ControlClient(socket) as client:
        assert (await client.status()).state in {"starting", "running"}


async def test_events_can_be_asked_for_by_kind_and_number(socket: Path) -> None:
    async with ControlClient(socket) as client:
        async for event in client.events(kinds=("round",)):
            if isinstance(event, RoundFinished) and event.round >= 2:
                break
        rounds = [e async for e in client.events(kinds=("round",), tail=2, follow=False)]
        assert [type(e) for e in rounds] == [RoundFinished, RoundFinished]
        later = [e async for e in client.events(after=rounds[0].seq, kinds=("round",), follow=False)]
        assert rounds[1] in later
        assert rounds[0] not in later
        everything = [e async for e in client.events(follow=False)]
        assert isinstance(next(e for e in everything if e.seq == 2), RunStarted)
        assert not [e for e in everything if isinstance(e, EPHEMERAL)]
        assert (await client.config()).model == "fake:0.01"


async def test_an_evaluation_of_more_items_than_there_can_be_is_refused_and_training_goes_on(socket: Path) -> None:
    async with ControlClient(socket) as client:
        for items in (-1, 10_001, 2_000_000):
            with pytest.raises(ControlError, match="and 10,000"):
                await client.post("evaluate", items=items)
        seq = (await client.status()).seq
        await anext(client.events(after=seq, kinds=("round",)))


async def test_a_query_that_is_no_number_of_an_event_is_refused(socket: Path) -> None:
    async with ControlClient(socket) as client:
        for name in ("after", "tail"):
            for value in ("x", "-1", str(10**30)):
                async with (await client._connected()).get("/v1/events", params={name: value}) as reply:
                    assert reply.status == 400
        with pytest.raises(ControlError, match="dance"):
            await client.post("dance")


async def test_questions_that_do_not_fit_into_the_model_are_passed_over(tmp_path: Path) -> None:
    """With room for some prompts only, rounds use those; held-out items without room count as wrong."""
    from sapo_swarm.node.engine_thread import EngineThread
    from sapo_swarm.node.evaluation import evaluate_questions
    from sapo_swarm.scoring.scorer import Scorer
    from sapo_swarm.tasks.catalogue import held_out

    engine = FakeBackend().load(LoadRequest("fake"))
    refs = [held_out("bf", "starter", i) for i in range(6)]
    host = EngineThread()
    await host.load(lambda: engine)
    async with Scorer() as scorer:
        prompts = [q.prompt for q in await scorer.questions(refs) if hasattr(q, "prompt")]
        lengths = sorted(len(engine.tokenizer.encode_chat([{"role": "user", "content": p}])) for p in prompts)
        engine.info = dataclasses.replace(engine.info, context_length=lengths[2] + 40)
        results = await evaluate_questions(host, scorer, refs, Sampling(1.0, 1.0, 8), samples=2)
    await host.close()
    assert len(results) == 6
    assert any(r.truncated == (True, True) and r.correct == (False, False) for r in results)


async def test_answers_are_scored_on_another_question_of_their_task_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that writes (P ∨ Q) to everything loses nothing by it; one that solves its questions loses nearly all."""
    from sapo_swarm.evaluation import held_out_items, task_scores
    from sapo_swarm.node.engine_thread import EngineThread
    from sapo_swarm.node.evaluation import evaluate_questions
    from sapo_swarm.scoring.scorer import Scorer
    from sapo_swarm.tasks.questions import generate_entry

    engine = FakeBackend().load(LoadRequest("fake"))
    host = EngineThread()
    await host.load(lambda: engine)
    logic, sums = (
        held_out_items(["propositional_logic"], "paper", 30),
        held_out_items(["basic_arithmetic"], "starter", 30),
    )
    said = iter(["(P ∨ Q)"] * 30 + [generate_entry(ref)[1]["answer"] for ref in sums])
    monkeypatch.setattr(engine.tokenizer, "decode", lambda tokens: f"<answer>{next(said)}</answer>")
    async with Scorer() as scorer:
        rote, solved = task_scores(await evaluate_questions(host, scorer, [*logic, *sums], Sampling(1.0, 1.0, 8)))
    await host.close()
    assert 0.6 < rote.pass_at_1 < 0.95
    assert rote.permuted == pytest.approx(rote.pass_at_1)
    assert solved.pass_at_1 == 1.0
    assert solved.permuted is not None
    assert solved.permuted < 0.2
