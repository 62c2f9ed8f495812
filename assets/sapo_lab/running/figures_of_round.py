"""Figures of a round beyond those that every node records. They go into RoundFinished.figures under these names.

generated_groups  local groups generated, with those that a filter or a starved pool cost
distinct          distinct answers of a group's completions / completions, mean over local groups: diversity
planted           share of local completions with the hostile sentence
pool              external groups available
replayed          groups of the batch that this node generated in earlier rounds
refused           available groups below the log-probability floor
cpu_s             processor seconds of the round: engine, scoring, and verify_s
verify_s          seconds of scoring others' groups again
judged            verdict on the judge's question, where there is a judge and a question
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
import numpy as np

from sapo_lab.conditions import PLANTED
from sapo_swarm.protocol.wire import MAX_GROUPS as UPLOAD_GROUPS
from sapo_swarm.protocol.wire import GroupBody, SharedCompletion, SignedGroup, Upload, encode_message
from sapo_swarm.scoring.prompts import extract_answer, written_answer
from sapo_swarm.types import AnswerFormat, Group

_ID, _KEY = "a" * 26, bytes(32)
"""Placeholders of the real lengths: the lab signs nothing, but counts what signing costs."""
MAX_COMPLETIONS = 16


def distinct_answer_share(groups: Sequence[Group], answer_format: AnswerFormat) -> float:
    """0 without groups. All completions without an answer count as one answer."""
    answers = [{written_answer(answer_format, r.text) or extract_answer(r.text) for r in g.rollouts} for g in groups]
    shares = [len(found) / len(g.rollouts) for found, g in zip(answers, groups, strict=True)]
    return float(np.mean(shares)) if shares else 0.0


def planted_share(groups: Sequence[Group]) -> float:
    """0 without completions."""
    texts = [r.text for g in groups for r in g.rollouts]
    return sum(PLANTED in text for text in texts) / len(texts) if texts else 0.0


def upload_bytes(groups: Sequence[Group], round_number: int) -> int:
    """Bytes of these groups on the wire, in uploads that the protocol allows."""
    bodies = [_body(g, round_number) for g in groups]
    signed = [SignedGroup(body=body, key=_KEY, signature=hashlib.sha512(body).digest()) for body in bodies]
    chunks = [signed[i : i + UPLOAD_GROUPS] for i in range(0, len(signed), UPLOAD_GROUPS)]
    return sum(len(encode_message(Upload(groups=tuple(chunk)))) for chunk in chunks)


def _body(group: Group, round_number: int) -> bytes:
    body = GroupBody(
        ref=group.question.ref,
        prompt_sha256=group.question.prompt_sha256,
        completions=tuple(SharedCompletion(text=r.text, finish=r.finish) for r in group.rollouts[:MAX_COMPLETIONS]),
        node=_ID,
        model=group.model[:80],
        policy_step=round_number,
        ts=1_700_000_000_000,
    )
    return msgspec.msgpack.encode(body)
