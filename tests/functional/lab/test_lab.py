"""The lab end to end on the engine that ships for tests: runs, kills, reports."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.support.lab_runs import RUN, Play, Stopped, build, experiment, learning, play, rounds_of, scorer
from tests.support.watched_node import CALM

from sapo_lab.__main__ import main as cli
from sapo_lab.report.results import load_run
from sapo_lab.running.nodes import open_node
from sapo_lab.running.run import run_folder
from sapo_lab.schema import BadExperiment, parse_experiment
from sapo_swarm.events import Evaluated
from sapo_swarm.node.journal import read_only
from sapo_swarm.node.round_phases import NodeActivity, ReplayBuffer
from sapo_swarm.node.setup import NodeSetup, round_context
from sapo_swarm.scoring.scorer import Scorer

__all__ = ["play", "scorer"]


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_an_interrupted_run_goes_on_and_computes_what_an_uninterrupted_one_does(
    play: Play, tmp_path: Path
) -> None:
    found = experiment([{"name": "a", "staleness": 1, "pool_rounds": 2, "adaptive": True}])
    whole = await play(found, tmp_path / "whole")
    for stop_after in (1, 3):
        with pytest.raises(Stopped):
            await play(found, tmp_path / "broken", stop_after)
    again = await play(found, tmp_path / "broken")
    assert again.tokens == whole.tokens
    for node in range(4):
        assert learning(tmp_path / "broken", node) == learning(tmp_path / "whole", node)


async def test_a_finished_run_is_not_run_again_and_other_settings_are_refused(play: Play, tmp_path: Path) -> None:
    first = await play(experiment([{"name": "a"}]), tmp_path)
    assert await play(experiment([{"name": "a"}]), tmp_path) == first
    with pytest.raises(BadExperiment, match="--fresh"):
        await play(experiment([{"name": "a", "local_groups": 3}]), tmp_path)


async def test_a_node_of_the_lab_takes_steps_as_large_as_a_node_of_the_app(scorer: Scorer, tmp_path: Path) -> None:
    """Without a learning rate in the experiment, the default goes by the groups of a batch."""
    found = experiment([{"name": "a", "learning_rate": 0.0}])
    lab = await open_node(found, found.arm("a"), 0, 1, scorer, tmp_path, build, frozenset())
    config, host = lab.context.config, lab.host
    setup = NodeSetup(config, "app", tmp_path, lambda _: host.engine, lambda: CALM)
    app = round_context(setup, config, host, scorer, NodeActivity(), lambda _: None, frozenset(), ReplayBuffer())
    assert lab.context.policy.learning_rate == app.policy.learning_rate > 0.0
    await lab.close()


async def test_answers_are_judged_in_the_format_of_the_arm(play: Play, tmp_path: Path) -> None:
    """The engine writes tags."""
    arms = [{"name": "a", "answer_format": "boxed"}]
    await play(experiment(arms), tmp_path)
    events = [e for node in range(4) for e in rounds_of(tmp_path, node).values()]
    assert {event.reward_local for event in events} == {0.0}
    assert any(event.figures["distinct"] > 0.25 for event in events), "tags are told apart all the same"


async def test_rewards_of_local_and_external_groups_are_never_mixed(play: Play, tmp_path: Path) -> None:
    await play(experiment([{"name": "a"}]), tmp_path)
    for event in (e for node in range(4) for e in rounds_of(tmp_path, node).values()):
        assert event.local_groups == 2
        if event.external_groups:
            parts = 2 * (event.reward_local or 0.0), event.external_groups * (event.reward_external or 0.0)
            assert event.reward_batch == pytest.approx(sum(parts) / (2 + event.external_groups))
            assert event.reward_external is not None
            assert event.reward_external > 0.0  # filtered: a group without a success is never drawn
        assert event.bytes_sent > 500
        assert event.bytes_received > event.bytes_sent


async def test_silo_with_resampling_trains_on_nonzero_advantage_groups_only_and_pays_for_them(
    play: Play, tmp_path: Path
) -> None:
    arm = {"name": "a", "local_groups": 2, "external_groups": 0, "own_filter": "resample", "resample_limit": 6}
    await play(experiment([arm]), tmp_path)
    events = [e for node in range(4) for e in rounds_of(tmp_path, node).values()]
    assert all(e.figures["generated_groups"] == e.completions / 4 for e in events)
    assert max(e.figures["generated_groups"] for e in events) > 2
    for event in events:
        assert event.local_groups == min(2, event.nonzero_groups)


async def test_a_node_asks_ahead_for_what_the_pool_lacks_and_shares_it(play: Play, tmp_path: Path) -> None:
    """Nothing is on offer before the first round: I + J own groups are drawn, all are on offer to the others in the next."""
    arm = {"name": "a", "starved": "ahead", "staleness": 1, "sampling": "uniform"}
    await play(experiment([arm]), tmp_path)
    events = rounds_of(tmp_path, 0)
    assert events[0].figures["generated_groups"] == 4
    assert events[0].external_groups == 0
    assert events[1].figures["pool"] == 3 * 4
    assert events[1].figures["generated_groups"] == 2
    assert events[1].external_groups == 2


async def test_asking_ahead_counts_as_many_groups_of_a_node_as_a_batch_may_hold(play: Play, tmp_path: Path) -> None:
    """Two of each of three nodes are more than the four wanted, so nothing more is generated than the local two."""
    arm = {"name": "a", "starved": "ahead", "staleness": 1, "sampling": "uniform", "per_source": 2}
    await play(experiment([arm], {"external_groups": 4}), tmp_path)
    events = rounds_of(tmp_path, 0)
    assert events[0].figures["generated_groups"] == 4
    assert (events[1].figures["generated_groups"], events[1].external_groups) == (2, 4)


async def test_hostile_nodes_send_but_do_not_count(play: Play, tmp_path: Path) -> None:
    await play(
        experiment([{"name": "a", "hostile": 0.25, "logprob_floor": -3.0}], {"rounds": 12, "local_groups": 4}), tmp_path
    )
    found = load_run(tmp_path, experiment([{"name": "a"}]).arms[0], 1)
    assert found is not None
    assert found.nodes == 3
    assert sum(e.figures["refused"] for node in range(3) for e in rounds_of(tmp_path, node).values()) > 0


async def test_a_source_that_often_sends_unlikely_text_is_refused_with_its_other_groups_too(
    play: Play, tmp_path: Path
) -> None:
    """And what is known of a source is kept where a run is interrupted."""
    arm = {"hostile": 0.25, "attack": "garbled", "logprob_floor": -1.0}
    both = experiment(
        [{"name": "single", **arm}, {"name": "whole", **arm, "unlikely_sources": True}],
        {"rounds": 24, "local_groups": 4},
    )
    await play(both, tmp_path, arm="single")
    await play(both, tmp_path / "at-once", arm="whole")
    with pytest.raises(Stopped):
        await play(both, tmp_path, 12, arm="whole")
    await play(both, tmp_path, arm="whole")
    refused = {
        name: sum(e.figures["refused"] for node in range(3) for e in rounds_of(tmp_path, node, name).values())
        for name in ("single", "whole")
    }
    assert refused["whole"] > refused["single"] > 0
    for node in range(3):
        assert learning(tmp_path, node, "whole") == learning(tmp_path / "at-once", node, "whole")


async def test_of_the_groups_of_others_only_what_was_right_is_trained_on(play: Play, tmp_path: Path) -> None:
    """The first rounds are alike but for that; without external groups nothing is left out."""
    arms = [{"name": "a", "external_advantages": "all"}, {"name": "b", "external_advantages": "positive"}]
    both = experiment(arms, {"rounds": 1, "group_size": 16, "local_groups": 16})
    for name in "ab":
        await play(both, tmp_path, arm=name)
    less = 0
    for node in range(4):
        whole, right = (rounds_of(tmp_path, node, name)[0] for name in "ab")
        assert (whole.tokens_generated, whole.external_groups) == (right.tokens_generated, right.external_groups)
        assert (right.tokens_trained < whole.tokens_trained) == (whole.external_groups > 0)
        less += whole.external_groups
    assert less > 0


async def test_churn_heterogeneity_and_replay_run_together(play: Play, tmp_path: Path) -> None:
    arm = {
        "name": "a",
        "churn": 0.5,
        "churn_rounds": 1,
        "loss": 0.2,
        "algorithms": ["grpo", "rloo"],
        "tasks_per_node": 1,
        "pool_from": "all",
        "pool_rounds": 2,
    }
    await play(experiment([arm]), tmp_path)
    assert 0 < sum(len(rounds_of(tmp_path, node)) for node in range(4)) < 16


async def test_a_token_budget_ends_a_run(play: Play, tmp_path: Path) -> None:
    done = await play(experiment([{"name": "a", "token_budget": 50}], {"rounds": 100}), tmp_path)
    assert done.rounds < 10
    assert done.tokens >= 4 * 50


async def test_processor_seconds_end_a_run_and_verification_is_among_them(play: Play, tmp_path: Path) -> None:
    done = await play(experiment([{"name": "a", "seconds_budget": 1e-6}], {"rounds": 100}), tmp_path)
    assert done.rounds == 1
    for node in range(4):
        (first,) = rounds_of(tmp_path, node).values()
        assert 0 < first.figures["verify_s"] < first.figures["cpu_s"]
    await play(experiment([{"name": "a", "external_groups": 0}]), tmp_path / "alone")
    assert all(r.figures["verify_s"] < 1e-3 for r in rounds_of(tmp_path / "alone", 0).values()), "nothing arrives"


async def test_the_end_is_scored_at_both_temperatures_and_with_several_samples_at_1(play: Play, tmp_path: Path) -> None:
    found = experiment([{"name": "a"}], final_items=8, final_samples=8)
    await play(found, tmp_path)
    run = load_run(tmp_path, found.arm("a"), 1)
    assert run is not None
    for verdicts in (run.verdicts, run.greedy, run.base_verdicts, run.base_greedy):
        assert {task: rates.size for task, rates in verdicts.items()} == dict.fromkeys(RUN["tasks"], 8)
    assert {k for k, _ in run.pass_at_k.values()} == {8}
    assert all((8 * rates == (8 * rates).round()).all() for rates in run.verdicts.values()), "one node, eight samples"
    events = read_only(run_folder(tmp_path, "a", 1) / "node-0" / "journal.db", kinds=("evaluation",))
    last = [e for e in events if isinstance(e, Evaluated)][-1]
    assert last.greedy is not None
    assert (last.items, last.greedy.items) == (4, 16)


async def test_held_out_results_are_paired_with_the_base_and_the_base_is_measured_once(
    play: Play, tmp_path: Path
) -> None:
    found = experiment([{"name": "a"}, {"name": "b", "external_groups": 0}])
    await play(found, tmp_path)
    await play(found, tmp_path, arm="b")
    bases = [list((run_folder(tmp_path, arm, 1) / "base").iterdir()) for arm in ("a", "b")]
    assert [len(files) for files in bases] == [2, 2]  # four nodes, one model, two temperatures
    assert [path.read_bytes() for path in sorted(bases[0])] == [path.read_bytes() for path in sorted(bases[1])]
    assert len(list((tmp_path / ".base").iterdir())) == 2  # the second arm has copied them
    await play(experiment([{"name": "c", "max_new_tokens": 9}]), tmp_path, arm="c")
    assert len(list((tmp_path / ".base").iterdir())) == 4
    events = read_only(run_folder(tmp_path, "b", 1) / "node-0" / "journal.db", kinds=("evaluation",))
    evaluations = [e for e in events if isinstance(e, Evaluated)]
    assert [e.round for e in evaluations] == [0, 2, 4]
    assert evaluations[-1].delta is not None
    assert evaluations[-1].items == 4


async def test_the_questions_of_the_way_are_scored_apart_at_the_start_and_at_the_end(
    play: Play, tmp_path: Path
) -> None:
    """A point of the curve and the end are asked different questions; what compares them needs the same."""
    found = experiment([{"name": "a"}], {"eval_items": 1})
    await play(found, tmp_path)
    run = load_run(tmp_path, found.arm("a"), 1)
    assert run is not None
    base, way, end = run.held_out
    assert [bool(point.on_curve) for point in (base, way, end)] == [True, False, True]
    assert base.items > way.items
    assert base.rate(on_curve=True) == pytest.approx(np.mean(list(base.on_curve.values())))
    await play(experiment([{"name": "a"}]), tmp_path / "whole")
    same = load_run(tmp_path / "whole", found.arm("a"), 1)
    assert same is not None
    assert not any(point.on_curve for point in same.held_out), "all questions are asked on the way"


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
async def test_kill_9_loses_nothing_but_the_round_in_flight(play: Play, tmp_path: Path) -> None:
    import tomli_w

    tables = {"name": "e", "nodes": 2, "seeds": [1], "final_items": 0, "run": {**RUN, "rounds": 12, "eval_every": 0}}
    tables["arms"] = [{"name": "a"}]
    file = tmp_path / "e.toml"
    file.write_text(tomli_w.dumps(tables))
    command = [sys.executable, "-m", "sapo_lab", "run", str(file), "--out", str(tmp_path)]
    victim = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert victim.stdout is not None
        assert b"round 1/12" in await victim.stdout.readline()  # told after the checkpoint was written
    finally:
        victim.send_signal(signal.SIGKILL)
        await victim.communicate()
    assert await asyncio.to_thread(cli, ["run", str(file), "--out", str(tmp_path)]) == 0
    await play(parse_experiment(tables), tmp_path / "whole")
    assert learning(tmp_path / "e", 1) == learning(tmp_path / "whole", 1)


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_runs_side_by_side_end_with_the_process_that_started_them(tmp_path: Path, how: signal.Signals) -> None:
    import tomli_w

    tables = {"name": "e", "nodes": 2, "seeds": [1, 2], "final_items": 0, "arms": [{"name": "a"}]}
    tables["run"] = {**RUN, "rounds": 100_000, "eval_every": 0}
    file = tmp_path / "e.toml"
    file.write_text(tomli_w.dumps(tables))
    command = [sys.executable, "-m", "sapo_lab", "run", str(file), "--jobs", "2", "--out", str(tmp_path)]
    parent = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    seen = b""
    while b"seed 1" not in seen or b"seed 2" not in seen:
        seen += await parent.stdout.readline()
    parent.send_signal(how)
    await asyncio.wait_for(parent.stdout.read(), 60)  # its end: nobody is left who could write to it
    assert await parent.wait() == -how
