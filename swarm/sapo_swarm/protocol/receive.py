"""What a node does with external groups before any of their text may reach a model or a screen."""

from __future__ import annotations

import random
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

import msgspec

from sapo_swarm.protocol.identity import group_text, node_id, verify_signature
from sapo_swarm.protocol.phrase_watch import PhraseWatch, UnlikelySources
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.protocol.time_quota import TimeQuota
from sapo_swarm.protocol.wire import PER_SOURCE, GroupBody, SignedGroup, WireError, content_digest, unpack_msgpack
from sapo_swarm.scoring.scorer import ScoredTexts, Scorer
from sapo_swarm.tasks.catalogue import CATALOGUE, STRICT_PRESETS, is_train
from sapo_swarm.tasks.own.library import PRESET
from sapo_swarm.types import GENERATOR_VERSION, MAX_COMPLETION_BYTES, STRICT, Group, Question, RewardRule, Rollout

# What a node does with external groups before any of their text may reach a model or a screen.
#
# In this order: signature, schema, author, a few per source, age, coordinates on the allow-list, seeds that train,
# duplicates, length band, time quota of the source, regenerate, prompt hash, held-out question, own score, length of
# what would be taught, phrases that too many groups teach; and only then the engine: time quota for what the reading
# will take, log-prob floor (of the group, then of its source's newest ones). Of a newcomer one text is read first.
# Nothing from the sender is trusted but its text: the question is regenerated, the reward computed here. Each
# rejection has a stable reason. A group that meets an empty budget of all newcomers waits for a later sample.

REMEMBERED = 8192
"""Digests of groups seen, local ones too, to detect copies; struck sources."""
TAUGHT_BANDS = 4.0
"""A completion that would be taught may be this many times as long as a group's median may be."""
MIN_OBSERVED = 16
"""Local completions before the length band becomes narrower than `max_bytes`."""
PROBED = 4
"""Texts of a group that the engine reads: chosen at random, so that none can count on slipping through."""
WAITING, WAITING_OF_ORIGIN, WAIT_S = 64, 8, 1200.0
"""Groups that wait for time, in all and of one origin, and how long."""
PACE = 0.2
"""Weight of the newest reading in the seconds that a byte takes."""
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
    """A group that is being judged. origin: see TimeQuota. at: when it arrived, by the receiver's clock. question, verdict: once
    it was regenerated and scored; taught: the texts that would be taught."""

    body: GroupBody
    origin: str
    at: float
    question: Question | None = None
    verdict: ScoredTexts | None = None
    taught: tuple[str, ...] = ()


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
    _waiting: list[_Case] = field(default_factory=list)
    _byte_s: float = 0.0
    """Seconds that the engine takes for a byte of prompt and text, a running mean; 0 before it has read any."""
    _local_bytes: deque[int] = field(default_factory=lambda: deque(maxlen=512))

    def observe_local(self, body: GroupBody) -> None:
        """Register a local group: copies of it are refused, its lengths set the band."""
        _remember(self._seen, content_digest(body))
        self._local_bytes.extend(len(completion.text.encode()) for completion in body.completions)

    async def receive(
        self, sample: Sequence[msgspec.Raw | bytes], now: float, origins: Sequence[str] = ()
    ) -> list[Group]:
        """The groups that passed everything, scored here; groups of earlier samples that waited are among them. now: Unix time.
        origins: of each group of the sample, as far as the coordinator names them. Raises ScorerUnavailable only."""
        cases, self._waiting = self._waiting, []
        sources: Counter[str] = Counter()
        named = [*origins[: len(sample)], *[""] * (len(sample) - len(origins))]
        for raw, origin in zip(sample, named, strict=True):
            body, reason = self._form(raw, sources, now)
            if body is None:
                self.rejected[reason] += 1
            else:
                sources[body.node] += 1
                cases.append(_Case(body, origin, self.clock()))
        cases.sort(key=self._rank)
        cases = [case for case in cases if case.verdict is not None or self._affords(case, 0.0)]
        await self._regenerate([case for case in cases if case.question is None])
        await self._score([case for case in cases if case.question is not None and case.verdict is None])
        async with self.hold():
            judged = [await self._judged(case) for case in cases if case.verdict is not None]
        groups = [group for group in judged if group is not None]
        self.accepted += len(groups)
        return groups

    def _rank(self, case: _Case) -> tuple[bool, int, float]:
        return self.quota.rank(case.body.node, case.origin)

    def _affords(self, case: _Case, seconds: float) -> bool:
        """Whether there is time for a job on the group. If only the budget of all is empty, the group waits."""
        now = self.clock()
        refusal = self.quota.refusal(case.body.node, case.origin, seconds, now)
        of_origin = sum(waiting.origin == case.origin for waiting in self._waiting)
        room = len(self._waiting) < WAITING and of_origin < WAITING_OF_ORIGIN and now - case.at <= WAIT_S
        if refusal == "all" and room:
            self._waiting.append(case)
        elif refusal:
            self.rejected["quota"] += 1
        return not refusal

    def _charge(self, case: _Case, seconds: float) -> None:
        self.quota.charge(case.body.node, case.origin, seconds, self.clock())

    def _refuse(self, case: _Case, reason: str) -> None:
        self.rejected[reason] += 1
        self.quota.judged(case.body.node, case.origin, False, self.clock())

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

    async def _regenerate(self, cases: list[_Case]) -> None:
        """Give the cases the questions that their coordinates give here, after comparing prompt hashes."""
        spent: list[float] = []
        questions = await self.scorer.questions([case.body.ref for case in cases], spent) if cases else []
        for case, question, seconds in zip(cases, questions, spent, strict=True):
            self._charge(case, seconds)
            if not isinstance(question, Question):
                if question.costly:
                    _remember(self.struck, case.body.node)
                self._refuse(case, "no_question")
            elif question.prompt_sha256 != case.body.prompt_sha256:
                self._refuse(case, "prompt_hash")
            elif question.prompt_sha256 in self.excluded:
                self._refuse(case, "held_out")
            else:
                case.question = question

    async def _score(self, cases: list[_Case]) -> None:
        """Give the cases this node's own verdicts."""
        jobs = [(case.body.ref, [completion.text for completion in case.body.completions]) for case in cases]
        spent: list[float] = []
        verdicts = await self.scorer.score_many(jobs, self.rules.rule, spent) if jobs else []
        for case, verdict, seconds in zip(cases, verdicts, spent, strict=True):
            self._charge(case, seconds)
            if isinstance(verdict, ScoredTexts) and len(verdict.rewards) == len(case.body.completions):
                verdict = verdict.finished_only(
                    case.body.ref, [completion.finish for completion in case.body.completions]
                )
                case.verdict, case.taught = verdict, _taught(case.body, verdict.rewards)
                continue
            if isinstance(verdict, ScoredTexts) or verdict.fault != "task":
                _remember(self.struck, case.body.node)  # it cost this node a worker: once is enough for the session
            self._refuse(case, "unscorable")

    async def _judged(self, case: _Case) -> Group | None:
        """The group if this policy may be taught its texts. Refused if these are far longer than its own, hold a phrase that
        it never wrote and that many groups bring, repeat the question as many do, or are too unlikely, as were others of the
        node."""
        body, question, verdict, taught = case.body, case.question, case.verdict, case.taught
        assert question is not None
        assert verdict is not None
        if max((len(text.encode()) for text in taught), default=0) > TAUGHT_BANDS * self.band:
            self._refuse(case, "length")
            return None
        phrases = self.phrases.phrases_allowed(taught, question)
        repeated = self.phrases.repeats_allowed(taught, question)
        if phrases is None or repeated is None:
            self._refuse(case, "phrase" if phrases is None else "repeats")
            return None
        if taught:
            texts = random.sample(taught, min(PROBED, len(taught)))
            first = texts if self.quota.is_known(body.node) else texts[:1]
            if self.likelihood is not None:
                if not self._affords(case, self._estimate(question, first)):
                    return None
                if reason := await self._read(case, question, first, texts[len(first) :]):
                    self._refuse(case, reason)
                    return None
            self.quota.judged(body.node, case.origin, True, self.clock())
        self.phrases.count_taken(phrases, repeated if taught else None)
        return _group(body, question, verdict)

    def _estimate(self, question: Question, texts: Sequence[str]) -> float:
        """Seconds that the engine will take, by what it took so far: bytes stand for tokens, which only the engine counts."""
        return self._byte_s * _bytes_read(question, texts)

    async def _read(self, case: _Case, question: Question, *parts: Sequence[str]) -> str:
        """Why the engine finds the texts too unlikely, or "". A part is read only if those before it were likely; what it is
        estimated to take is charged first. In the end a source pays for what was read in vain."""
        assert self.likelihood is not None
        node, charged, spent, low = case.body.node, 0.0, 0.0, False
        for texts in filter(None, parts):
            self._charge(case, estimate := self._estimate(question, texts))
            charged += estimate
            lowest, seconds = await self.likelihood(question, texts)
            spent += seconds
            pace = seconds / _bytes_read(question, texts)
            self._byte_s += (PACE if self._byte_s else 1.0) * (pace - self._byte_s)
            low = lowest < self.rules.logprob_floor
            if low or not self.unlikely.allows(node):
                break
        self.unlikely.judged(node, low)
        reason = "logprob" if low else "" if self.unlikely.allows(node) else "unlikely"
        self._charge(case, (spent if reason else 0.0) - charged)
        return reason


def _bytes_read(question: Question, texts: Sequence[str]) -> int:
    """Each text is read after its prompt."""
    return sum(len(question.prompt.encode()) + len(text.encode()) for text in texts) or 1


def _remember(values: OrderedDict[str, None], value: str) -> None:
    values[value] = None
    while len(values) > REMEMBERED:
        values.popitem(last=False)


def _taught(body: GroupBody, rewards: Sequence[float]) -> tuple[str, ...]:
    """The completions better than the mean: poison travels in verified-correct text, and bad text may be as unlikely, and as
    long, as it likes."""
    mean = sum(rewards) / len(rewards)
    return tuple(c.text for c, reward in zip(body.completions, rewards, strict=True) if reward > mean)


def _group(body: GroupBody, question: Question, verdict: ScoredTexts) -> Group:
    rollouts = tuple(
        Rollout(completion.text, completion.finish, float(reward), shortcut=place in verdict.shortcut)
        for place, (completion, reward) in enumerate(zip(body.completions, verdict.rewards, strict=True))
    )
    return Group(
        question, rollouts, "external", body.node, safe_text(body.model, 80, lines=False), step=body.policy_step
    )
