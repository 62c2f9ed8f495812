"""One round: judge an upload, say what became of it. Between the two the store exchanges."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from sapo_swarm.coordinator.metrics import Metrics
from sapo_swarm.coordinator.records import MINUTE, WINDOW_MINUTES, Entry, Exchange, Exchanged, Member
from sapo_swarm.coordinator.rules import Judged, Rules, judge, next_in_s, own_generator
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.protocol.identity import Signed
from sapo_swarm.protocol.wire import (
    GroupResult,
    Receipt,
    RoundReply,
    SignedGroup,
    TaskOffer,
    Upload,
    digest,
    encode,
    group_id,
)

BUSY_IN_FLIGHT = 16
"""Requests served at once from which on signatures of groups are checked by sample."""
PRIVATE = "private"
"""What stands on the status page, which anybody may see, in the place of the name of a task of members' own."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """clock: Unix time. rng: jitter and the choice of samples."""

    settings: CoordinatorSettings
    rules: Rules
    metrics: Metrics
    clock: Callable[[], float]
    rng: random.Random

    def _verdicts(
        self,
        node: str,
        key: bytes,
        groups: tuple[SignedGroup, ...],
        now: float,
        own: frozenset[tuple[str, str]] = frozenset(),
    ) -> list[Judged]:
        """Judge an upload. Under load one signature of it is checked, and all if that one is false.

        Receivers check every signature anyway, and the request's own covers the body: this keeps the pool clean.
        """
        rules = replace(self.rules, own=own)
        spot = self.rng.randrange(len(groups)) if groups and self.metrics.in_flight > BUSY_IN_FLIGHT else -1
        if spot >= 0 and judge(groups[spot], node, key, rules, now).reason == "signature":
            spot = -1
        return [judge(group, node, key, rules, now, check_signature=spot == -1) for place, group in enumerate(groups)]

    def judged(
        self, signed: Signed, member: Member, round_id: str, upload: Upload, offers: Sequence[TaskOffer] = ()
    ) -> tuple[Exchange, list[str]]:
        """What goes to the store, and for each group "" or the reason it does not. offers: tasks of members' own that the member
        may know of."""
        now = self.clock()
        own = frozenset((offer.name, offer.generator) for offer in offers)
        entries: list[Entry | None] = []
        reasons: list[str] = []
        counts: dict[str, float] = {}
        for group, judged in zip(
            upload.groups, self._verdicts(signed.node, member.key, upload.groups, now, own), strict=True
        ):
            reasons.append(judged.reason)
            if judged.body is None:
                key = f"x/{judged.reason}"
                entries.append(None)
            else:
                task = own_generator(judged.body.ref)
                key = f"t/{PRIVATE if task else judged.body.ref.dataset}"
                packed = msgspec.msgpack.encode(group)
                entries.append(Entry(group_id(group.body), judged.content, signed.node, packed, member.invite, task))
            counts[key] = counts.get(key, 0.0) + 1
        if upload.reward_local is not None:
            counts |= {"reward_sum": upload.reward_local, "reward_n": 1.0}
        exchange = Exchange(
            node=signed.node,
            nonce=signed.nonce,
            round_id=digest(f"{signed.node}/{round_id}".encode()),
            entries=tuple(entries),
            want=upload.want,
            have=frozenset(upload.have),
            now=now,
            counts=counts,
            accepts=frozenset(upload.accepts) & frozenset(generator for _, generator in own),
        )
        return exchange, reasons

    def reply(self, reasons: list[str], done: Exchanged, rounds_per_s: float) -> bytes:
        """The packed RoundReply; counts what it tells."""
        stored = (*done.stored, *(False for _ in reasons[len(done.stored) :]))
        results = tuple(
            _result("" if taken else reason or "duplicate") for reason, taken in zip(reasons, stored, strict=False)
        )
        for result in results:
            if result.accepted:
                self.metrics.accepted += 1
            else:
                self.metrics.refused[result.reason] += 1
        self.metrics.sampled += len(done.sample)
        reply = RoundReply(
            results=results,
            sample=[msgspec.Raw(blob) for blob in done.sample],
            receipts=tuple(Receipt(node=node, count=n) for node, n in list(done.receipts.items())[:64]),
            uptake=done.uptake,
            mine=done.mine,
            total=done.total,
            window_s=float(MINUTE * WINDOW_MINUTES),
            nodes=done.nodes,
            rounds_per_s=round(rounds_per_s, 3),
            pool=done.pool,
            next_in_s=next_in_s(done.nodes, self.settings.target_rounds_per_s, self.settings.round_every_s, self.rng),
        )
        body = encode(reply)
        self.metrics.bytes_out += len(body)
        return body


def _result(reason: str) -> GroupResult:
    return GroupResult(accepted=not reason, reason=reason)
