"""The pure parts of the lab: experiments as TOML, the conditions around a node, the pool, adaptive I/J."""

from __future__ import annotations

import hashlib
import math
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_lab.conditions import PLANTED, is_away, is_delivered, is_hostile, node_tasks, tamper_group
from sapo_lab.running.adaptive import (
    AdaptiveRule,
    BatchSplit,
    adjust_split,
    observe_held_out,
    observe_round,
    target_external_groups,
)
from sapo_lab.running.pool import GroupHistory, SharedGroup, as_shared_groups
from sapo_lab.schema import ArmConditions, parse_experiment
from sapo_swarm.scoring.prompts import extract_answer
from sapo_swarm.types import Group, Question, Rollout, TaskRef


def group(number: int, node: str = "", task: str = "bf", answer: str = "1") -> Group:
    question = Question(TaskRef(task, "starter", number), "q", hashlib.sha256(b"q").hexdigest())
    right, wrong = Rollout(f"so it is <answer>{answer}</answer>", "stop", 1.0, 3), Rollout("no", "stop", 0.0, 1)
    return Group(question, (right, wrong), "external" if node else "own", node)


def item(number: int, node: str, round_number: int) -> SharedGroup:
    return SharedGroup(group(number, node), round_number, 100)


@given(st.integers(0, 50), st.floats(0.0, 1.0))
def test_a_node_is_away_for_about_the_share_of_the_time_that_churn_says(seed: int, churn: float) -> None:
    terms = ArmConditions(churn=churn, churn_rounds=1)
    away = np.mean([is_away(terms, seed, node, t) for node in range(8) for t in range(100)])
    assert abs(away - churn) < 0.09


def test_a_node_stays_away_for_whole_blocks() -> None:
    terms = ArmConditions(churn=0.5, churn_rounds=10)
    changes = sum(is_away(terms, 1, 0, t) != is_away(terms, 1, 0, t + 1) for t in range(200))
    assert 0 < changes <= 20


def test_a_slow_node_plays_every_nth_round_and_not_the_same_ones_as_its_like() -> None:
    terms = ArmConditions(paces=(1, 4))
    there = [[t for t in range(8) if not is_away(terms, 1, node, t)] for node in range(4)]
    assert there == [list(range(8)), [3, 7], list(range(8)), [1, 5]]


def test_losses_differ_between_receivers_and_are_the_same_every_time() -> None:
    terms = ArmConditions(loss=0.5)
    first = [is_delivered(terms, 1, node, group(n, "node-7")) for node in range(4) for n in range(50)]
    assert first == [is_delivered(terms, 1, node, group(n, "node-7")) for node in range(4) for n in range(50)]
    assert 60 < sum(first) < 140
    assert first[:50] != first[50:100]


def test_groups_of_a_withheld_task_reach_no_other_node() -> None:
    assert not is_delivered(ArmConditions(withheld=("bf", group(1).question.ref.dataset)), 1, 0, group(1))
    assert is_delivered(ArmConditions(withheld=("another",)), 1, 0, group(1))


def test_a_quarter_of_eight_nodes_is_two_hostile_ones() -> None:
    assert [is_hostile(i, 8, 0.25) for i in range(8)] == [False] * 6 + [True] * 2


def test_specialists_share_out_all_tasks() -> None:
    experiment = parse_experiment({"name": "e", "run": {"rounds": 3}, "arms": [{"name": "a", "tasks_per_node": 3}]})
    asked = Counter(task for index in range(3) for task in node_tasks(experiment.arms[0], index))
    assert asked == Counter(experiment.arms[0].run.tasks)


@pytest.mark.parametrize("attack", ["planted", "garbled"])
def test_tampered_text_still_holds_its_answer(attack: str) -> None:
    before = group(1)
    after = tamper_group(before, attack, 3)
    assert [extract_answer(r.text) for r in after.rollouts] == [extract_answer(r.text) for r in before.rollouts]
    if attack == "planted":
        assert [PLANTED in r.text for r in after.rollouts] == [True, False]


# The pool


def test_a_node_draws_from_the_groups_of_others_of_this_round_only() -> None:
    history = GroupHistory(ArmConditions(), seed=1)
    history.add([item(1, "node-0", 4), item(2, "node-1", 4)], 4)
    history.add([item(3, "node-0", 5), item(4, "node-1", 5)], 5)
    assert [s.group.question.ref.seed for s in history.pool(0, 5, set())] == [4]


def test_stale_groups_arrive_so_many_rounds_later() -> None:
    history = GroupHistory(ArmConditions(staleness=5), seed=1)
    for t in range(12):
        history.add([item(t, "node-1", t)], t)
        expected = [t - 5] if t >= 5 else []
        assert [s.round for s in history.pool(0, t, set())] == expected


def test_replay_offers_own_groups_of_earlier_rounds_once() -> None:
    history = GroupHistory(ArmConditions(pool_from="own", pool_rounds=3), seed=1)
    for t in range(6):
        history.add([item(t, "node-0", t), item(100 + t, "node-1", t)], t)
    offered = history.pool(0, 5, set())
    assert [s.round for s in offered] == [2, 3, 4]
    assert [s.round for s in history.pool(0, 5, {offered[0].key})] == [3, 4]
    again = GroupHistory(ArmConditions(pool_from="own", pool_rounds=3, reuse=True), 1, history.groups)
    assert [s.round for s in again.pool(0, 5, {offered[0].key})] == [2, 3, 4]


def test_the_pool_survives_being_written_down() -> None:
    history = GroupHistory(ArmConditions(pool_rounds=2), seed=1)
    history.add([item(1, "node-1", 0)], 0)
    assert GroupHistory(ArmConditions(pool_rounds=2), 1, history.groups).pool(0, 1, set()) == history.pool(0, 1, set())


def test_what_others_see_carries_no_advantage() -> None:
    (seen,) = as_shared_groups([msgspec.structs.replace(group(1), advantages=(1.0, -1.0))], "node-3", 0, 1000)
    assert seen.group.external
    assert seen.group.advantages == ()
    assert seen.group.node == "node-3"
    assert seen.size == 1000


# Adaptive I/J


def test_where_own_questions_carry_signal_nothing_is_taken_from_others() -> None:
    assert target_external_groups(BatchSplit(4, 4, nonzero_share=0.5), AdaptiveRule()) == 0


def test_where_success_is_rare_others_make_up_what_is_missing() -> None:
    assert target_external_groups(BatchSplit(8, 0, nonzero_share=0.0), AdaptiveRule()) == 2
    assert target_external_groups(BatchSplit(8, 0, nonzero_share=0.05), AdaptiveRule(wanted=0.5)) == 4


def test_a_swarm_that_drifts_away_or_hurts_is_heard_less() -> None:
    assert target_external_groups(BatchSplit(6, 2, nonzero_share=0.0, gap=1.5), AdaptiveRule()) == 1
    before = observe_held_out(BatchSplit(6, 2, nonzero_share=0.0), before=0.10, after=0.02, items=400)
    assert target_external_groups(before, AdaptiveRule()) == 1


@given(
    st.lists(st.tuples(st.floats(0, 1), st.none() | st.floats(-5, 5)), max_size=80),
    st.integers(1, 8),
    st.integers(0, 8),
)
def test_the_split_moves_by_one_group_at_most_every_so_many_rounds_and_keeps_its_sum(
    signals: list[tuple[float, float | None]], own: int, external: int
) -> None:
    rule, split, moved = AdaptiveRule(), BatchSplit(own, external), -math.inf
    for t, (nonzero_share, gap) in enumerate(signals):
        after = adjust_split(observe_round(split, nonzero_share, gap, rule), rule)
        assert after.local + after.external == own + external
        assert abs(after.external - split.external) <= 1
        assert after.external <= max(external, math.floor(rule.most * (own + external)))
        if after.external != split.external:
            assert t - moved >= rule.every
            moved = t
        split = after
