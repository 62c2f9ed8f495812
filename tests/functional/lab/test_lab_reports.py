"""What the lab reports on real journals."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.support.lab_runs import RUN, Play, experiment, play, rounds_of, scorer

from sapo_lab.__main__ import main as cli
from sapo_lab.report import node_types
from sapo_lab.report.results import load_run
from sapo_lab.report.saved_runs import save_runs, with_saved_runs
from sapo_lab.report.table import comparison_rows
from sapo_lab.running.held_out import GREEDY_VERDICTS
from sapo_lab.running.run import run_folder
from sapo_lab.schema import parse_experiment
from sapo_swarm.node.evaluation import read_results

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["play", "scorer"]


async def test_the_report_counts_what_a_node_trained_on_where_nodes_were_away(play: Play, tmp_path: Path) -> None:
    """The mean over all nodes, also with rounds in which none was there."""
    found = experiment([{"name": "a", "churn": 0.8, "churn_rounds": 1}], {"rounds": 8})
    await play(found, tmp_path)
    events = [e for node in range(4) for e in rounds_of(tmp_path, node).values()]
    assert {e.round for e in events} < set(range(8)), "in some round all are away"
    (row,) = comparison_rows(found, {"a": [run for run in [load_run(tmp_path, found.arm("a"), 1)] if run is not None]})
    assert row.trained_groups == pytest.approx(
        (sum(min(e.nonzero_groups, e.local_groups) for e in events) / 4, sum(e.external_groups for e in events) / 4)
    )


async def test_the_report_tells_fast_nodes_from_slow_ones(play: Play, tmp_path: Path) -> None:
    found = experiment(
        [{"name": "a", "paces": [1, 2], "pool_rounds": 2, "against": ["b"]}, {"name": "b", "paces": [1, 2]}]
    )
    for name in ("a", "b"):
        await play(found, tmp_path, arm=name)
    assert [len(rounds_of(tmp_path, node)) for node in range(4)] == [4, 2, 4, 2]
    runs = {arm.name: [run] for arm in found.arms if (run := load_run(tmp_path, arm, 1)) is not None}
    fast, slow = node_types.by_node_type(found.arm("a"), runs["a"]).values()
    assert sum(node.tokens for node in fast[1]) > sum(node.tokens for node in slow[1])
    assert [line[:3] for line in node_types.node_type_rows(found, runs)][:2] == [
        ("a", "every round", "2"),
        ("a", "every 2 rounds", "2"),
    ]
    assert node_types.node_type_rows(experiment([{"name": "a"}]), runs) == [], "nodes that are alike are one kind"
    by_type = runs["a"][0].greedy_by_type
    assert list(by_type) == ["every round", "every 2 rounds"]
    for label, mine in zip(by_type, ((0, 2), (1, 3)), strict=True):
        read = [read_results(run_folder(tmp_path, "a", 1) / f"node-{node}" / GREEDY_VERDICTS) for node in mine]
        rates = [result.rate for results in read for result in results]
        assert np.mean([values.mean() for values in by_type[label].values()]) == pytest.approx(np.mean(rates))
    assert [row[:4] for row in node_types.greedy_rows(found, runs)] == [
        ("a", "every round", "b", "1"),
        ("a", "every 2 rounds", "b", "1"),
    ]
    save_runs(runs, tmp_path, tmp_path)
    again = with_saved_runs(found, {}, tmp_path)
    assert node_types.greedy_rows(found, again) == node_types.greedy_rows(found, runs), "the kept records hold them"


async def test_the_report_says_what_the_journals_say(tmp_path: Path) -> None:
    import tomli_w

    pytest.importorskip("matplotlib")
    tables = {
        "name": "e",
        "question": "Is it so?",
        "nodes": 2,
        "seeds": [1, 2],
        "final_items": 2,
        "final_answers": 4,
        "run": {**RUN, "rounds": 3, "external_groups": 0},
        "conditions": {"judge": True},
        "arms": [
            {"name": "8-0", "title": "8/0"},
            {"name": "4-4", "title": "4/4 <b>", "external_groups": 2, "against": ["8-0"], "hostile": 0.5},
        ],
    }
    file = tmp_path / "e.toml"
    file.write_text(tomli_w.dumps(tables))
    assert await asyncio.to_thread(cli, ["report", str(file), "--out", str(tmp_path)]) == 2
    assert await asyncio.to_thread(cli, ["run", str(file), "--out", str(tmp_path)]) == 0
    assert await asyncio.to_thread(cli, ["report", str(file), "--out", str(tmp_path), "--to", str(tmp_path / "r")]) == 0
    page, markdown = ((tmp_path / "r" / name).read_text() for name in ("report.html", "report.md"))
    assert "4/4 &lt;b&gt;" in page
    assert page.count("data:image/png;base64,") == len(list((tmp_path / "r").glob("*.png"))) >= 3
    found = parse_experiment(tables)
    runs = {a.name: [r for s in (1, 2) if (r := load_run(tmp_path / "e", a, s)) is not None] for a in found.arms}
    total = np.mean([run.local.sum() for run in runs["8-0"]])
    assert f"{total:,.1f}" in markdown
    assert "the judge finds no round" in " ".join(markdown.split()), "wherever its lines end"
    assert "python -m sapo_lab run e --only 4-4 --seeds 1,2 --fresh" in markdown
    row = comparison_rows(found, runs)[1]
    assert row.equal_tokens.value.value == pytest.approx(row.held_out.value.value) or row.tokens.value > 0
    first, second = runs["4-4"]
    cut = msgspec.structs.replace(second, finished=False)
    assert comparison_rows(found, {**runs, "4-4": [first, cut]})[1].seeds == (1,)
    alone = comparison_rows(found, {**runs, "4-4": [cut]})[1]
    assert (alone.finished, alone.seeds) == (False, (2,))
    assert np.isnan(alone.local.gain.value), "of a run that goes on, the better rounds are missing"
