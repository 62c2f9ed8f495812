"""Tasks with limits of their own, in a round and in held-out evaluations."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import pytest
from tests.support.node_process import sapo
from tests.support.watched_node import CONFIG, CountingEngine, make

from sapo_backends.base import LoadRequest, Sampling
from sapo_backends.fake import FakeBackend
from sapo_desktop import settings
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services import first_run
from sapo_desktop.services.first_questions import FirstRunAnswers
from sapo_desktop.services.models.screen import settings_actions
from sapo_desktop.services.models.shelf import store
from sapo_desktop.settings import flags
from sapo_swarm.config import REASONING_TOKENS, RunConfig
from sapo_swarm.events import GroupRecorded
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.evaluation import BaseAnswers, evaluate_questions, sample_completions
from sapo_swarm.node.journal import read_only
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.catalogue import held_out, new_tokens
from sapo_swarm.tasks.own.spec import BadTask
from sapo_swarm.types import Question

SHORT = msgspec.structs.replace(
    CONFIG, tasks=("basic_arithmetic", "bf"), max_new_tokens=6, task_tokens=("bf=2",), local_groups=6, rounds=1
)
REFS = [held_out(task, "starter", i) for i in range(3) for task in SHORT.tasks]


def limit(task: str) -> int:
    return new_tokens(SHORT, task)


async def test_a_round_gives_each_task_its_own_limit(tmp_path: Path) -> None:
    await make(tmp_path, CountingEngine(), SHORT).run()
    lengths: dict[str, set[int]] = {}
    for event in read_only(tmp_path / "journal.db", ("group",)):
        assert isinstance(event, GroupRecorded)
        group = event.group
        lengths.setdefault(group.question.ref.dataset, set()).update(r.tokens for r in group.rollouts)
    assert max(lengths["bf"]) <= 2 < max(lengths["basic_arithmetic"]) <= 6


async def test_a_held_out_answer_has_the_limit_of_its_task() -> None:
    host = EngineThread()
    await host.load(lambda: FakeBackend().load(LoadRequest("fake")))
    async with Scorer() as scorer:
        questions = [q for q in await scorer.questions(REFS) if isinstance(q, Question)]
        found = await sample_completions(host, scorer, questions, Sampling(1.0, 1.0, 6), 2, 0, limit)
        alike = await sample_completions(host, scorer, questions, Sampling(1.0, 1.0, 6), 2, 0, lambda _task: 6)
        assert alike == await sample_completions(host, scorer, questions, Sampling(1.0, 1.0, 6), 2, 0)
    longest = {q.ref.dataset: max(len(c.tokens) for c in group) for q, group in zip(questions, found, strict=True)}
    assert longest["bf"] <= 2 < longest["basic_arithmetic"]
    await host.close()


async def test_the_bases_answers_are_compared_under_the_same_limit_alone(tmp_path: Path) -> None:
    """Another limit for one task leaves what is known of the other."""
    host = EngineThread()
    await host.load(lambda: FakeBackend().load(LoadRequest("fake")))
    async with Scorer() as scorer:
        results = await evaluate_questions(host, scorer, REFS, Sampling(1.0, 1.0, 6), limit=limit)
    await host.close()
    path = tmp_path / "base.json"
    BaseAnswers(path, limit, {}).add(results)
    assert len(BaseAnswers(path, limit, {}).known()) == len(results)
    assert {ref.dataset for ref in BaseAnswers(path, lambda _task: 6, {}).known()} == {"basic_arithmetic"}


def typed(*arguments: str) -> RunConfig:
    sub = argparse.ArgumentParser()
    flags.add_run_flags(sub)
    return flags.run_config(settings.Settings(), sub.parse_args(arguments))


def test_a_longer_limit_of_one_task_makes_room_unless_a_limit_is_typed() -> None:
    assert typed("--tasks", "bf", "--task-tokens", "bf=300").max_new_tokens == 300
    config = typed("--tasks", "bf", "--task-tokens", "bf=300", "--max-new-tokens", "100")
    assert new_tokens(config, "bf") == 100


@pytest.mark.parametrize("entry", ["bf", "bf=0", "bf=x", "arc_1d=5"])
def test_what_is_no_limit_of_a_task_of_the_run_is_refused(entry: str) -> None:
    with pytest.raises((UsageError, BadTask), match=r"run\.task_tokens"):
        typed("--tasks", "bf", "--task-tokens", entry)


def test_a_model_that_was_made_with_a_limit_of_40_tokens_is_trained_with_40(tmp_path: Path) -> None:
    """Until something changes that needs more, as reasoning does."""
    home = Home(tmp_path, tmp_path / "data", tmp_path, tmp_path, tmp_path)
    made = ("new", "b", "--base", "fake", "--trainer", "fake", "--tasks", "bf", "--eval-every", "0")
    assert sapo(tmp_path, *made, "--thinking", "on", "--max-new-tokens", "40").returncode == 0
    ran = sapo(tmp_path, "node", "b", "--silo", "--rounds", "1")
    assert ran.returncode == 0, ran.stderr
    record = store.find_model(home, "b").record
    assert record.trained is not None
    assert record.trained.max_new_tokens == record.config.max_new_tokens == 40
    for thinking, tokens in (("off", 40), ("on", REASONING_TOKENS)):
        settings_actions.change_model_setting(store.find_model(home, "b"), "run.thinking", thinking)
        assert store.find_model(home, "b").config.max_new_tokens == tokens


def test_a_model_of_the_first_questions_has_room_for_reasoning_before_its_first_start(tmp_path: Path) -> None:
    home = Home(tmp_path, tmp_path / "data", tmp_path, tmp_path, tmp_path)
    home.prepare()
    settings.write_setting(home.settings, "run.thinking", "on")
    [name] = first_run.first_model(FirstRunAnswers(), home)
    assert store.find_model(home, name).config.max_new_tokens == REASONING_TOKENS
