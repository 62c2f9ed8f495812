"""The exchange with a coordinator: what is sent, what arrived and waits, snapshots, and what the swarm did."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sapo_backends.base import TokenSequence
from sapo_swarm.algorithms import groups_of_a_source
from sapo_swarm.events import SwarmUpdated
from sapo_swarm.node import aha_trail
from sapo_swarm.node.clock import steady_seconds
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.round_phases import ReceivedGroups
from sapo_swarm.node.swarm_stats import ExchangeHold, LeaderboardPoller, SwarmStats
from sapo_swarm.protocol.client import CoordinatorError, NodeClient
from sapo_swarm.protocol.receive import AcceptanceRules, GroupReceiver
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.protocol.time_quota import TimeQuota
from sapo_swarm.protocol.wire import (
    MAX_GROUPS,
    MAX_WANT,
    GroupBody,
    SharedCompletion,
    SignedGroup,
    SwarmInfo,
    WireError,
    group_id,
    printable_label,
    unpack_msgpack,
)
from sapo_swarm.sapo.training_batch import find_strategy, has_advantage, questions_to_sample
from sapo_swarm.scoring.prompts import build_conversation
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.own.library import is_own_ref
from sapo_swarm.types import MAX_COMPLETION_BYTES, AnswerFormat, Group, Question, Rollout

# SelectSubset: which of a round's groups go to the swarm, and which never leave this machine. Pure.

Together = frozenset[tuple[str, str]]
"""(name, generator) of the custom tasks that the members of the swarm train on together."""

MAX_COMPLETIONS = 16
LATE_ROUNDS = 3
"""Groups of up to this many earlier rounds may go out with the newest: uploads are 5 s apart, a tiny model's rounds 2 s."""


@dataclass(frozen=True, slots=True)
class UploadOutbox:
    """What the next upload may carry: a round's groups, the external groups that its batch wants, and late:
    non-zero-advantage groups of earlier rounds that no upload has carried, with their rounds, the newest first."""

    round_number: int
    local: Sequence[Group]
    wanted: int
    late: tuple[tuple[int, Group], ...] = ()

    def after(self, before: UploadOutbox | None) -> UploadOutbox:
        """This round's outbox when an earlier round's has not been sent yet."""
        if before is None:
            return self
        late = (*((before.round_number, group) for group in before.local if has_advantage(group)), *before.late)
        recent = tuple((number, group) for number, group in late if self.round_number - number <= LATE_ROUNDS)
        return UploadOutbox(self.round_number, self.local, self.wanted, recent[:MAX_GROUPS])

    def selected(self, share_fraction: float, together: Together) -> list[tuple[int, Group]]:
        """The share that the swarm asks for, with the rounds: non-zero-advantage groups first, since receivers skip the
        others, and the newest of these.

        Leaves out groups that the protocol does not accept: one would have the whole upload refused.
        """
        candidates = [(self.round_number, group) for group in self.local]
        candidates = [(number, group) for number, group in (*candidates, *self.late) if may_leave(group, together)]
        most = min(MAX_GROUPS, math.ceil(share_fraction * len(candidates)))
        ranked = sorted(candidates, key=lambda one: has_advantage(one[1]), reverse=True)
        return [one for one in ranked[:most] if _fits(one[1])]


def may_leave(group: Group, together: Together) -> bool:
    """A custom task is private, unless this version of it is one that the members train on together. Episodes in an
    environment never leave the machine."""
    if any(rollout.turns for rollout in group.rollouts):
        return False
    ref = group.question.ref
    return not is_own_ref(ref) or (ref.dataset, ref.generator) in together


def _fits(group: Group) -> bool:
    longest = max((len(r.text.encode()) for r in group.rollouts), default=0)
    return len(group.rollouts) >= 2 and longest <= MAX_COMPLETION_BYTES


def body_of(group: Group, round_number: int, node: str, model: str, ts: int) -> GroupBody:
    """The part of a group that is signed. ts: milliseconds since the Unix epoch."""
    return GroupBody(
        ref=group.question.ref,
        prompt_sha256=group.question.prompt_sha256,
        completions=tuple(SharedCompletion(text=r.text, finish=r.finish) for r in group.rollouts[:MAX_COMPLETIONS]),
        node=node,
        model=model,
        policy_step=round_number,
        ts=ts,
    )


def interleave_rollouts(groups: Sequence[Group]) -> Iterator[tuple[Rollout, Group]]:
    """Rollouts with their groups: the first of every group, then the second of each, and so on."""
    for place in range(max((len(group.rollouts) for group in groups), default=0)):
        yield from ((group.rollouts[place], group) for group in groups if place < len(group.rollouts))


# Judged external groups waiting for a batch: each is used once, and none after it has expired. Pure; the clock is
# passed in.

POOL_GROUPS = 256
GROUP_LIFE_S = 900.0
"""A group that waited longer is dropped: its author's policy has moved on."""
LEAST_YIELD = 1 / 8
"""However few received groups were usable, at most 1/LEAST_YIELD times as many are requested."""


@dataclass(slots=True)
class ExternalPool:
    """Groups that the strategy `sampling` could sample. Raises UnknownName.

    per_source: groups of one node in a batch at most. unusable: groups that the strategy would never sample (mostly without
    an advantage), which are dropped. usable: the share of recently received groups that entered the pool.
    """

    sampling: str = "uniform_nonzero"
    per_source: int = 1
    limit: int = POOL_GROUPS
    life_s: float = GROUP_LIFE_S
    unusable: int = 0
    usable: float = 1.0
    _waiting: deque[tuple[float, Group]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        find_strategy(self.sampling)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, group: Group, now: float) -> None:
        """Add a group; the oldest is dropped when the pool is full."""
        if not find_strategy(self.sampling)([group])[0] > 0:
            self.unusable += 1
            return
        self._waiting.append((now, group))
        while len(self._waiting) > self.limit:
            self._waiting.popleft()

    def want(self, wanted: int, rounds: int, sources: int) -> int:
        """Number of groups to request if a batch may hold `wanted`: for two batches, or one more than there were rounds since
        the last exchange, minus those already waiting, plus some for what will be rejected."""
        batches = max(2, rounds + 1)
        waiting = self._of_sources(batches * self.per_source)
        missing = max(0, batches * min(wanted, sources * self.per_source) - waiting)
        return min(MAX_WANT, math.ceil(missing / max(self.usable, LEAST_YIELD)))

    def received(self, groups: Sequence[Group], of: int, now: float) -> None:
        """Add the groups that passed, out of `of` received ones."""
        before = len(self)
        for group in groups:
            self.add(group, now)
        if of:
            self.usable += 0.2 * (max(0, len(self) - before) / of - self.usable)

    def forget_old(self, now: float) -> None:
        """Drop groups that have waited longer than life_s. now: seconds that are never set back."""
        while self._waiting and now - self._waiting[0][0] > self.life_s:
            self._waiting.popleft()

    def available(self, wanted: int) -> int:
        """External groups that a batch could sample now, at most `wanted`."""
        return min(wanted, self._of_sources(self.per_source))

    def _of_sources(self, most: int) -> int:
        """Groups that wait, at most `most` per source."""
        return sum(min(most, count) for count in Counter(group.node for _, group in self._waiting).values())

    def groups(self) -> tuple[Group, ...]:
        """All waiting groups, oldest first."""
        return tuple(group for _, group in self._waiting)

    def clear(self) -> None:
        """Drop everything."""
        self._waiting.clear()

    def remove(self, used: Sequence[Group]) -> None:
        """Remove groups that went into a batch."""
        gone = {(group.node, group.question.ref) for group in used}
        self._waiting = deque((t, g) for t, g in self._waiting if (g.node, g.question.ref) not in gone)


# Sampling from the swarm's snapshots: one is fetched for many rounds, and each of its groups is used once.

AWAY_S = 600.0
"""A coordinator without snapshots, or with unreadable ones, is asked again after this time."""
REMEMBERED = 4096
"""Groups sampled before that are remembered: snapshots overlap."""


class SnapshotReader:
    """clock: seconds that are never set back. rng: chooses the groups."""

    def __init__(self, client: NodeClient, clock: Callable[[], float], rng: random.Random | None = None) -> None:
        self._client, self._clock, self._rng = client, clock, rng or random.Random()
        self._id = ""
        self._left: list[msgspec.Raw] = []
        self._used: dict[bytes, None] = {}
        self._next = 0.0

    async def sample(self, want: int) -> list[msgspec.Raw]:
        """Up to `want` groups of other nodes, uniform over those not used yet; fewer if the snapshots hold no more."""
        if len(self._left) < want and self._clock() >= self._next:
            await self._fetch()
        taken, self._left = self._left[:want], self._left[want:]
        return taken

    async def _fetch(self) -> None:
        try:
            news, snapshot = await self._client.snapshot(self._id)
        except CoordinatorError:
            self._next = self._clock() + AWAY_S
            return
        self._id, self._next = news.id, self._clock() + max(1.0, min(news.every_s, AWAY_S))
        if snapshot is not None:
            self._left = [raw for raw in snapshot.groups if self._is_new(raw)]
            self._rng.shuffle(self._left)

    def _is_new(self, raw: msgspec.Raw) -> bool:
        """Whether it is another node's group that no earlier snapshot had."""
        try:
            group = unpack_msgpack(raw, SignedGroup)
        except WireError:
            return False
        key = group_id(group.body)
        if key in self._used or group.key == self._client.identity.public_key:
            return False
        self._used[key] = None
        while len(self._used) > REMEMBERED:
            del self._used[next(iter(self._used))]
        return True


# How likely external text is under a node's own policy.

STRETCH = 16
"""Consecutive tokens that are judged together: garbage is not diluted by the honest text around it."""


async def least_likely(
    host: EngineThread, question: Question, texts: Sequence[str], answer_format: AnswerFormat = "tags"
) -> tuple[float, float]:
    """The lowest mean log-probability per token over any STRETCH consecutive tokens of external texts, under the node's policy,
    in nats (0 if all are empty); and the seconds it took in the engine's thread."""

    def measure() -> tuple[float, float]:
        began = time.perf_counter()
        rows = token_logprobs(host, question, texts, answer_format)
        return min((worst_stretch(row, STRETCH) for row in rows), default=0.0), time.perf_counter() - began

    return await host.call(measure)


def worst_stretch(values: Sequence[float], width: int) -> float:
    """The lowest mean of `width` consecutive values; of all values if there are fewer. values: at least one."""
    sums = [0.0, *itertools.accumulate(values)]
    width = min(width, len(values))
    return min((sums[end] - sums[end - width]) / width for end in range(width, len(sums)))


def token_logprobs(
    host: EngineThread, question: Question, texts: Sequence[str], answer_format: AnswerFormat = "tags"
) -> list[list[float]]:
    """Log-probabilities of each text's tokens under the node's policy, in nats. Empty texts are left out, as are those that
    do not fit into the model's context, which are not trained on either.

    Call in the engine's thread.
    """
    engine = host.engine
    prompt = tuple(engine.tokenizer.encode_chat(build_conversation(question, answer_format)))
    room = engine.info.context_length - len(prompt)
    completions = [ids for text in texts if 0 < len(ids := tuple(engine.tokenizer.encode_text(text))) <= room]
    return engine.logprobs([TokenSequence(prompt, ids) for ids in completions]) if completions else []


# A node's side of a swarm: a pool of judged groups that fills in the background, so that no round waits for a network.
#
# Each round takes what the pool holds and hands its local groups over; an upload with the newest groups (and a sample
# in its reply) goes out whenever the coordinator's pace allows. Non-zero-advantage groups of the last few rounds that
# no upload carried go with the next.

log = logging.getLogger("sapo.exchange")
BRIDGE_S = 10.0
"""If the next upload is further away than this, snapshots bridge the gap; they are checked this often."""
UPLOAD_BYTES = 200 * 1024
"""Group bodies in one upload: fits the protocol's limit however badly they compress."""
PHRASES_S = 60.0
"""How often the phrase memory is saved, besides at the end."""
NICENESS = 5
"""Of the worker for external groups: generating and local scoring go first."""
FORGOTTEN = ("unknown_node",)
"""Answers of a coordinator that does not (or no longer) know this node: join again."""


@dataclass
class SwarmExchange:
    """Implements round_phases.GroupExchange. client must be entered; sampling: the run's strategy for external groups.

    name, model: how this node introduces itself. share_fraction: share of its groups that the swarm asks for, None: not asked
    yet.
    """

    client: NodeClient
    policy: AcceptanceRules
    model: str
    sampling: str = "uniform_nonzero"
    name: str = ""
    share_fraction: float | None = None
    clock: Callable[[], float] = steady_seconds
    """Seconds that are never set back; those of a suspend count."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    memory: Path | None = None
    """The model's folder, in which the phrase memory and the trust in sources are saved; None: they are not saved."""
    joined: Callable[[SwarmInfo], ExchangeHold | None] | None = None
    """Called if the swarm's description arrives only during the run: what holds the exchange until the node's next start."""
    own_worker: bool = True
    """External groups are regenerated and scored in a separate worker, so that local ones never wait for them."""

    def __post_init__(self) -> None:
        self.pool = ExternalPool(self.sampling)
        self.stats = SwarmStats(self.client.invite.url, self.client.identity.node)
        self._receiver: GroupReceiver | None = None
        self._outbox: UploadOutbox | None = None
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._idle = asyncio.Event()
        self._taking = True
        self._bytes = (0, 0)
        self._board = LeaderboardPoller(self.client, self.stats, self.clock)
        self._snapshots = SnapshotReader(self.client, self.clock)
        self._rounds_since = 0
        self._worker: Scorer | None = None
        self._kept_at = self.clock()
        self._until_restart: ExchangeHold | None = None

    def attach(self, host: EngineThread, scorer: Scorer, excluded: frozenset[str] = frozenset()) -> None:
        """Judge received groups under this engine's policy, with a worker like this scorer's (own_worker) or with this one.
        excluded: see GroupReceiver."""

        async def likelihood(question: Question, texts: Sequence[str]) -> tuple[float, float]:
            return await least_likely(host, question, texts, scorer.answer_format)

        if self.own_worker:
            mine, scorer = scorer, Scorer(niceness=NICENESS, answer_format=scorer.answer_format)
            scorer.in_reasoning, self._worker = mine.in_reasoning, scorer
        if host.loaded is not None:
            self.pool.per_source = groups_of_a_source(host.loaded.parameters)
        swarm, node = self.client.invite.swarm, self.client.identity.node
        self._receiver = GroupReceiver(swarm, node, scorer, self.policy, likelihood, excluded, hold=host.hold)
        if self.memory is not None:
            self._receiver.phrases, sources, sentence = aha_trail.load_swarm_memory(self.memory)
            self._receiver.quota = TimeQuota.unpacked(sources, self._receiver.clock())
            if sentence:
                log.warning("%s", sentence)
        self._receiver.phrases.answer_format = scorer.answer_format

    @property
    def receiver(self) -> GroupReceiver:
        """The judge of received groups. Raises RuntimeError before attach()."""
        if self._receiver is None:
            raise RuntimeError("attach() comes before the first round.")
        return self._receiver

    def take(self, taking: bool) -> None:
        """Local groups are shared either way; external ones are neither requested nor handed out unless `taking`."""
        self._taking = taking
        if not taking:
            self.pool.clear()

    def prompts_to_sample(self, local: int, external: int) -> int:
        """The whole batch while external groups are not wanted; else what the pool cannot supply."""
        if not self._taking:
            return local + external
        self.pool.forget_old(self.clock())
        return questions_to_sample(local, external, self.pool.available(external))

    async def exchange(self, round_number: int, local: Sequence[Group], wanted: int) -> ReceivedGroups:
        """Take the pool as it is and queue local groups for the next upload. Never waits for the network."""
        if self._task is None:
            self._task = asyncio.create_task(self._talk())
        self.pool.forget_old(self.clock())
        wanted = wanted if self._taking else 0
        self._outbox = UploadOutbox(round_number, local, wanted).after(self._outbox)
        self.receiver.phrases.observe_local((r.text, g.question) for r, g in interleave_rollouts(local))
        if self.clock() - self._kept_at > PHRASES_S:
            await self._keep_phrases()
        self._rounds_since += 1
        self._idle.clear()
        self._woken.set()
        sent, received = self.client.bytes_sent - self._bytes[0], self.client.bytes_received - self._bytes[1]
        self._bytes = self.client.bytes_sent, self.client.bytes_received
        return ReceivedGroups(self.pool.groups() if wanted else (), sent, received)

    def used(self, groups: Sequence[Group], batch: int) -> SwarmUpdated:
        """Mark external groups that went into a batch of this size: each is used once. Returns the current view of the swarm."""
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
        """Stop exchanging. The node's groups stay in the swarm's pool until they are stale."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._worker is not None:
            await self._worker.__aexit__(None, None, None)
        await self._keep_phrases()
        self._held()
        await self.client.__aexit__(None, None, None)

    async def _talk(self) -> None:
        while True:
            await self._woken.wait()
            try:
                await self._upload()
            except Exception:  # the swarm must never end this task: the next round tries again
                log.exception("an exchange failed")
            if self._outbox is None:
                self._idle.set()

    async def _upload(self) -> None:
        """Send what was handed over, when it is time."""
        try:
            if not self._held():
                await self._bridge()
                await self.sleep(self.client.wait_s)
        finally:
            self._woken.clear()
            outbox, self._outbox = self._outbox, None
        if outbox is not None and not self._held():
            await self._exchange_once(outbox)

    def _held(self) -> bool:
        """Whether the exchange rests: then what is handed over is dropped, and the pool serves as long as it lasts."""
        self.stats.hold(self._until_restart)
        return self._until_restart is not None

    async def _bridge(self) -> None:
        """In a swarm so large that the next upload is far away, take groups from snapshots until it is near."""
        while self.client.wait_s > BRIDGE_S and not self.client.failures and self._outbox is not None:
            want = self.want(self._outbox.wanted) if self._taking else 0
            try:
                if want and not self._held():
                    await self._take(await self._snapshots.sample(want))
            except Exception:  # groups that cannot be judged delay no upload
                log.exception("groups of a snapshot were not taken")
            await self.sleep(min(BRIDGE_S, self.client.wait_s))

    async def settled(self) -> None:
        """Returns once everything handed over was sent (or dropped) and everything received was judged."""
        await self._idle.wait()

    async def _exchange_once(self, outbox: UploadOutbox) -> None:
        rewards = [r for g in outbox.local if not is_own_ref(g.question.ref) for r in g.rewards]
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
            await self._take(result.sample, result.origins)
        await self._board.look(result.nodes)

    async def _keep_phrases(self) -> None:
        """A full disk does not end the exchange: it is tried again later."""
        if self.memory is None or self._receiver is None:
            return
        self._kept_at = self.clock()
        try:
            phrases, sources = self._receiver.phrases.packed(), self._receiver.quota.packed()
            await asyncio.to_thread(aha_trail.save_swarm_memory, self.memory, phrases, sources)
        except OSError as error:
            log.warning("the phrase memory is not kept: %s", error)

    def want(self, wanted: int) -> int:
        """Groups to request."""
        return self.pool.want(wanted, self._rounds_since, self.stats.others)

    async def _take(self, sample: Sequence[msgspec.Raw], origins: Sequence[str] = ()) -> None:
        groups = await self.receiver.receive(sample, self.client.unix_time(), origins)
        if self._taking:  # it may have been switched off meanwhile
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

    def _signed(self, outbox: UploadOutbox) -> list[SignedGroup]:
        """The groups to send, as far as one upload carries them. Non-zero-advantage ones go last: in a full pool a node's
        newest groups replace its oldest."""
        signed: list[SignedGroup] = []
        size, part = 0, 1.0 if self.share_fraction is None else self.share_fraction
        for number, group in outbox.selected(part, self.policy.own):
            ts = int(self.client.unix_time() * 1000)
            body = body_of(group, number, self.client.identity.node, printable_label(self.model), ts)
            packed = self.client.identity.sign_group(self.client.invite.swarm, body)
            size += len(packed.body)
            if size > UPLOAD_BYTES:
                break
            self.receiver.observe_local(body)
            signed.append(packed)
        return signed[::-1]
