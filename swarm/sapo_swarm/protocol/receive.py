"""What a node does with external groups before any of their text may reach a model or a screen, and how much time that may
take."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

import msgspec

from sapo_swarm.protocol.drift import PhraseWatch, UnlikelySources
from sapo_swarm.protocol.identity import group_text, node_id, verify_signature
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.protocol.wire import PER_SOURCE, GroupBody, SignedGroup, WireError, content_digest, unpack_msgpack
from sapo_swarm.scoring.scorer import ScoredTexts, Scorer, ScoringFailed
from sapo_swarm.tasks.catalogue import CATALOGUE, STRICT_PRESETS, is_train
from sapo_swarm.tasks.own.library import PRESET
from sapo_swarm.types import GENERATOR_VERSION, MAX_COMPLETION_BYTES, STRICT, Group, Question, RewardRule, Rollout

# How much processor and engine time others may cost a node: a quota per source that errors shrink and usable groups
# restore. Engine time counts only for groups that were refused after the engine had read them: an honest source never
# pays for slow engines, and all newcomers together have at most 15 % of one.
#
# As in volunteer computing, a new source gets little, a useful one gets more, and all newcomers share one budget:
# creating more identities buys no more time. Pure bookkeeping; the clock is passed in.

SOURCE_RATE, SOURCE_BURST = 0.04, 0.8
"""Processor seconds per second, and at once, that a fully trusted source may cost; an honest one shares a group every 5 s."""
NEWCOMERS_RATE, NEWCOMERS_BURST = 0.15, 3.0
"""The same for all sources together that were never useful;"""
KNOWN_RATE, KNOWN_BURST = 0.4, 8.0
"""and for all those together that were."""
FIRST_TRUST, LEAST_TRUST = 0.25, 1 / 64
KNOWN_AFTER = 2
"""Usable groups after which a source is no longer a newcomer."""
SOURCES = 8192
"""Sources remembered; the one that was silent longest becomes a newcomer again."""


@dataclass(slots=True)
class _Budget:
    """Seconds left; may be overdrawn by the job that was running."""

    rate: float
    burst: float
    left: float
    at: float

    def refill(self, now: float, scale: float = 1.0) -> float:
        gained = max(0.0, now - self.at) * self.rate * scale
        self.left = min(self.burst * scale, self.left + gained) if self.left < self.burst * scale else self.left
        self.at = now
        return self.left


@dataclass(slots=True)
class _Source:
    budget: _Budget
    trust: float = FIRST_TRUST
    useful: int = 0


@dataclass(slots=True)
class TimeQuota:
    """Asked before a source's group is regenerated, and told afterwards what it cost."""

    _sources: OrderedDict[str, _Source] = field(default_factory=OrderedDict)
    _newcomers: _Budget = field(default_factory=lambda: _Budget(NEWCOMERS_RATE, NEWCOMERS_BURST, NEWCOMERS_BURST, 0.0))
    _known: _Budget = field(default_factory=lambda: _Budget(KNOWN_RATE, KNOWN_BURST, KNOWN_BURST, 0.0))

    def allows(self, node: str, now: float) -> bool:
        """Whether the source, and others like it, have time left. now: seconds of a clock that only goes forward."""
        source = self._source(node, now)
        return source.budget.refill(now, source.trust) > 0.0 and self._shared(source).refill(now) > 0.0

    def spent(self, node: str, seconds: float, useful: bool | None, now: float) -> None:
        """Charge a group's time to its source. useful: it was taken; None: unknown, or recorded elsewhere."""
        source = self._source(node, now)
        source.budget.left -= seconds
        self._shared(source).left -= seconds
        if useful is None:
            return
        source.useful += useful
        source.trust = min(1.0, 2.0 * source.trust) if useful else max(LEAST_TRUST, 0.5 * source.trust)

    def is_known(self, node: str) -> bool:
        """The source was useful before; such sources go first."""
        source = self._sources.get(node)
        return source is not None and source.useful >= KNOWN_AFTER

    def _shared(self, source: _Source) -> _Budget:
        return self._known if source.useful >= KNOWN_AFTER else self._newcomers

    def _source(self, node: str, now: float) -> _Source:
        source = self._sources.get(node)
        if source is None:
            budget = _Budget(SOURCE_RATE, SOURCE_BURST, SOURCE_BURST * FIRST_TRUST, now)
            source = self._sources[node] = _Source(budget)
            if len(self._sources) > SOURCES:
                self._sources.popitem(last=False)
        else:
            self._sources.move_to_end(node)
        return source


# What a node does with external groups before any of their text may reach a model or a screen.
#
# In this order: signature, schema, author, a few per source, age, coordinates on the allow-list, seeds that train,
# duplicates, length band, time quota of the source, regenerate, prompt hash, held-out question, own score, length of
# what would be taught, log-prob floor (of the group, then of its source's newest ones), phrases that too many groups
# teach. Nothing from the sender is trusted but its text: the question is regenerated, the reward computed here. Each
# rejection has a stable reason.

REMEMBERED = 8192
"""Digests of groups seen, local ones too, to detect copies; struck sources."""
TAUGHT_BANDS = 4.0
"""A completion that would be taught may be this many times as long as a group's median may be."""
MIN_OBSERVED = 16
"""Local completions before the length band becomes narrower than `max_bytes`."""
Likelihood = Callable[[Question, Sequence[str]], Awaitable[tuple[float, float]]]
"""Log-probability per token, under the node's own policy, of the least likely stretch of the texts, and the seconds that the
engine took to read them."""


@dataclass(frozen=True, slots=True)
class AcceptanceRules:
    """What a node takes. tasks, presets: names (default: the allow-list, judged strictly). own: (name, generator) of the
    members' custom tasks that the person accepted. max_bytes: longest completion. max_age_s: by the author's date.

    length_factor: a group's median completion may be this many times the 95th percentile of local ones. logprob_floor: nats
    per token, see Likelihood; docs/decisions/0009-likelihood.md has the measurement.
    """

    tasks: frozenset[str] = frozenset(CATALOGUE)
    presets: frozenset[str] = STRICT_PRESETS
    own: frozenset[tuple[str, str]] = frozenset()
    max_bytes: int = MAX_COMPLETION_BYTES
    length_factor: float = 4.0
    logprob_floor: float = -6.0
    max_age_s: float = 3600.0
    rule: RewardRule = STRICT


@dataclass(slots=True)
class _Case:
    """A group that is being judged. seconds, useful: see TimeQuota.spent."""

    body: GroupBody
    seconds: float = 0.0
    useful: bool | None = False


@dataclass(slots=True)
class GroupReceiver:
    """Judges samples of one swarm. rejected: reason -> groups, since the start. struck: sources that are ignored from now on.
    excluded: hashes of prompts that must not be trained on. clock: of the time quotas, this machine's own, since a
    coordinator can claim any date. hold: of the engine, for many likelihoods in a row."""

    swarm: str
    node: str
    scorer: Scorer
    rules: AcceptanceRules = field(default_factory=AcceptanceRules)
    likelihood: Likelihood | None = None
    excluded: frozenset[str] = frozenset()
    rejected: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    struck: OrderedDict[str, None] = field(default_factory=OrderedDict)
    quota: TimeQuota = field(default_factory=TimeQuota)
    clock: Callable[[], float] = time.monotonic
    hold: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    phrases: PhraseWatch = field(default_factory=PhraseWatch)
    unlikely: UnlikelySources = field(default_factory=UnlikelySources)
    _seen: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _local_bytes: deque[int] = field(default_factory=lambda: deque(maxlen=512))

    def observe_local(self, body: GroupBody) -> None:
        """Register a local group: copies of it are refused, its lengths set the band."""
        _remember(self._seen, content_digest(body))
        self._local_bytes.extend(len(completion.text.encode()) for completion in body.completions)

    async def receive(self, sample: Sequence[msgspec.Raw | bytes], now: float) -> list[Group]:
        """The groups that passed everything, scored here. now: Unix time. Raises ScorerUnavailable only."""
        bodies: list[GroupBody] = []
        sources: Counter[str] = Counter()
        for raw in sample:
            body, reason = self._form(raw, sources, now)
            if body is None:
                self.rejected[reason] += 1
            else:
                sources[body.node] += 1
                bodies.append(body)
        cases = self._affordable(bodies)
        groups = await self._scored(await self._regenerated(cases))
        for case in cases:
            self.quota.spent(case.body.node, case.seconds, case.useful, self.clock())
        self.accepted += len(groups)
        return groups

    def _affordable(self, bodies: list[GroupBody]) -> list[_Case]:
        """The groups whose sources have time left, sources that were useful before first."""
        now = self.clock()
        bodies = sorted(bodies, key=lambda body: not self.quota.is_known(body.node))
        allowed = [_Case(body) for body in bodies if self.quota.allows(body.node, now)]
        if len(allowed) < len(bodies):
            self.rejected["quota"] += len(bodies) - len(allowed)
        return allowed

    def _form(self, raw: msgspec.Raw | bytes, sources: Counter[str], now: float) -> tuple[GroupBody | None, str]:
        """Everything that can be checked without the scorer: the body, or the reason against it."""
        try:
            signed = unpack_msgpack(raw, SignedGroup)
            if not verify_signature(signed.key, signed.signature, group_text(self.swarm, signed.body)):
                return None, "signature"
            body = unpack_msgpack(signed.body, GroupBody)
        except WireError:
            return None, "schema"
        reason = (
            self._origin(body, signed.key, sources)
            or self._coordinates(body, now)
            or self._length(body)
            or ("duplicate" if content_digest(body) in self._seen else "")
        )
        if reason:
            return None, reason
        _remember(self._seen, content_digest(body))
        return body, ""

    def _origin(self, body: GroupBody, key: bytes, sources: Counter[str]) -> str:
        if node_id(key) != body.node:
            return "author"
        if body.node == self.node:
            return "own"
        if body.node in self.struck:
            return "struck"
        return "source" if sources[body.node] >= PER_SOURCE else ""

    def _coordinates(self, body: GroupBody, now: float) -> str:
        ref, rules = body.ref, self.rules
        if abs(now - body.ts / 1000) > rules.max_age_s:
            return "stale"
        if ref.generator == GENERATOR_VERSION:
            allowed = ref.dataset in rules.tasks and ref.preset in rules.presets & CATALOGUE.get(ref.dataset, {}).keys()
        else:
            allowed = (ref.dataset, ref.generator) in rules.own and ref.preset == PRESET
        return ("" if is_train(ref) else "seed") if allowed else "task"

    def _length(self, body: GroupBody) -> str:
        sizes = sorted(len(completion.text.encode()) for completion in body.completions)
        return "length" if sizes[-1] > self.rules.max_bytes or sizes[len(sizes) // 2] > self.band else ""

    @property
    def band(self) -> float:
        """Current limit of a group's median completion in bytes."""
        if len(self._local_bytes) < MIN_OBSERVED:
            return float(self.rules.max_bytes)
        ordered = sorted(self._local_bytes)
        return max(64.0, self.rules.length_factor * ordered[int(0.95 * (len(ordered) - 1))])

    async def _regenerated(self, cases: list[_Case]) -> list[tuple[_Case, Question]]:
        """Cases with the questions that their coordinates give here, after comparing prompt hashes."""
        spent: list[float] = []
        questions = await self.scorer.questions([case.body.ref for case in cases], spent) if cases else []
        out: list[tuple[_Case, Question]] = []
        for case, question, seconds in zip(cases, questions, spent, strict=True):
            case.seconds, body = seconds, case.body
            if not isinstance(question, Question):
                self.rejected["no_question"] += 1
                if question.costly:
                    _remember(self.struck, body.node)
            elif question.prompt_sha256 != body.prompt_sha256:
                self.rejected["prompt_hash"] += 1
            elif question.prompt_sha256 in self.excluded:
                self.rejected["held_out"] += 1
            else:
                out.append((case, question))
        return out

    async def _scored(self, found: list[tuple[_Case, Question]]) -> list[Group]:
        """The groups that pass. A source pays at once for what the engine reads in vain: after a long one the next ones in
        this same sample may have to wait."""
        jobs = [(case.body.ref, [completion.text for completion in case.body.completions]) for case, _ in found]
        spent: list[float] = []
        verdicts = await self.scorer.score_many(jobs, self.rules.rule, spent) if jobs else []
        for (case, _), seconds in zip(found, spent, strict=True):
            case.seconds += seconds
        async with self.hold():
            judged = [await self._judged(*one, verdict) for one, verdict in zip(found, verdicts, strict=True)]
        return [group for group in judged if group is not None]

    async def _judged(self, case: _Case, question: Question, verdict: ScoredTexts | ScoringFailed) -> Group | None:
        body = case.body
        if not isinstance(verdict, ScoredTexts) or len(verdict.rewards) != len(body.completions):
            if isinstance(verdict, ScoredTexts) or verdict.fault != "task":
                _remember(self.struck, body.node)  # it cost this node a worker: once is enough for the session
            reason = "unscorable"
        elif not self.quota.allows(body.node, self.clock()):
            reason, case.useful = "quota", None
        else:
            reason, seconds = await self._unfit(question, _taught(body, verdict.rewards), body.node)
            if not reason:
                case.useful = True
                return _group(body, question, verdict)
            self.quota.spent(body.node, seconds, None, self.clock())
        self.rejected[reason] += 1
        return None

    async def _unfit(self, question: Question, taught: Sequence[str], node: str) -> tuple[str, float]:
        """Why this policy is not to be taught these texts of a node, or "": far longer than its own (reading them takes the
        engine seconds), too unlikely, as were others of the node, or with a phrase that it never wrote and that many groups
        bring. Also returns the engine's seconds."""
        if max((len(text.encode()) for text in taught), default=0) > TAUGHT_BANDS * self.band:
            return "length", 0.0
        if not taught:
            return "", 0.0
        lowest, seconds = (0.0, 0.0) if self.likelihood is None else await self.likelihood(question, taught)
        low = lowest < self.rules.logprob_floor
        self.unlikely.judged(node, low)
        if low or not self.unlikely.allows(node):
            return "logprob" if low else "unlikely", seconds
        return "" if self.phrases.allows(taught, question) else "phrase", seconds


def _remember(values: OrderedDict[str, None], value: str) -> None:
    values[value] = None
    while len(values) > REMEMBERED:
        values.popitem(last=False)


def _taught(body: GroupBody, rewards: Sequence[float]) -> list[str]:
    """The completions better than the mean: poison travels in verified-correct text, and bad text may be as unlikely, and as
    long, as it likes."""
    mean = sum(rewards) / len(rewards)
    return [c.text for c, reward in zip(body.completions, rewards, strict=True) if reward > mean]


def _group(body: GroupBody, question: Question, verdict: ScoredTexts) -> Group:
    rollouts = tuple(
        Rollout(completion.text, completion.finish, float(reward), shortcut=place in verdict.shortcut)
        for place, (completion, reward) in enumerate(zip(body.completions, verdict.rewards, strict=True))
    )
    return Group(
        question, rollouts, "external", body.node, safe_text(body.model, 80, lines=False), step=body.policy_step
    )
