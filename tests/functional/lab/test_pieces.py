"""Experiments in pieces of some minutes, and the paper's own as a dry run: its shape, random weights."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.contract.conftest import write_model
from tests.support.lab_runs import build, experiment, learning, play, rounds_of, scorer

import sapo_lab
from sapo_lab.__main__ import main as cli
from sapo_lab.__main__ import override_settings
from sapo_lab.running.run import PieceOver, TimeBudget, run_arm, run_folder
from sapo_lab.schema import Experiment, load_experiment
from sapo_swarm.config import PAPER_TASKS
from sapo_swarm.scoring.scorer import Scorer

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["play", "scorer"]
NO_TIME = 1e-6
"""Minutes that are over before the first round."""


async def in_pieces(found: Experiment, arm: str, out: Path, scorer: Scorer) -> list[str]:
    """Every piece does as little as a piece can; what each says."""
    said: list[str] = []
    for _ in range(2 * found.arm(arm).run.rounds + 4):
        try:
            await run_arm(found, found.arm(arm), 1, out, scorer, build, lambda _: None, minutes=NO_TIME)
        except PieceOver as piece:
            said.append(str(piece))
        else:
            return said
    raise AssertionError(f"The pieces do not get further: {said}")


async def test_a_run_in_the_smallest_pieces_is_the_run_without_them(scorer: Scorer, tmp_path: Path) -> None:
    found = experiment([{"name": "a"}], {"rounds": 3, "checkpoint_every": 5})
    said = await in_pieces(found, "a", tmp_path / "pieces", scorer)
    assert said == [f"a seed 1: {done} of 3 rounds are done." for done in (0, 1, 2, 3)]
    await run_arm(found, found.arm("a"), 1, tmp_path / "whole", scorer, build, lambda _: None)
    for node in range(4):
        assert learning(tmp_path / "pieces", node) == learning(tmp_path / "whole", node)


async def test_a_piece_ends_before_a_round_that_would_not_fit() -> None:
    now = [0.0]
    clock, endless = TimeBudget(100.0, lambda: now[0]), TimeBudget(0.0, lambda: now[0])
    clock.took(20.0)
    now[0] = 69.0
    assert (clock.over, clock.half_over) == (False, True)
    now[0] = 71.0
    assert (clock.over, endless.over, endless.half_over) == (True, False, False)


async def test_pieces_go_with_one_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["run", "smoke", "--minutes", "5", "--jobs", "2"]) == 2
    assert "--minutes" in capsys.readouterr().err


async def test_the_papers_experiment_runs_in_pieces_on_the_shape_of_its_model(scorer: Scorer, tmp_path: Path) -> None:
    """Two nodes, two small rounds; everything else is what the file says."""
    folder = write_model(tmp_path, "qwen2")
    shape = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(shape | {"max_position_embeddings": 4096}), "utf-8")
    shipped = override_settings(
        load_experiment(sapo_lab.list_experiments()["paper-0.5b"]), model=str(folder), device="cpu"
    )
    arm = shipped.arm("2-8")
    assert (arm.run.tasks, arm.run.preset, arm.run.method) == (PAPER_TASKS, "paper", "lora")
    small = {"rounds": 2, "group_size": 2, "max_new_tokens": 8, "eval_items": 1, "threads": 1}
    replace = msgspec.structs.replace
    arm = replace(arm, run=replace(arm.run, **small))
    found = replace(shipped, nodes=2, final_items=1, final_answers=1, arms=(arm,))
    assert len(await in_pieces(found, "2-8", tmp_path / "out", scorer)) == 3
    for node in range(2):
        events = rounds_of(tmp_path / "out", node, "2-8")
        assert sorted(events) == [0, 1]
        assert all(e.tokens_generated > 0 and e.local_groups == 2 for e in events.values())
    assert (run_folder(tmp_path / "out", "2-8", 1) / "done.json").exists()
    assert not (run_folder(tmp_path / "out", "2-8", 1) / "checkpoint").exists()
