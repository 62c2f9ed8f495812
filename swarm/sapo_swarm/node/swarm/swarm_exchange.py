"""A node's side of a swarm: a pool of judged groups that fills in the background, so that no round waits for a network.

Each round takes what the pool holds and hands its local groups over; an upload with the newest groups (and a sample in its
reply) goes out whenever the coordinator's pace allows. Of a few rounds that none carried, non-zero-advantage groups go with
the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sapo_swarm.algorithms.base import groups_of_a_source
from sapo_swarm.events import SwarmUpdated
from sapo_swarm.node.clock import steady
from sapo_swarm.node.engine_thread import EngineHost
from sapo_swarm.node.storage import phrase_memory
from sapo_swarm.node.swarm.board import Board
from sapo_swarm.node.swarm.exchange import Received
from sapo_swarm.node.swarm.likelihood import least_likely
from sapo_swarm.node.swarm.outbox import Outbox, body_of, interleaved
from sapo_swarm.node.swarm.pool import Pool
from sapo_swarm.node.swarm.snapshots import SnapshotReader
from sapo_swarm.node.swarm.swarm_stats import Held, SwarmStats
from sapo_swarm.protocol.client import CoordinatorError, NodeClient
from sapo_swarm.protocol.receive import AcceptanceRules, Receiver
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.protocol.wire import SignedGroup, SwarmInfo, label
from sapo_swarm.sapo.training_batch import questions_to_sample
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.own.library import is_own
from sapo_swarm.types import Group, Question

log = logging.getLogger("sapo.exchange")
BRIDGE_S = 10.0
"""An upload that is so far away is bridged by snapshots; they are looked at so often."""
UPLOAD_BYTES = 200 * 1024
"""Of group bodies in one upload: fits the protocol's limit however badly they compress."""
PHRASES_S = 60.0
"""The phrase memory is written so often, and at the end."""
NICENESS = 5
"""Of the worker for external groups: generating and local scoring come first."""
FORGOTTEN = ("unknown_node",)
"""Answers of a coordinator that does not know this node (yet, or any more): join again."""


@dataclass
class SwarmExchange:
    """Implements node.exchange.Exchange. client must be entered; sampling: the run's strategy for external groups.

    name, model: how this node introduces itself. share_fraction: part of its groups that the swarm asks for, None: not asked yet.
    """

    client: NodeClient
    policy: AcceptanceRules
    model: str
    sampling: str = "uniform_nonzero"
    name: str = ""
    share_fraction: float | None = None
    clock: Callable[[], float] = steady
    """Seconds that are never set back; those of a suspend count."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    memory: Path | None = None
    """Folder of the model with which the phrase memory is kept; None: with nothing."""
    data_cap: Callable[[int], Held | None] | None = None
    """Given the bytes that the client exchanged, ever: what holds the next exchange. None: nothing ever does."""
    joined: Callable[[SwarmInfo], Held | None] | None = None
    """Given the swarm that tells of itself during the run only: what holds the exchange until the node's next start."""
    own_worker: bool = True
    """External groups are regenerated and scored in a worker of their own, so that local ones never wait for them."""

    def __post_init__(self) -> None:
        self.pool = Pool(self.sampling)
        self.stats = SwarmStats(self.client.invite.url, self.client.identity.node)
        self._receiver: Receiver | None = None
        self._outbox: Outbox | None = None
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._idle = asyncio.Event()
        self._taking = True
        self._bytes = (0, 0)
        self._board = Board(self.client, self.stats, self.clock)
        self._snapshots = SnapshotReader(self.client, self.clock)
        self._rounds_since = 0
        self._worker: Scorer | None = None
        self._kept_at = self.clock()
        self._until_restart: Held | None = None

    def attach(self, host: EngineHost, scorer: Scorer, excluded: frozenset[str] = frozenset()) -> None:
        """Judge what is received under this engine's policy, with a worker like this scorer's or (own_worker) with this one.
        excluded: see Receiver."""

        async def likelihood(question: Question, texts: Sequence[str]) -> tuple[float, float]:
            return await least_likely(host, question, texts, scorer.answer_format)

        if self.own_worker:
            mine, scorer = scorer, Scorer(niceness=NICENESS, answer_format=scorer.answer_format)
            scorer.in_reasoning, self._worker = mine.in_reasoning, scorer
        if host.loaded is not None:
            self.pool.per_source = groups_of_a_source(host.loaded.parameters)
        swarm, node = self.client.invite.swarm, self.client.identity.node
        self._receiver = Receiver(swarm, node, scorer, self.policy, likelihood, excluded, hold=host.hold)
        if self.memory is not None:
            self._receiver.phrases, said = phrase_memory.kept(self.memory)
            if said:
                log.warning("%s", said)
        self._receiver.phrases.answer_format = scorer.answer_format

    @property
    def receiver(self) -> Receiver:
        """What judges received groups. Raises RuntimeError before attach()."""
        if self._receiver is None:
            raise RuntimeError("attach() comes before the first round.")
        return self._receiver

    def take(self, taking: bool) -> None:
        """Local groups are shared all the same; external ones are neither requested nor handed out while not taking."""
        self._taking = taking
        if not taking:
            self.pool.clear()

    def prompts_to_sample(self, local: int, external: int) -> int:
        """The whole batch while groups of others are not wanted; else what the pool leaves missing."""
        if not self._taking:
            return local + external
        self.pool.forget_old(self.clock())
        return questions_to_sample(local, external, self.pool.available(external))

    async def exchange(self, round_number: int, local: Sequence[Group], wanted: int) -> Received:
        """Take the pool as it is, queue local groups for the next upload. Waits for no network."""
        if self._task is None:
            self._task = asyncio.create_task(self._talk())
        self.pool.forget_old(self.clock())
        wanted = wanted if self._taking else 0
        self._outbox = Outbox(round_number, local, wanted).after(self._outbox)
        self.receiver.phrases.observe_local((r.text, g.question) for r, g in interleaved(local))
        if self.clock() - self._kept_at > PHRASES_S:
            await self._keep_phrases()
        self._rounds_since += 1
        self._idle.clear()
        self._woken.set()
        sent, received = self.client.bytes_sent - self._bytes[0], self.client.bytes_received - self._bytes[1]
        self._bytes = self.client.bytes_sent, self.client.bytes_received
        return Received(self.pool.groups() if wanted else (), sent, received)

    def used(self, groups: Sequence[Group], batch: int) -> SwarmUpdated:
        """These external groups went into a batch of so many: each is used once. Returns the picture as it is now."""
        self.pool.remove(groups)
        self.stats.trained(len(groups), batch)
        return self.news()

    def news(self) -> SwarmUpdated:
        """The swarm as this node sees it now."""
        rejected = dict(self.receiver.rejected)
        if self.pool.unusable:
            rejected["no_signal"] = self.pool.unusable
        heard = self.receiver
        unheard = [p.node for p in self.stats.peers if p.node in heard.struck or not heard.unlikely.allows(p.node)]
        return self.stats.news(rejected, self.clock(), self.receiver.phrases.alarm, unheard)

    async def close(self) -> None:
        """Stop talking. The node's groups stay in the pool of the swarm until they are stale."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._worker is not None:
            await self._worker.__aexit__(None, None, None)
        await self._keep_phrases()
        await self._held()
        await self.client.__aexit__(None, None, None)

    async def _talk(self) -> None:
        while True:
            await self._woken.wait()
            try:
                await self._upload()
            except Exception:  # the swarm must never end the talk with the swarm: the next round tries again
                log.exception("an exchange failed")
            if self._outbox is None:
                self._idle.set()

    async def _upload(self) -> None:
        """Send what was handed over, when it is time to."""
        try:
            if not await self._held():
                await self._bridge()
                await self.sleep(self.client.wait_s)
        finally:
            self._woken.clear()
            outbox, self._outbox = self._outbox, None
        if outbox is not None and not await self._held():
            await self._exchange_once(outbox)

    async def _held(self) -> bool:
        """Whether something holds the exchange: what is handed over is dropped then, and the pool serves as long as it lasts."""
        hold = None
        if self.data_cap is not None:
            hold = await asyncio.to_thread(self.data_cap, self.client.bytes_sent + self.client.bytes_received)
        hold = self._until_restart or hold
        self.stats.hold(hold)
        return hold is not None

    async def _bridge(self) -> None:
        """In a swarm so large that the next upload is far: take groups from its snapshots until it is near."""
        while self.client.wait_s > BRIDGE_S and not self.client.failures and self._outbox is not None:
            want = self.want(self._outbox.wanted) if self._taking else 0
            try:
                if want and not await self._held():
                    await self._take(await self._snapshots.sample(want))
            except Exception:  # what cannot be judged keeps no upload back
                log.exception("groups of a snapshot were not taken")
            await self.sleep(min(BRIDGE_S, self.client.wait_s))

    async def settled(self) -> None:
        """Returns when everything handed over went out (or was dropped) and what came back was judged."""
        await self._idle.wait()

    async def _exchange_once(self, outbox: Outbox) -> None:
        rewards = [r for g in outbox.local if not is_own(g.question.ref) for r in g.rewards]
        mean = sum(rewards) / len(rewards) if rewards else None
        want = self.want(outbox.wanted)
        self._rounds_since = 0
        accepts = sorted(generator for _, generator in self.policy.own)
        result = await self.client.exchange(self._signed(outbox), want, mean, accepts)
        self.stats.exchanged(result, self.clock())
        if result.code in FORGOTTEN:
            await self._join_again()
        if not result.connected:
            return
        if self.share_fraction is None:
            with contextlib.suppress(CoordinatorError):  # the next exchange asks again
                await self._told(await self.client.info())
        if self._until_restart is None:
            await self._take(result.sample)
        await self._board.look(result.nodes)

    async def _keep_phrases(self) -> None:
        """A full disk ends no exchange: the next time comes."""
        if self.memory is None or self._receiver is None:
            return
        self._kept_at = self.clock()
        try:
            await asyncio.to_thread(phrase_memory.keep, self.memory, self._receiver.phrases.packed())
        except OSError as error:
            log.warning("the phrase memory is not kept: %s", error)

    def want(self, wanted: int) -> int:
        """Groups to request."""
        return self.pool.want(wanted, self._rounds_since, self.stats.others)

    async def _take(self, sample: Sequence[msgspec.Raw]) -> None:
        groups = await self.receiver.receive(sample, self.client.unix_time())
        if self._taking:  # it may have been switched off since they were requested
            self.pool.received(groups, len(sample), self.clock())

    async def _join_again(self) -> None:
        try:
            await self._told(await self.client.join(self.name, self.model))
        except CoordinatorError as error:
            self.stats.said(f"{safe_text(str(error), 300, lines=False)} Training goes on alone.")

    async def _told(self, info: SwarmInfo) -> None:
        self.share_fraction = info.share_fraction
        if self.joined is not None:
            self._until_restart = await asyncio.to_thread(self.joined, info)

    def _signed(self, outbox: Outbox) -> list[SignedGroup]:
        """The groups that go out, as far as one upload carries them. Non-zero-advantage ones stand last, for where a pool is full
        a node's newest groups replace its oldest."""
        signed: list[SignedGroup] = []
        size, part = 0, 1.0 if self.share_fraction is None else self.share_fraction
        for number, group in outbox.selected(part, self.policy.own):
            ts = int(self.client.unix_time() * 1000)
            body = body_of(group, number, self.client.identity.node, label(self.model), ts)
            packed = self.client.identity.sign_group(self.client.invite.swarm, body)
            size += len(packed.body)
            if size > UPLOAD_BYTES:
                break
            self.receiver.observe_local(body)
            signed.append(packed)
        return signed[::-1]
