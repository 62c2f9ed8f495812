"""A reward function of the person's own: TRL's shape, one explicit yes, the limited worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.own_tasks import library_in, write_folder

from sapo_desktop.services.tasks import review
from sapo_swarm.scoring.scorer import ScoredTexts, Scorer, ScoringFailed
from sapo_swarm.tasks.catalogue import held_out
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import read_task, write_task
from sapo_swarm.tasks.own.spec import BadTask

TOML = 'extract = "whole"\n[[verifier]]\nkind = "function"\n'
ROW = {"question": "How long?", "ground_truth": "7", "limit": 3}
LENGTH = """
def reward_len(completions, **kwargs):
    '''Longer completions, up to ten characters, earn more.'''
    return [min(1.0, len(completion) / 10) for completion in completions]
"""
GROUND_TRUTH = """
import re

def _number(text):
    found = re.findall(r"\\\\boxed\\{(.*?)\\}", text)
    return found[-1] if found else ""

def reward_func(prompts, completions, ground_truth, **kwargs):
    return [1.0 if _number(c) == t else 0.0 for c, t in zip(completions, ground_truth, strict=True)]
"""


def with_code(folder: Path, code: str) -> Path:
    write_folder(folder, TOML, [ROW], [ROW])
    (folder / "reward.py").write_text(code)
    return folder


@pytest.fixture
async def scorer(tmp_path: Path) -> AsyncIterator[Scorer]:
    with library_in(tmp_path):
        async with Scorer(margin_s=20.0) as started:
            yield started


async def rewards(scorer: Scorer, folder: Path, code: str, *texts: str) -> tuple[float, ...]:
    """What an allowed function gives for these completions."""
    task = read_task(with_code(folder, code))
    library.allow_task_code(task.code)
    found = await scorer.score(held_out(folder.name, "own", 0), texts)
    assert isinstance(found, ScoredTexts)
    return found.rewards


async def test_functions_of_trls_shape_run_unmodified(tmp_path: Path, scorer: Scorer) -> None:
    assert await rewards(scorer, tmp_path / "length", LENGTH, "12345", "x" * 50) == (0.5, 1.0)
    assert await rewards(scorer, tmp_path / "truth", GROUND_TRUTH, r"so \boxed{7}", r"\boxed{8}", "7") == (
        1.0,
        0.0,
        0.0,
    )


HOARD = """
kept = []

def reward(completions, **_):
    kept.append(bytes(int(completions[0]) * 2**20))  # of zeros: no page of it is touched
    return [1.0]
"""


async def test_memory_that_others_filled_fails_no_later_answer_and_what_needs_too_much_by_itself_fails_alone(
    tmp_path: Path, scorer: Scorer
) -> None:
    """An honest source was struck for its texts where earlier ones had filled the worker."""
    task = read_task(with_code(tmp_path / "t", HOARD))
    library.allow_task_code(task.code)
    ref = held_out("t", "own", 0)
    found = await scorer.score_many([(ref, (size,)) for size in ("700", "700", "4000", "700")])
    faults = [result.fault if isinstance(result, ScoringFailed) else result.rewards for result in found]
    assert faults == [(1.0,), (1.0,), "texts", (1.0,)]
    assert scorer.worker.restarts == 3
    assert await scorer.score(ref, ("1",)) == found[0]


async def test_each_share_of_the_reward_is_paid_as_the_function_gives_it(tmp_path: Path, scorer: Scorer) -> None:
    assert await rewards(scorer, tmp_path / "t", LENGTH, "12345", "x" * 50) == (0.5, 1.0)


async def test_columns_come_as_lists_of_text(tmp_path: Path, scorer: Scorer) -> None:
    code = (
        "def reward(prompts, completions, limit, **_):\n    return [float(prompts == ['How long?'] and limit == ['3'])]"
    )
    assert await rewards(scorer, tmp_path / "t", code, "x") == (1.0,)


@pytest.mark.parametrize(
    "value", ["float('nan')", "float('inf')", "'many'", "None", "1 / 0", "exit()", "open('canary', 'w')"]
)
async def test_what_is_no_reward_is_none(tmp_path: Path, scorer: Scorer, value: str) -> None:
    code = f"def reward(completions, **_):\n    return [{value}]"
    assert await rewards(scorer, tmp_path / "t", code, "x") == (0.0,)
    assert not (Path.cwd() / "canary").exists()


async def test_a_reward_is_cut_to_the_range_from_nought_to_one(tmp_path: Path, scorer: Scorer) -> None:
    assert await rewards(scorer, tmp_path / "t", "def reward(completions, **_):\n    return [-3]", "x") == (0.0,)
    assert await rewards(scorer, tmp_path / "u", "def reward(completions, **_):\n    return [9]", "x") == (1.0,)


async def test_reading_a_task_may_take_longer_than_a_job_and_a_hostile_text_may_not(tmp_path: Path) -> None:
    """Here loading its code takes so long, in every worker: also in the one that follows on a killed one."""
    code = "import time\ntime.sleep(4)\ndef reward(completions, **_):\n    "
    code += "time.sleep(30 * (completions[0] == 'hostile'))\n    return [1.0]"
    with library_in(tmp_path):
        library.allow_task_code(read_task(with_code(tmp_path / "t", code)).code)
        async with Scorer(margin_s=2.0) as scorer:
            (hostile,) = await scorer.score_many([(held_out("t", "own", 0), ("hostile",))])
            honest = await scorer.score(held_out("t", "own", 0), ("honest",))
    assert isinstance(hostile, ScoringFailed)
    assert hostile.fault == "worker"
    assert honest.rewards == (1.0,)


async def test_a_function_that_never_ends_is_ended(tmp_path: Path, scorer: Scorer) -> None:
    task = read_task(with_code(tmp_path / "t", "def reward(completions, **_):\n    while True: pass"))
    library.allow_task_code(task.code)
    (found,) = await scorer.score_many([(held_out("t", "own", 0), ("x",))])
    assert isinstance(found, ScoringFailed)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import subprocess\nsubprocess.run(['touch', 'canary'])", "does not call"),
        ("def one(completions, **k): ...\ndef two(completions, **k): ...", "has 2 functions"),
        ("x =", "invalid syntax"),
        ("raise SystemExit", "SystemExit"),
    ],
)
async def test_a_file_that_does_not_load_is_told_of(tmp_path: Path, scorer: Scorer, code: str, reason: str) -> None:
    library.allow_task_code(read_task(with_code(tmp_path / "t", code)).code)
    found = await review.measure_shortcuts(library.load_task("t"), scorer, ["row 1"])
    assert reason in found.hanging[0]
    assert not (Path.cwd() / "canary").exists()


def test_code_is_never_run_before_a_yes_and_a_change_needs_a_new_one(tmp_path: Path) -> None:
    folder = with_code(tmp_path / "t", LENGTH)
    with library_in(tmp_path):
        with pytest.raises(BadTask, match="--allow-code"):
            library.load_task("t")
        library.allow_task_code(read_task(folder).code)
        assert library.load_task("t").code == LENGTH.encode()
        (folder / "reward.py").write_text(LENGTH + "\n# changed")
        library.set_task_folder(tmp_path)
        with pytest.raises(BadTask, match="--allow-code"):
            library.load_task("t")


async def test_the_worker_asks_for_the_yes_itself(tmp_path: Path, scorer: Scorer) -> None:
    task = read_task(with_code(tmp_path / "t", LENGTH))
    library.allow_task_code(task.code)
    ref = held_out("t", "own", 0)
    (tmp_path / library.ALLOWED).unlink()
    (found,) = await scorer.score_many([(ref, ("x",))])
    assert isinstance(found, ScoringFailed)
    assert "--allow-code" in found.reason


def test_the_code_is_part_of_the_version(tmp_path: Path) -> None:
    one = read_task(with_code(tmp_path / "t", LENGTH))
    (tmp_path / "t" / "reward.py").write_text(GROUND_TRUTH)
    assert read_task(tmp_path / "t").digest != one.digest
    write_task(one, tmp_path / "t")
    assert read_task(tmp_path / "t") == one
