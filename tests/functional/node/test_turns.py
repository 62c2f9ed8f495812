"""A node that trains on an environment: turns, masks, the journal, evaluations, and what an interruption leaves."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.functional.node.test_evaluation_interrupted import evaluations
from tests.functional.node.test_interruptions import Interrupter, stopped_after
from tests.support.environments import TWO_SUMS, two_sums
from tests.support.model_folder import weights
from tests.support.own_tasks import library_in
from tests.support.watched_node import CountingEngine, follow, make

from sapo_backends.base import Completion, LoadRequest, Sampling
from sapo_backends.checkpoints.locate import bundled_model_folder
from sapo_backends.checkpoints.tokenizer import HfTokenizer
from sapo_backends.fake import FakeEngine
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Evaluated, GroupRecorded, LogLine, RoundFinished
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.evaluation import sample_completions
from sapo_swarm.node.journal import read_only
from sapo_swarm.node.rollouts import encode_rollout, model_turns, score_completions, turn_length
from sapo_swarm.node.swarm_exchange import UploadOutbox
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.catalogue import held_out
from sapo_swarm.tasks.own import library
from sapo_swarm.types import EpisodeTurn, Question, Rollout

CONFIG = RunConfig(
    model="fake", trainer="fake", tasks=("two_sums",), eval_every=0, local_groups=3, group_size=8, rounds=2
)


@pytest.fixture(autouse=True)
def task(tmp_path: Path) -> Iterator[Path]:
    """Tasks lie in the folder of the test."""
    with library_in(tmp_path / "tasks") as folder:
        folder.mkdir()
        two_sums(folder / "two_sums")
        yield folder


def groups(folder: Path) -> list[GroupRecorded]:
    return [e for e in read_only(folder / "journal.db", ("group",)) if isinstance(e, GroupRecorded)]


def rounds(folder: Path) -> list[RoundFinished]:
    return [e for e in read_only(folder / "journal.db", ("round",)) if isinstance(e, RoundFinished)]


async def test_a_round_of_an_environment_is_recorded_turn_by_turn(tmp_path: Path) -> None:
    """The model's first answer is the tool call; the environment's sum is in the context of its second."""
    engine = CountingEngine()
    node = make(tmp_path / "run", engine, CONFIG)
    await node.run()
    recorded = groups(tmp_path / "run")
    assert len(recorded) == 6
    episodes = [rollout for event in recorded for rollout in event.group.rollouts]
    played = [r for r in episodes if len(r.turns) == 3]
    assert len(played) > len(episodes) / 2
    assert [t.environment for t in played[0].turns] == [False, True, False]
    assert re.fullmatch(r"Calculate \d+ \+ 39\.", played[0].turns[1].text)
    assert played[0].text == f"{played[0].turns[0].text}\n{played[0].turns[2].text}"
    assert any(r.reward == 1.0 for r in played)
    for done in rounds(tmp_path / "run"):
        assert done.tokens_generated == done.tokens_trained, "the environment's tokens are in neither"
    kept = sum(r.tokens_generated for r in rounds(tmp_path / "run"))
    assert kept == sum(r.tokens for r in episodes) <= engine.sampled, "what stands behind a tool call is dropped"
    assert node.pace.tokens_per_s == pytest.approx(done.tokens_generated / done.seconds["generate"])


async def test_an_episode_never_goes_to_a_swarm(tmp_path: Path) -> None:
    await make(tmp_path / "run", CountingEngine(), CONFIG).run()
    group = groups(tmp_path / "run")[0].group
    single = tuple(msgspec.structs.replace(rollout, turns=()) for rollout in group.rollouts)
    ref = group.question.ref
    together = frozenset({(ref.dataset, ref.generator)})
    assert UploadOutbox(1, [group], 0).selected(1.0, together) == []
    assert len(UploadOutbox(1, [msgspec.structs.replace(group, rollouts=single)], 0).selected(1.0, together)) == 1


async def test_an_interrupted_episode_goes_on_where_it_was(tmp_path: Path) -> None:
    """In the middle of a turn and between turns: the same tokens, the same weights as in an undisturbed run."""
    calm = CountingEngine()
    await make(tmp_path / "calm", calm, CONFIG).run()
    interrupter = Interrupter(2)
    engine = CountingEngine(interrupter.step)
    interrupter.node = make(tmp_path / "held", engine, CONFIG)
    await follow(interrupter.node, interrupter.seen)
    assert interrupter.holds >= 4
    assert engine.sampled == calm.sampled
    assert weights(tmp_path / "held", 2) == weights(tmp_path / "calm", 2)


async def test_an_episode_is_continued_after_a_stop_and_a_start(tmp_path: Path) -> None:
    await make(tmp_path / "calm", CountingEngine(), CONFIG).run()
    for _ in range(2):
        await stopped_after(7, tmp_path / "held", CONFIG)
    await make(tmp_path / "held", CountingEngine(), CONFIG).run()
    assert weights(tmp_path / "held", 2) == weights(tmp_path / "calm", 2)


async def test_a_redone_round_of_an_environment_gives_the_same_weights(tmp_path: Path) -> None:
    """What a kill before the last checkpoint leaves is copied as that checkpoint begins."""

    class Copying(CountingEngine):
        def save(self, folder: Path, optimizer: bool = True) -> None:
            if folder.parent.name == ".partial-000002":
                ignore = shutil.ignore_patterns(".partial-*")
                shutil.copytree(tmp_path / "run" / "checkpoints", tmp_path / "killed" / "checkpoints", ignore=ignore)
            super().save(folder, optimizer)

    await make(tmp_path / "run", Copying(), CONFIG).run()
    await make(tmp_path / "killed", CountingEngine(), CONFIG).run()
    assert len(rounds(tmp_path / "killed")) == 2
    assert weights(tmp_path / "killed", 2) == weights(tmp_path / "run", 2)


async def test_replayed_episodes_are_trained_on_with_their_turns(tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, replay_groups=2, rounds=4)
    await make(tmp_path / "run", CountingEngine(), config).run()
    assert sum(done.figures.get("replayed", 0.0) for done in rounds(tmp_path / "run")) > 0
    assert all(done.loss is not None for done in rounds(tmp_path / "run"))


def test_a_known_episode_is_encoded_as_it_was_sampled() -> None:
    tokenizer = FakeEngine(LoadRequest("fake")).tokenizer
    turns = (
        EpisodeTurn("<answer>5</answer>"),
        EpisodeTurn("Calculate 1 + 9.", environment=True),
        EpisodeTurn("<answer>10</answer>"),
    )
    rollout = Rollout("", "stop", 1.0, turns=turns)
    ids, mask = encode_rollout(tokenizer, rollout)
    assert mask is not None
    completion = Completion(ids, (0.0,) * len(ids), "stop", mask)
    assert model_turns(tokenizer, completion) == ("<answer>5</answer>", "<answer>10</answer>")
    assert turn_length(completion) == completion.sampled - 3 == 4


@pytest.mark.parametrize("turns", [(), (EpisodeTurn("4"),)], ids=["text", "an episode"])
def test_foreign_text_ends_with_the_token_that_ends_a_turn_of_the_model(
    tmp_path: Path, turns: tuple[EpisodeTurn, ...]
) -> None:
    """Of several end-of-sequence tokens the policy samples that of its chat template, whichever is listed first."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled_model_folder("starter-1m") / name, tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    tokenizer = HfTokenizer(tmp_path)
    whole, cut = (encode_rollout(tokenizer, Rollout("4", finish, 1.0, turns=turns))[0] for finish in ("stop", "length"))
    assert whole == (*cut, 2)
    assert cut == tuple(tokenizer.encode_text("4"))


async def test_a_held_out_evaluation_plays_every_turn(tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, eval_every=1, eval_items=1, rounds=1)
    await make(tmp_path / "run", FakeEngine(LoadRequest("fake")), config).run()
    found = [e for e in read_only(tmp_path / "run" / "journal.db", ("evaluation",)) if isinstance(e, Evaluated)]
    assert len(found) == 2


async def test_an_evaluation_under_holds_plays_the_episodes_of_an_undisturbed_one(tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, eval_every=1, eval_items=1, rounds=1)
    await make(tmp_path / "calm", CountingEngine(), config).run()
    interrupter = Interrupter(1, float("inf"))
    interrupter.node = make(tmp_path / "held", CountingEngine(interrupter.step), config)
    await follow(interrupter.node, interrupter.seen)
    calm, held = evaluations(tmp_path / "calm"), evaluations(tmp_path / "held")
    assert held == calm
    assert len(held) == 2


async def test_the_right_answers_to_both_turns_earn_the_reward() -> None:
    host = EngineThread()
    await host.load(lambda: FakeEngine(LoadRequest("fake")))
    try:
        async with Scorer(margin_s=20.0) as scorer:
            questions = await scorer.questions([held_out("two_sums", "own", 0)])
            asked = [q for q in questions if isinstance(q, Question)]
            drawn = await sample_completions(host, scorer, asked, Sampling(0.0, 1.0, 24), 2, 0)
            ((scored, *_),) = await score_completions(host.engine.tokenizer, scorer, asked, drawn)
            turns = [model_turns(host.engine.tokenizer, c) for c in drawn[0]]
    finally:
        await host.close()
    assert turns == [("<answer>12</answer>", "<answer>39</answer>")] * 2
    assert scored.rewards == (1.0, 1.0)


async def test_an_evaluation_of_which_no_question_can_be_asked_is_given_up_and_training_goes_on(
    tmp_path: Path, task: Path
) -> None:
    """Its environment does not start for the held-out row."""
    code = TWO_SUMS.replace("        self.first,", "        assert first != '12'\n        self.first,")
    (task / "two_sums" / "environment.py").write_text(code, "utf-8")
    library.allow_task_code(code.encode())
    await make(tmp_path / "run", CountingEngine(), msgspec.structs.replace(CONFIG, eval_every=2)).run()
    assert evaluations(tmp_path / "run") == []
    said = [e.text for e in read_only(tmp_path / "run" / "journal.db", ("log",)) if isinstance(e, LogLine)]
    assert sum("none of the 1 can be asked here" in text for text in said) == 1
    assert len(rounds(tmp_path / "run")) == 2
