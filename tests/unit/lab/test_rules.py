"""The pure parts of the lab: experiments as TOML, the conditions around a node, the pool, corrections, adaptive I/J."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sapo_assets
from sapo_backends.base import Completion, TrainSample
from sapo_backends.reference import importance_weight
from sapo_lab.conditions import PLANTED, arrives, is_away, is_hostile, node_tasks, tampered
from sapo_lab.report.statistics import mean_interval, nonzero_advantage_share, paired_gain
from sapo_lab.report.table import is_plain
from sapo_lab.running.adaptive import Rule, Split, move, observe, observe_held_out, target
from sapo_lab.running.held_out import assigned
from sapo_lab.running.judge import better_from, holm, sign_flip
from sapo_lab.running.judge import question as judge_question
from sapo_lab.running.off_policy import proximity, sequence_level
from sapo_lab.running.pool import History, Shared, shared
from sapo_lab.schema import BadExperiment, Conditions, load, parse
from sapo_swarm.algorithms.registry import algorithm
from sapo_swarm.config import RunConfig
from sapo_swarm.sapo.novelty import novelty
from sapo_swarm.sapo.novelty import observe as observe_seen
from sapo_swarm.sapo.sample_external import sample_external
from sapo_swarm.tasks.prompts import extract_answer
from sapo_swarm.tasks.seeds import held_out
from sapo_swarm.types import Group, Question, Rollout, TaskRef

SMALL = {"name": "e", "run": {"rounds": 3}, "arms": [{"name": "a"}]}


def group(number: int, node: str = "", task: str = "bf", answer: str = "1") -> Group:
    question = Question(TaskRef(task, "starter", number), "q", hashlib.sha256(b"q").hexdigest())
    right, wrong = Rollout(f"so it is <answer>{answer}</answer>", "stop", 1.0, 3), Rollout("no", "stop", 0.0, 1)
    return Group(question, (right, wrong), "external" if node else "own", node)


def item(number: int, node: str, round_number: int) -> Shared:
    return Shared(group(number, node), round_number, 100)


# Experiments


@pytest.mark.parametrize("name", sorted(sapo_assets.experiments()))
def test_every_experiment_that_ships_is_valid_and_asks_a_question(name: str) -> None:
    experiment = load(sapo_assets.experiments()[name])
    assert experiment.name == name
    assert experiment.question.endswith("?")
    assert name == "smoke" or len(experiment.seeds) >= 3


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"nodez": 3}, "Did you mean 'nodes'"),
        ({"run": {"rounds": 3, "learningrate": 1}}, "Did you mean 'learning_rate'"),
        ({"arms": [{"name": "a", "external_group": 4}]}, "Did you mean 'external_groups'"),
        ({"conditions": {"churm": 0.5}}, "Did you mean 'churn'"),
        ({"arms": [{"name": "a", "against": ["b"]}]}, "no arm 'b'"),
        ({"arms": [{"name": "a", "sampling": "novelity"}]}, "Did you mean 'novelty'"),
        ({"arms": [{"name": "a", "algorithm": "grop"}]}, "Did you mean 'grpo'"),
        ({"arms": [{"name": "a", "tasks": ["bff"]}]}, "Did you mean 'bf'"),
        ({"arms": [{"name": "a"}, {"name": "a"}]}, "twice"),
        ({"arms": [{"name": "../a"}]}, "name"),
        ({"arms": [{"name": "a", "churn": 2.0}]}, "churn"),
        ({"arms": [{"name": "a", "rounds": 0}]}, "rounds"),
        ({"run": {"rounds": 3, "seed": 1}}, "seeds"),
        ({"arms": [{"name": "a", "off_policy": "clip", "external_advantages": "positive"}]}, "needs whole groups"),
        ({"arms": 3}, "arms"),
        ({"run": 3}, "run"),
    ],
)
def test_what_is_wrong_in_an_experiment_is_named_with_the_nearest_match(
    tmp_path: Path, change: dict[str, object], hint: str
) -> None:
    import tomli_w

    path = tmp_path / "e.toml"
    path.write_text(tomli_w.dumps({**SMALL, **change}))
    with pytest.raises(BadExperiment, match=hint):
        load(path)


def test_an_arm_takes_shared_settings_and_changes_its_own() -> None:
    experiment = parse({**SMALL, "conditions": {"churn": 0.5}, "arms": [{"name": "a", "local_groups": 2, "loss": 0.1}]})
    assert experiment.arms[0].run == RunConfig(rounds=3, local_groups=2, external_advantages="all")
    assert experiment.arms[0].conditions == Conditions(churn=0.5, loss=0.1)


@pytest.mark.parametrize("change", [{"replay_groups": 1}, {"curriculum": "tasks"}, {"contrast": 2}, {"loss": 0.1}])
def test_the_papers_figures_stand_beside_its_own_arms_only(change: dict[str, object]) -> None:
    plain, changed = parse({**SMALL, "arms": [{"name": "a"}, {"name": "b", **change}]}).arms
    assert is_plain(plain)
    assert not is_plain(changed)


# Conditions


@given(st.integers(0, 50), st.floats(0.0, 1.0))
def test_a_node_is_away_for_about_the_share_of_the_time_that_churn_says(seed: int, churn: float) -> None:
    terms = Conditions(churn=churn, churn_rounds=1)
    away = np.mean([is_away(terms, seed, node, t) for node in range(8) for t in range(100)])
    assert abs(away - churn) < 0.09


def test_a_node_stays_away_for_whole_blocks() -> None:
    terms = Conditions(churn=0.5, churn_rounds=10)
    changes = sum(is_away(terms, 1, 0, t) != is_away(terms, 1, 0, t + 1) for t in range(200))
    assert 0 < changes <= 20


def test_a_slow_node_plays_every_nth_round_and_not_the_same_ones_as_its_like() -> None:
    terms = Conditions(paces=(1, 4))
    there = [[t for t in range(8) if not is_away(terms, 1, node, t)] for node in range(4)]
    assert there == [list(range(8)), [3, 7], list(range(8)), [1, 5]]


def test_losses_differ_between_receivers_and_are_the_same_every_time() -> None:
    terms = Conditions(loss=0.5)
    first = [arrives(terms, 1, node, group(n, "node-7")) for node in range(4) for n in range(50)]
    assert first == [arrives(terms, 1, node, group(n, "node-7")) for node in range(4) for n in range(50)]
    assert 60 < sum(first) < 140
    assert first[:50] != first[50:100]


def test_a_quarter_of_eight_nodes_is_two_hostile_ones() -> None:
    assert [is_hostile(i, 8, 0.25) for i in range(8)] == [False] * 6 + [True] * 2


def test_specialists_share_out_all_tasks() -> None:
    experiment = parse({**SMALL, "arms": [{"name": "a", "tasks_per_node": 3}]})
    asked = Counter(task for index in range(3) for task in node_tasks(experiment.arms[0], index))
    assert asked == Counter(experiment.arms[0].run.tasks)


@pytest.mark.parametrize("attack", ["planted", "garbled"])
def test_tampered_text_still_holds_its_answer(attack: str) -> None:
    before = group(1)
    after = tampered(before, attack, 3)
    assert [extract_answer(r.text) for r in after.rollouts] == [extract_answer(r.text) for r in before.rollouts]
    if attack == "planted":
        assert [PLANTED in r.text for r in after.rollouts] == [True, False]


# The pool


def test_a_node_draws_from_the_groups_of_others_of_this_round_only() -> None:
    history = History(Conditions(), seed=1)
    history.add([item(1, "node-0", 4), item(2, "node-1", 4)], 4)
    history.add([item(3, "node-0", 5), item(4, "node-1", 5)], 5)
    assert [s.group.question.ref.seed for s in history.pool(0, 5, set())] == [4]


def test_stale_groups_arrive_so_many_rounds_later() -> None:
    history = History(Conditions(staleness=5), seed=1)
    for t in range(12):
        history.add([item(t, "node-1", t)], t)
        expected = [t - 5] if t >= 5 else []
        assert [s.round for s in history.pool(0, t, set())] == expected


def test_replay_offers_own_groups_of_earlier_rounds_once() -> None:
    history = History(Conditions(pool_from="own", pool_rounds=3), seed=1)
    for t in range(6):
        history.add([item(t, "node-0", t), item(100 + t, "node-1", t)], t)
    offered = history.pool(0, 5, set())
    assert [s.round for s in offered] == [2, 3, 4]
    assert [s.round for s in history.pool(0, 5, {offered[0].key})] == [3, 4]
    again = History(Conditions(pool_from="own", pool_rounds=3, reuse=True), 1, history.groups)
    assert [s.round for s in again.pool(0, 5, {offered[0].key})] == [2, 3, 4]


def test_the_pool_survives_being_written_down() -> None:
    history = History(Conditions(pool_rounds=2), seed=1)
    history.add([item(1, "node-1", 0)], 0)
    assert History(Conditions(pool_rounds=2), 1, history.groups).pool(0, 1, set()) == history.pool(0, 1, set())


def test_what_others_see_carries_no_advantage_and_log_probabilities_only_where_asked() -> None:
    completions = [[Completion((1, 2), (-0.5, -0.25), "stop"), Completion((3,), (-1.0,), "stop")]]
    plain, with_logprobs = (shared([group(1)], completions, "node-3", 0, 1000, keep)[0] for keep in (False, True))
    assert plain.logprobs == ()
    assert with_logprobs.logprobs == ((-0.5, -0.25), (-1.0,))
    assert plain.group.source == "external"
    assert plain.group.node == "node-3"
    assert plain.size == 1000


# Corrections


def sample(advantage: float = 1.0) -> TrainSample:
    return TrainSample((1,), (2, 3, 4), advantage, external=True)


def test_the_sequence_weight_is_the_geometric_mean_of_the_token_ratios() -> None:
    own, sender = [-1.0, -2.0, -3.0], [-1.5, -2.0, -4.0]
    policy = algorithm("grpo").policy(RunConfig(), 1e-4)
    corrected = sequence_level([sample()], [own], [sender])[0]
    weight = importance_weight(corrected, np.array(own), policy)
    np.testing.assert_allclose(weight, math.exp((0.5 + 0.0 + 1.0) / 3))


def test_a_text_without_sender_log_probabilities_is_left_as_it_is() -> None:
    assert sequence_level([sample()], [[-1.0, -1.0, -1.0]], [()]) == [sample()]


def test_proximity_never_raises_a_weight_and_falls_with_distance() -> None:
    near, far = proximity([sample(), sample(-2.0)], [[-0.1] * 3, [-3.0] * 3], usual=-1.0)
    assert near.advantage == 1.0
    assert far.advantage == pytest.approx(-2.0 * math.exp(-2.0))


# Novelty and adaptive I/J


def test_novelty_prefers_tasks_and_answers_that_were_rarely_trained_on() -> None:
    seen: Counter[str] = Counter()
    assert novelty([group(1)], seen) == pytest.approx([1.0])
    observe_seen(seen, [group(n) for n in range(20)])
    often, other_answer, other_task = novelty([group(1), group(2, answer="7"), group(3, task="arc_1d")], seen)
    assert often < other_answer < other_task == 1.0
    pool = [group(1, "a"), group(2, "b", "arc_1d")]
    random = np.random.default_rng(0)
    first = Counter(sample_external(pool, 1, random, "novelty", seen=seen)[0].node for _ in range(500))
    assert first["b"] > 4 * first["a"]


def test_where_own_questions_carry_signal_nothing_is_taken_from_others() -> None:
    assert target(Split(4, 4, nonzero_share=0.5), Rule()) == 0


def test_where_success_is_rare_others_make_up_what_is_missing() -> None:
    assert target(Split(8, 0, nonzero_share=0.0), Rule()) == 2
    assert target(Split(8, 0, nonzero_share=0.05), Rule(wanted=0.5)) == 4


def test_a_swarm_that_drifts_away_or_hurts_is_heard_less() -> None:
    assert target(Split(6, 2, nonzero_share=0.0, gap=1.5), Rule()) == 1
    before = observe_held_out(Split(6, 2, nonzero_share=0.0), before=0.10, after=0.02, items=400)
    assert target(before, Rule()) == 1


@given(
    st.lists(st.tuples(st.floats(0, 1), st.none() | st.floats(-5, 5)), max_size=80),
    st.integers(1, 8),
    st.integers(0, 8),
)
def test_the_split_moves_by_one_group_at_most_every_so_many_rounds_and_keeps_its_sum(
    signals: list[tuple[float, float | None]], own: int, external: int
) -> None:
    rule, split, moved = Rule(), Split(own, external), -math.inf
    for t, (nonzero_share, gap) in enumerate(signals):
        after = move(observe(split, nonzero_share, gap, rule), rule)
        assert after.local + after.external == own + external
        assert abs(after.external - split.external) <= 1
        assert after.external <= max(external, math.floor(rule.most * (own + external)))
        if after.external != split.external:
            assert t - moved >= rule.every
            moved = t
        split = after


# The judge


def verdicts(rates: list[float], seed: int) -> dict[tuple[int, int], float]:
    random = np.random.default_rng(seed)
    return {(s, t): float(np.mean(random.random(8) < rate)) for s in (1, 2, 3) for t, rate in enumerate(rates)}


def test_the_judge_finds_the_round_from_which_the_swarm_is_better() -> None:
    silo = verdicts([0.05] * 300, 0)
    assert better_from(verdicts([0.05] * 150 + [0.3] * 150, 1), silo) == 150
    assert better_from(verdicts([0.05] * 300, 2), silo) is None
    assert better_from(verdicts([0.3] * 250 + [0.05] * 50, 3), silo) is None


def test_holm_adjusts_the_smallest_most_and_never_reorders() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_a_sign_flip_test_of_pure_gains_is_as_small_as_the_flips_allow() -> None:
    assert sign_flip(np.full(20, 0.5)) < 1e-3
    assert sign_flip(np.array([0.5, -0.5] * 10)) > 0.3


def test_the_judge_asks_what_no_other_evaluation_asks() -> None:
    asked = {judge_question(("bf", "arc_1d"), "starter", t) for t in range(50)}
    assert len(asked) == 50
    assert {ref.dataset for ref in asked} == {"bf", "arc_1d"}
    assert min(ref.index for ref in asked) > 10_000  # final_items at most


# Figures


def test_one_seed_has_a_value_and_no_interval() -> None:
    found = mean_interval([0.5])
    assert found.value == 0.5
    assert math.isnan(found.low)


def test_the_gain_is_paired_by_seed_and_relative_to_the_other_arm() -> None:
    found = paired_gain({1: 12.0, 2: 24.0, 3: 99.0, 4: math.nan}, {1: 10.0, 2: 20.0, 4: 5.0})
    assert found.value == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.2, 0.2)), "every seed gained a fifth"
    assert math.isnan(paired_gain({1: 12.0}, {1: 10.0}).low)
    assert math.isnan(paired_gain({1: 12.0}, {1: 0.0}).value)


@pytest.mark.parametrize("gain", [0.0, 0.8, 2.5])
def test_the_interval_of_a_gain_holds_the_truth_19_times_in_20(gain: float) -> None:
    """Both arms vary over seeds. A difference as a part of a fixed baseline held +250 % of three seeds 91 times in 100."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(4000):
        silo, swarm = 1 + 0.1 * rng.standard_normal((2, 3))
        found = paired_gain(dict(enumerate((1 + gain) * swarm)), dict(enumerate(silo)))
        held += found.low <= gain <= found.high
    assert held / 4000 == pytest.approx(0.95, abs=0.012)


@given(st.floats(0.0, 1.0), st.integers(2, 16))
def test_the_nonzero_advantage_share_agrees_with_counting(p: float, size: int) -> None:
    drawn = np.random.default_rng(0).random((4000, size)) < p
    assert abs(nonzero_advantage_share(p, size) - np.mean(drawn.any(1) & ~drawn.all(1))) < 0.04


def test_every_item_is_answered_by_so_many_nodes() -> None:
    refs = [held_out("bf", "starter", n) for n in range(21)]
    for answers in (1, 2, 4):
        hands = [assigned(refs, place, 4, answers) for place in range(4)]
        assert Counter(ref for hand in hands for ref in hand) == dict.fromkeys(refs, answers)
