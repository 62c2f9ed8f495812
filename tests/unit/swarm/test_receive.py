"""The receiver pipeline: what a node takes from others, and why it refuses the rest."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.receive import AcceptanceRules, GroupReceiver
from sapo_swarm.protocol.time_quota import (
    FIRST_TRUST,
    KNOWN_BURST,
    KNOWN_RATE,
    NEWCOMERS_BURST,
    NEWCOMERS_RATE,
    TimeQuota,
)
from sapo_swarm.protocol.wire import PER_SOURCE, REFUSAL_WORDS, GroupBody, SharedCompletion, SignedGroup
from sapo_swarm.scoring.prompts import extract_answer
from sapo_swarm.scoring.scorer import ScoredTexts, ScoringFailed, UnanswerableQuestion
from sapo_swarm.types import STRICT, Question, RewardRule, TaskRef

SWARM = "a" * 16
NOW = 1_700_000_000.0
SLOW = 99
"""A question that takes this verifier a second."""
ME = Identity(bytes(32))
PEER = Identity(bytes([1]) * 32)


def prompt_of(ref: TaskRef) -> str:
    return f"What is {ref.seed} + 1?"


class AddOne:
    """A verifier of one kind of question: the right answer is seed + 1. Seed 13 has no question; "BOOM" kills it."""

    async def questions(
        self, refs: Sequence[TaskRef], spent: list[float] | None = None
    ) -> list[Question | UnanswerableQuestion]:
        assert spent is not None
        spent += [float(ref.seed == SLOW) for ref in refs]
        return [
            UnanswerableQuestion(ref, "no such question", costly=ref.seed == 14)
            if ref.seed in (13, 14)
            else Question(ref, prompt_of(ref), hashlib.sha256(prompt_of(ref).encode()).hexdigest())
            for ref in refs
        ]

    async def score_many(
        self,
        groups: Sequence[tuple[TaskRef, Sequence[str]]],
        rule: RewardRule = STRICT,
        spent: list[float] | None = None,
    ) -> list[ScoredTexts | ScoringFailed]:
        assert spent is not None
        spent += [float(any("SLOW" in text for text in texts)) for _, texts in groups]
        return [
            ScoringFailed(ref, "it died", "texts")
            if any("BOOM" in text for text in texts)
            else ScoredTexts(
                tuple(float(extract_answer(text) == str(ref.seed + 1)) for text in texts), (True,) * len(texts)
            )
            for ref, texts in groups
        ]


def body(author: Identity, seed: int = 5, texts: Sequence[str] = (), **changes: object) -> GroupBody:
    ref = TaskRef("basic_arithmetic", "starter", seed)
    chosen = texts or (f"<answer>{seed + 1}</answer>", "no idea")
    made = GroupBody(
        ref=ref,
        prompt_sha256=hashlib.sha256(prompt_of(ref).encode()).hexdigest(),
        completions=tuple(SharedCompletion(text=text, finish="stop") for text in chosen),
        node=author.node,
        model="m",
        policy_step=0,
        ts=int(NOW * 1000),
    )
    return msgspec.structs.replace(made, **changes)


def packed(group: SignedGroup) -> bytes:
    return msgspec.msgpack.encode(group)


def signed(author: Identity, seed: int = 5, texts: Sequence[str] = (), **changes: object) -> bytes:
    return packed(author.sign_group(SWARM, body(author, seed, texts, **changes)))


@pytest.fixture
def receiver() -> GroupReceiver:
    return GroupReceiver(SWARM, ME.node, AddOne())


async def test_a_good_group_is_regenerated_and_scored_here(receiver: GroupReceiver) -> None:
    """The reward is this node's own verdict; the prompt is this node's own text."""
    (group,) = await receiver.receive([signed(PEER)], NOW)
    assert (group.source, group.node, group.rewards) == ("external", PEER.node, (1.0, 0.0))
    assert group.question.prompt == "What is 5 + 1?"
    assert not receiver.rejected


async def test_a_group_keeps_its_author_only_in_its_own_swarm(receiver: GroupReceiver) -> None:
    """A group signed for another swarm is worth nothing here."""
    other = packed(PEER.sign_group("b" * 16, body(PEER)))
    assert await receiver.receive([other], NOW) == []
    assert receiver.rejected == {"signature": 1}


async def test_every_reason_is_counted_under_its_name(receiver: GroupReceiver) -> None:
    """One attack each; nothing of them passes."""
    third = Identity(bytes([2]) * 32)
    forged = msgspec.structs.replace(body(PEER), node=third.node)
    raw = msgspec.msgpack.encode(forged)
    from sapo_swarm.protocol.identity import group_text

    claims_another = SignedGroup(body=raw, key=PEER.public_key, signature=PEER.sign(group_text(SWARM, raw)))
    unknown_field = msgspec.msgpack.encode({**msgspec.to_builtins(body(PEER)), "reward": 1.0})
    with_reward = SignedGroup(
        body=unknown_field, key=PEER.public_key, signature=PEER.sign(group_text(SWARM, unknown_field))
    )
    cases = {
        "schema": packed(with_reward),
        "author": packed(claims_another),
        "own": signed(ME),
        "stale": signed(PEER, ts=0),
        "task": signed(PEER, ref=TaskRef("codeio", "starter", 5)),
        "seed": signed(PEER, seed=2**31),
        "length": signed(PEER, texts=("é" * 4097, "x")),
        "no_question": signed(PEER, seed=13),
        "prompt_hash": signed(PEER, prompt_sha256="0" * 64),
        "signature": packed(msgspec.structs.replace(PEER.sign_group(SWARM, body(PEER)), signature=bytes(64))),
    }
    for raw_group in cases.values():
        assert await receiver.receive([raw_group], NOW) == []
    assert receiver.rejected == dict.fromkeys(cases, 1)
    assert cases.keys() < REFUSAL_WORDS.keys()


async def test_a_source_gives_a_few_groups_a_sample_and_no_copies(receiver: GroupReceiver) -> None:
    """One more than that is refused; the same texts later, by anybody, are a duplicate."""
    many = [signed(PEER, seed) for seed in range(5, 6 + PER_SOURCE)]
    assert len(await receiver.receive(many, NOW)) == PER_SOURCE
    thief = Identity(bytes([3]) * 32)
    assert await receiver.receive([signed(thief, 5)], NOW) == []
    assert receiver.rejected == {"source": 1, "duplicate": 1}


async def test_each_group_of_a_source_pays_for_itself(receiver: GroupReceiver) -> None:
    """A usable one does not make the others of its sample usable: the source's trust goes up once and down twice."""
    unknown = [signed(PEER, 13, (text, "no")) for text in "ab"]
    assert len(await receiver.receive([signed(PEER, 5), *unknown], NOW)) == 1
    assert receiver.quota._sources[PEER.node].trust == FIRST_TRUST / 2


async def test_copies_of_own_groups_are_refused(receiver: GroupReceiver) -> None:
    """What this node shared does not come back as somebody else's."""
    receiver.observe_local(body(ME))
    assert await receiver.receive([signed(PEER)], NOW) == []
    assert receiver.rejected == {"duplicate": 1}


async def test_a_source_whose_text_breaks_the_scorer_is_not_heard_again(receiver: GroupReceiver) -> None:
    """One strike a session."""
    assert await receiver.receive([signed(PEER, texts=("BOOM", "x"))], NOW) == []
    assert await receiver.receive([signed(PEER, 7)], NOW) == []
    assert receiver.rejected == {"unscorable": 1, "struck": 1}


async def test_the_length_band_follows_own_completions(receiver: GroupReceiver) -> None:
    """Groups many times longer than what this node writes are refused."""
    receiver.observe_local(body(ME, 1, ["x" * 50] * 16))
    assert receiver.band == 200
    assert await receiver.receive([signed(PEER, texts=("y" * 201,) * 4)], NOW) == []
    assert receiver.rejected == {"length": 1}


async def test_one_long_text_among_short_ones_is_not_read_by_the_model_when_it_would_be_taught() -> None:
    """Reading is what costs: seconds of the engine for some hundred bytes on the wire. A long wrong answer is not read."""
    read: list[str] = []

    async def likelihood(question: Question, texts: Sequence[str]) -> tuple[float, float]:
        read.extend(texts)
        return -1.0, 0.0

    receiver = GroupReceiver(SWARM, ME.node, AddOne(), AcceptanceRules(), likelihood)
    receiver.observe_local(body(ME, 1, ["x" * 50] * 16))
    short = ("no idea",) * 3
    assert await receiver.receive([signed(PEER, 7, ["so " * 2000 + "<answer>8</answer>", *short])], NOW) == []
    assert receiver.rejected == {"length": 1}
    assert len(await receiver.receive([signed(PEER, 8, ["so " * 2000, "<answer>9</answer>", *short])], NOW)) == 1
    assert read == ["<answer>9</answer>"]


async def test_a_held_out_question_is_refused_under_any_seed() -> None:
    held_out = hashlib.sha256(prompt_of(TaskRef("basic_arithmetic", "starter", 6)).encode()).hexdigest()
    receiver = GroupReceiver(SWARM, ME.node, AddOne(), excluded=frozenset({held_out}))
    assert len(await receiver.receive([signed(PEER, 5)], NOW)) == 1
    assert await receiver.receive([signed(PEER, 6)], NOW) == []
    assert receiver.rejected == {"held_out": 1}


async def test_text_that_the_own_policy_would_never_write_is_refused() -> None:
    """The log-prob floor, when the node gives its policy."""

    async def likelihood(question: Question, texts: Sequence[str]) -> tuple[float, float]:
        return -20.0 if "zalgo" in texts[0] else -1.0, 0.0

    receiver = GroupReceiver(SWARM, ME.node, AddOne(), AcceptanceRules(logprob_floor=-8.0), likelihood)
    assert len(await receiver.receive([signed(PEER)], NOW)) == 1
    assert await receiver.receive([signed(PEER, 8, ["zalgo <answer>9</answer>", "zalgo"])], NOW) == []
    assert receiver.rejected == {"logprob": 1}


@settings(max_examples=200)
@given(st.binary(max_size=300))
async def test_any_bytes_are_a_counted_rejection(raw: bytes) -> None:
    """The node's parser raises nothing, whatever arrives."""
    receiver = GroupReceiver(SWARM, ME.node, AddOne())
    assert await receiver.receive([raw, msgspec.msgpack.encode(raw)], NOW) == []
    assert sum(receiver.rejected.values()) == 2


async def test_only_the_first_item_of_a_seed_is_taken(receiver: GroupReceiver) -> None:
    """Items far from 0 take some generators a second: nobody trains on them, so nobody may send them."""
    for index in (1, 2**20 - 1):
        assert await receiver.receive([signed(PEER, ref=TaskRef("acre", "default", 5, index))], NOW) == []
    assert receiver.rejected == {"seed": 2}


async def test_a_question_that_takes_too_long_strikes_its_source(receiver: GroupReceiver) -> None:
    """It cost this node a second of a processor: once is enough for the session."""
    assert await receiver.receive([signed(PEER, seed=14)], NOW) == []
    assert await receiver.receive([signed(PEER)], NOW) == []
    assert receiver.rejected == {"no_question": 1, "struck": 1}


async def test_newcomers_share_one_budget_of_time_and_known_sources_keep_theirs(receiver: GroupReceiver) -> None:
    """Right answers to slow questions from ever new identities: a few seconds are spent on them, then they wait, while a
    source that was useful before is heard. The date that a coordinator gives buys no time."""
    at = [0.0]
    receiver.clock = lambda: at[0]
    for seed in range(4):
        assert await receiver.receive([signed(PEER, seed)], NOW)
    slow = [
        signed(Identity(bytes([9, number]) * 16), SLOW, (f"<answer>100</answer> {number}", "no"))
        for number in range(40)
    ]
    for number, group in enumerate(slow):
        at[0] += 0.01
        await receiver.receive([group], NOW + 60.0 * (number % 2))
    assert receiver.rejected["quota"] + len(receiver._waiting) >= 35
    at[0] += 1
    assert await receiver.receive([signed(PEER, 70)], NOW)
    at[0] += 60
    assert await receiver.receive([signed(Identity(bytes([8]) * 32), 71)], NOW), "time comes back"


async def test_a_source_pays_for_its_own_group_whoever_else_sends_the_same_question(receiver: GroupReceiver) -> None:
    """Texts that take long to judge, on the coordinates of an honest node."""
    receiver.clock = lambda: 0.0
    copier = Identity(bytes([9]) * 32)
    for number in range(4):
        sample = [signed(PEER, number), signed(copier, number, (f"<answer>{number + 1}</answer>", "SLOW"))]
        assert PEER.node in {group.node for group in await receiver.receive(sample, NOW)}
    assert receiver.rejected["quota"] >= 2


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 1.0), st.booleans(), st.floats(0, 5.0)), max_size=200))
def test_the_time_that_sources_can_take_is_bounded(jobs: list[tuple[int, float, bool, float]]) -> None:
    """Whatever sources do, what they are allowed costs less than the budgets and one job beyond them a source."""
    quota, now, spent = TimeQuota(), 0.0, 0.0
    for number, seconds, useful, pause in jobs:
        now += pause
        node, origin = f"n{number}", f"o{number % 7}"
        if not quota.refusal(node, origin, seconds, now):
            quota.charge(node, origin, seconds, now)
            quota.judged(node, origin, useful, now)
            spent += seconds
    assert spent <= NEWCOMERS_BURST + KNOWN_BURST + now * (NEWCOMERS_RATE + KNOWN_RATE) + 2.0
