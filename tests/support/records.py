"""Stored events for tests: a round, a group, an evaluation, an opening, a swarm, with figures that follow from their number."""

from __future__ import annotations

from sapo_swarm.events import Evaluated, GroupRecorded, RoundFinished, RunStarted, SwarmUpdated
from sapo_swarm.types import Group, Question, Rollout, TaskRef


def group_of(round_: int, slot: int, first: bool = False, text: str = "x") -> GroupRecorded:
    question = Question(TaskRef("bf", "starter", 100 * round_ + slot), "p", "0" * 64)
    group = Group(question, (Rollout(text, "stop", 1.0), Rollout(text, "stop", 0.0)))
    return GroupRecorded(round=round_, group=group, trained=True, first_solved=first)


def finished(round_: int, reward: float = 0.5, seconds: float = 1.0) -> RoundFinished:
    return RoundFinished(
        time=float(round_),
        round=round_,
        reward_local=reward,
        reward_external=None,
        reward_batch=reward,
        local_groups=8,
        external_groups=0,
        external_wanted=0,
        nonzero_groups=4,
        truncated=1,
        well_formed=60,
        completions=64,
        tokens_generated=1000 + round_ % 7,
        tokens_trained=900,
        bytes_sent=0,
        bytes_received=0,
        loss=-0.01 * (round_ % 5),
        grad_norm=0.3,
        entropy=1.5,
        clip_fraction=0.0,
        logprob_local=-1.0,
        logprob_external=None,
        ratio_max=1.0 + round_ % 3,
        task_rewards={"bf": reward, "arc_1d": 1 - reward},
        seconds={"generate": seconds, "update": seconds / 2},
    )


def evaluation(round_: int, pass_at_1: float = 0.5) -> Evaluated:
    return Evaluated(
        round=round_,
        temperature=1.0,
        items=16,
        pass_at_1=pass_at_1,
        low=0.4,
        high=0.6,
        delta=None,
        delta_low=None,
        delta_high=None,
        tasks=(),
        seconds=1.0,
    )


def opened(round_: int) -> RunStarted:
    return RunStarted(
        run_id="r",
        mode="silo",
        model="fake",
        backend="fake",
        device="cpu",
        precision="float64",
        method="full",
        parameters=1,
        tasks=("bf",),
        algorithm="grpo",
        group_size=8,
        local_groups=8,
        external_groups=0,
        round=round_,
        rounds_planned=0,
        seed=0,
        versions={},
    )


def in_a_swarm(at: float) -> SwarmUpdated:
    return SwarmUpdated(
        time=at,
        coordinator="http://127.0.0.1:1",
        connected=True,
        sentence="Connected: 3 nodes",
        window=3600.0,
        share=0.3,
        uptake=1,
        external_share=0.5,
        nodes=3,
        rounds_per_s=0.1,
        made=8,
        accepted=8,
        rejected={},
        refused={},
    )
