"""A node's pool of foreign groups and its picture of its own stats: pure bookkeeping."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from sapo_desktop.commands.swarms import contribute
from sapo_desktop.services.swarms.membership import public_model_name
from sapo_swarm.config import RunConfig
from sapo_swarm.errors import UnknownName
from sapo_swarm.events import GroupRecorded, RoundFinished
from sapo_swarm.node.round_phases import NO_UPDATE, RoundWork, record_round
from sapo_swarm.node.swarm_exchange import STRETCH, ExternalPool, worst_stretch
from sapo_swarm.node.swarm_stats import SwarmStats
from sapo_swarm.protocol.client import ExchangeResult
from sapo_swarm.protocol.receive import AcceptanceRules
from sapo_swarm.protocol.wire import MAX_WANT
from sapo_swarm.resolve_run import RunFacts, resolve_run_config
from sapo_swarm.sapo.training_batch import assemble_batch, normalised_advantages
from sapo_swarm.types import AnswerFormat, Group, Question, Rollout, TaskRef

REF = TaskRef("basic_arithmetic", "starter", 1)


def group(node: str, seed: int, rewards: tuple[float, ...] = (1.0, 0.0)) -> Group:
    question = Question(TaskRef("bf", "starter", seed), "p", "0" * 64)
    return Group(question, tuple(Rollout("t", "stop", r) for r in rewards), "external", node)


def test_a_batch_counts_on_one_group_a_source() -> None:
    pool = ExternalPool()
    for seed, node in enumerate("aab"):
        pool.add(group(node, seed), 0.0)
    assert len(pool) == 3
    assert pool.available(4) == 2
    assert pool.available(1) == 1
    pool.per_source = 3
    assert pool.available(4) == 3
    assert pool.want(8, 1, 3) == 13, "two batches of eight, less the three that wait"


@pytest.mark.parametrize(("arrived", "trained"), [(0, 7), (5, 2)])
def test_groups_with_unequal_rewards_are_counted_among_the_local_ones_that_were_trained_on(
    arrived: int, trained: int
) -> None:
    """Five of seven were generated for what the pool lacked; it may be full by the time of the batch."""
    made = [structs.replace(group("", n, (1.0, float(n > 3))), source="own") for n in range(7)]
    pool = [group(str(n), n) for n in range(arrived)]
    batch = assemble_batch(made, pool, 2, 5, np.random.default_rng(1), normalised_advantages)
    done = RoundWork(0, local=made, completions=[], stats=NO_UPDATE, trained=batch)
    finished = record_round(done, 5, set())[-1]
    assert isinstance(finished, RoundFinished)
    assert finished.local_groups == trained
    assert finished.nonzero_groups == sum(g.nonzero_advantage for g in batch if not g.external) <= trained


def test_a_group_of_another_node_on_this_nodes_own_question_stands_beside_it_in_the_journal_not_in_its_place() -> None:
    mine, theirs = structs.replace(group("", 1), source="own"), group("a" * 26, 1)
    batch = assemble_batch([mine], [theirs], 1, 1, np.random.default_rng(1), normalised_advantages)
    done = RoundWork(0, local=[mine], completions=[], stats=NO_UPDATE, trained=batch)
    told = [event for event in record_round(done, 1, set()) if isinstance(event, GroupRecorded)]
    assert [(event.group.node, event.trained, event.first_solved) for event in told] == [
        ("", True, True),
        ("a" * 26, True, False),
    ]


def test_as_much_is_requested_as_the_rounds_until_the_next_exchange_can_use() -> None:
    """Of a source one a round, however much of it waits; and more where part of what came was of no use."""
    pool = ExternalPool()
    assert pool.want(8, 1, 3) == 6
    assert pool.want(8, 5, 3) == 18
    assert pool.want(8, 5, 200) == MAX_WANT
    assert pool.want(0, 5, 3) == 0
    for seed, node in enumerate("aaaaab"):
        pool.add(group(node, seed), 0.0)
    assert pool.want(8, 1, 3) == 3, "of a there is more than two rounds can use"
    for number in range(20):
        pool.received([group("c", number)] if number % 2 else [], 1, 0.0)
    assert 4 <= ExternalPool(usable=pool.usable).want(8, 1, 1) <= 5


def test_a_used_group_is_gone_and_its_source_s_others_stay() -> None:
    pool = ExternalPool()
    first, second = group("a", 1), group("a", 2)
    pool.add(first, 0.0)
    pool.add(second, 0.0)
    pool.remove([first])
    assert pool.groups() == (second,)


def test_a_group_past_its_time_is_never_drawn() -> None:
    pool = ExternalPool(life_s=10.0)
    pool.add(group("a", 1), 0.0)
    pool.add(group("b", 2), 5.0)
    pool.forget_old(11.0)
    assert [g.node for g in pool.groups()] == ["b"]


@pytest.mark.parametrize(
    ("sampling", "kept"), [("uniform", 2), ("uniform_nonzero", 1), ("reward_guided", 1), ("none", 0)]
)
def test_what_the_strategy_would_never_draw_is_counted_instead_of_kept(sampling: str, kept: int) -> None:
    """So the node generates questions of its own in time, and a batch is never short."""
    pool = ExternalPool(sampling)
    pool.add(group("a", 1), 0.0)
    pool.add(group("b", 2, (0.0, 0.0)), 0.0)
    assert (len(pool), pool.unusable) == (kept, 2 - kept)


def test_an_unknown_strategy_is_refused_at_the_start() -> None:
    with pytest.raises(UnknownName):
        ExternalPool("unifrom")


def test_the_pool_keeps_its_bound() -> None:
    pool = ExternalPool(limit=3)
    for seed in range(9):
        pool.add(group("a", seed), 0.0)
    assert [g.question.ref.seed for g in pool.groups()] == [6, 7, 8]


def connected(uptake: int, **figures: float) -> ExchangeResult:
    return ExchangeResult(True, "Connected", uptake=uptake, sent=2, accepted=2, window_s=60.0, **figures)  # type: ignore[arg-type]


def test_uptake_is_of_the_window_and_a_lost_reply_loses_none() -> None:
    """The coordinator counts for ever; the node shows what came within the window."""
    stats = SwarmStats("http://x")
    for now, ever in ((0.0, 5), (10.0, 7), (50.0, 12)):
        stats.exchanged(connected(ever), now)
    assert stats.uptake(50.0) == 7
    assert stats.uptake(75.0) == 5
    stats.exchanged(connected(1), 80.0)
    assert stats.uptake(80.0) == 5, "a coordinator founded anew counts from 0 and takes nothing away"


def test_the_figures_stay_while_the_coordinator_is_away_and_the_sentence_says_so() -> None:
    stats = SwarmStats("http://x")
    stats.exchanged(connected(0, mine=3, total=4), 0.0)
    stats.exchanged(ExchangeResult(False, "Gone. Training goes on alone."), 1.0)
    news = stats.news({"task": 2}, 1.0)
    assert (news.share, news.connected, news.sentence) == (0.75, False, "Gone. Training goes on alone.")
    assert (news.made, news.accepted, news.rejected) == (2, 2, {"task": 2})


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=80))
def test_the_external_share_is_of_the_last_batches_and_within_bounds(batches: list[tuple[int, int]]) -> None:
    """J_actual / (I + J) over the last fifty."""
    stats = SwarmStats("http://x")
    for own, external in batches:
        stats.trained(external, own + external)
    last = batches[-50:]
    total = sum(own + external for own, external in last)
    assert stats.external_share == (sum(external for _, external in last) / total if total else 0.0)


def test_a_node_in_a_swarm_takes_four_groups_of_others_for_one_of_its_own_unless_told_otherwise() -> None:
    """A tiny model takes one of others for one of its own."""
    for parameters, groups in ((None, (2, 8)), (494_000_000, (2, 8)), (5_000_000, (8, 8))):
        config, origins = resolve_run_config(RunConfig(), membership="member", facts=RunFacts(parameters=parameters))
        assert origins["local_groups"] == origins["external_groups"] == "invite"
        assert (config.local_groups, config.external_groups) == groups
    for chosen, groups in (((6, 0), (6, 8)), ((0, 4), (2, 4)), ((16, 3), (16, 3))):
        config, _ = resolve_run_config(
            RunConfig(local_groups=chosen[0], external_groups=chosen[1]), membership="member"
        )
        assert (config.local_groups, config.external_groups) == groups
    nothing, _ = resolve_run_config(RunConfig(), flags={"local_groups": 6, "external_groups": 0}, membership="member")
    assert (nothing.local_groups, nothing.external_groups) == (6, 0)
    generates, _ = resolve_run_config(RunConfig(method="none", external_groups=4), membership="member")
    assert (generates.external_groups, generates.eval_every) == (0, 0)


def test_a_model_s_name_is_shared_without_its_path_or_odd_characters() -> None:
    assert public_model_name("/home/ada/models/été\x1b[31m") == "?t??[31m"
    assert len(public_model_name("x" * 200)) == 80


@pytest.mark.parametrize(
    ("answer_format", "typed", "text"),
    [
        ("tags", "7", "<answer>7</answer>"),
        ("tags", " so <answer>7</answer> ", "so <answer>7</answer>"),
        ("boxed", "7", "\\boxed{7}"),
        ("json", "7", '{"answer": "7"}'),
        ("last_line", "7", "7"),
    ],
)
def test_a_bare_line_of_a_person_is_the_answer(answer_format: AnswerFormat, typed: str, text: str) -> None:
    assert contribute.parse_attempt(typed, REF, answer_format) == text


def test_an_answer_to_an_own_task_that_is_read_elsewhere_stays_as_it_is_typed() -> None:
    assert contribute.parse_attempt(" 7 ", TaskRef("mine", "own", 1, generator="task-0123")) == "7"


@pytest.mark.parametrize("typed", ["", "  ", "x" * 9000])
def test_an_attempt_that_cannot_travel_says_why(typed: str) -> None:
    with pytest.raises(ValueError, match="attempt"):
        contribute.parse_attempt(typed, REF)


@given(st.lists(st.floats(-20, 0), min_size=1, max_size=60), st.integers(1, 40))
def test_the_worst_stretch_is_the_lowest_mean_of_so_many_in_a_row(values: list[float], width: int) -> None:
    width_here = min(width, len(values))
    means = [np.mean(values[i : i + width_here]) for i in range(len(values) - width_here + 1)]
    assert worst_stretch(values, width) == pytest.approx(min(means), abs=1e-9)


def test_honest_work_does_not_dilute_garbage() -> None:
    """Eight tokens that nobody would write, amid two hundred that everybody would."""
    text = [-0.1] * 100 + [-12.0] * 8 + [-0.1] * 100
    assert worst_stretch(text, STRETCH) < AcceptanceRules().logprob_floor < sum(text) / len(text)
