"""What a training will take: by the length of the tasks' own questions and answers, with its evaluations and its examples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.own_tasks import library_in, write_folder

from sapo_backends.common.round_memory import ModelSize
from sapo_backends.measure.choice import EngineCandidate, EngineMeasurement, MeasuredRates, RoundWorkload
from sapo_backends.measure.machine_limits import MachineLimits, RateEstimator
from sapo_desktop import settings
from sapo_desktop.paths import Home
from sapo_desktop.services.bases import card, question_tokens
from sapo_desktop.services.bases.forecast import TrainingForecast, forecast_training, in_words
from sapo_desktop.services.bases.question_tokens import TokenCounts
from sapo_desktop.services.machine import doctor
from sapo_desktop.settings import flags
from sapo_swarm.config import RunConfig
from sapo_swarm.tasks.own import library

RATES = RateEstimator(
    ModelSize(135_000_000, 5_000_000, 30, 576, 1536, 192, 49152),
    MachineLimits({"float32": 1e11, "bfloat16": 4e11}, 4e10),
    "bfloat16",
)
ROWS = 64
OWN = RunConfig(model=str(Path("no-such-folder")), tasks=("short",), local_groups=8)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(*(tmp_path / name for name in ("config", "data", "cache", "logs", "run")))


@pytest.fixture(autouse=True)
def tasks(tmp_path: Path) -> Iterator[None]:
    """Two tables, whose questions are a line and a page and whose answers are a word."""
    form = (
        'prompt = "Sort this message into one of the words that you know: {question}"\n[[verifier]]\nkind = "exact"\n'
    )
    for name, words in (("short", 5), ("long", 400)):
        rows = [{"question": f"{number} " + "word " * words, "answer": "electrician"} for number in range(240)]
        write_folder(tmp_path / "tasks" / name, form, rows[:192], rows[192:])
    with library_in(tmp_path / "tasks"):
        yield


def expected(home: Home, config: RunConfig) -> TrainingForecast:
    counts = question_tokens.count_question_tokens(home, config, make=False)
    assert counts is not None
    return forecast_training(config, RATES, ROWS, counts)


def test_longer_questions_take_longer(home: Home) -> None:
    """Of the same number of rows, with the same answers."""
    short, long = (expected(home, msgspec.structs.replace(OWN, tasks=(name,))) for name in ("short", "long"))
    assert short.counts is not None
    assert long.counts is not None
    assert long.counts.prompt > short.counts.prompt + 350
    assert short.answer == long.answer
    for part in ("trial", "examples", "round", "evaluation"):
        assert getattr(long, part) > getattr(short, part), part


def test_the_card_and_the_doctor_plan_the_same_memory_for_the_questions_of_the_tasks(home: Home) -> None:
    """And say for how long questions, as it is another number for other tasks."""
    needs = {}
    for task in ("short", "long"):
        for key, value in {"model": "starter-1m", "trainer": "torch", "device": "cpu", "tasks": task}.items():
            settings.write_setting(home.settings, f"run.{key}", value)
        config = flags.propose_run(settings.load_settings(home.settings).run)
        plan = card.build_base_card(home, config, measure=False).plan
        assert plan is not None
        needs[task] = plan.sentence.partition(", ")[0]
        memory = next(doctor.memory_and_speed_findings(home, question_tokens.mean_prompt))
        assert memory.text.startswith(f"starter-1m: {needs[task]}, ")
        assert f"with questions of up to {plan.shape.prompt} tokens needs about" in needs[task]
    assert needs["short"] != needs["long"]


def test_the_base_s_own_tokenizer_and_template_count(home: Home) -> None:
    """The starter's, on rows as they are; a base that is not on this disk is estimated by characters, and that is said."""
    from sapo_backends.checkpoints import locate
    from sapo_backends.checkpoints.tokenizer import HfTokenizer
    from sapo_swarm.scoring.prompts import build_messages

    counts = question_tokens.count_question_tokens(home, msgspec.structs.replace(OWN, model="starter"), make=False)
    assert counts is not None
    assert counts.by_tokenizer
    tokenizer, task = HfTokenizer(locate.bundled_model_folder("starter")), library.load_task("short")
    chats = [tokenizer.encode_chat(build_messages(task.question(row))) for row in task.train]
    assert min(map(len, chats)) <= counts.prompt <= max(map(len, chats))
    assert counts.answer == len(tokenizer.encode_text("<answer>electrician</answer>")) + 1
    assert "estimated by their characters" in expected(home, OWN).basis


def test_evaluations_are_counted_at_both_temperatures_and_as_often_as_they_come(home: Home) -> None:
    often, seldom, never = (expected(home, msgspec.structs.replace(OWN, eval_every=every)) for every in (10, 100, 0))
    assert often.evaluation == seldom.evaluation > never.evaluation == 0.0
    assert often.whole() - seldom.whole() == pytest.approx(18 * often.evaluation)
    assert seldom.whole() - never.whole() == pytest.approx(3 * often.evaluation)
    assert "an evaluation about" in often.parts
    assert "evaluation" not in never.parts
    fewer = expected(home, msgspec.structs.replace(OWN, eval_items=12))
    assert fewer.evaluation < often.evaluation
    assert fewer.counts is not None
    once = RATES.generate(
        RoundWorkload(12, fewer.answer, True, 1, fewer.counts.prompt, fewer.counts.shared, fewer.counts.longest)
    )
    assert fewer.evaluation == pytest.approx(2 * once)


def test_what_questions_begin_with_alike_is_computed_once(home: Home) -> None:
    """In generation and in a step of examples; a round's update computes each question whole."""
    counts = question_tokens.count_question_tokens(home, OWN, make=False)
    assert counts is not None
    assert counts.shared >= 16
    alone = msgspec.structs.replace(counts, shared=0.0)
    together, apart = (forecast_training(OWN, RATES, ROWS, each) for each in (counts, alone))
    assert together.examples < apart.examples
    assert together.round < apart.round
    prompts = counts.shared + 8 * (counts.prompt - counts.shared)
    assert RoundWorkload(64, 9, True, 8, counts.prompt, counts.shared).prompt_tokens == pytest.approx(prompts)


def test_the_examples_are_told_of_only_where_they_come(home: Home) -> None:
    """Off, or of a bundled base that knows the form, there are none; only: nothing else."""
    first, off, only = (expected(home, msgspec.structs.replace(OWN, examples=kind)) for kind in ("auto", "off", "only"))
    assert first.examples > 0 == off.examples
    assert first.parts.startswith(f"examples {first.examples_range}, ")
    assert first.answer < off.answer == OWN.max_new_tokens, "untrained models write to the limit"
    assert only.round == 0
    assert only.whole() < first.whole()
    assert expected(home, msgspec.structs.replace(OWN, model="starter")).examples == 0


def test_what_is_not_known_is_assumed_and_said(home: Home) -> None:
    """reasoning_gym's questions, where there is no time to make them."""
    config = RunConfig(model="starter")
    assert question_tokens.count_question_tokens(home, config, make=False) is None
    assert forecast_training(config, RATES, ROWS, None).basis.startswith("assumed: questions of 64 tokens")


def test_questions_of_reasoning_gym_are_made_once(home: Home) -> None:
    """In the scorer's process; afterwards the counts are read from a file."""
    config = RunConfig(model="starter", tasks=("basic_arithmetic", "propositional_logic"))
    counts = question_tokens.count_question_tokens(home, config, make=True)
    assert counts is not None
    assert counts.questions >= 2 * question_tokens.LEAST
    assert counts.known
    assert question_tokens.count_question_tokens(home, config, make=False) == counts
    (home.cache / "question-tokens.json").write_text("[]", "utf-8")
    assert question_tokens.count_question_tokens(home, config, make=False) is None


def test_measured_rates_go_before_the_limits(home: Home) -> None:
    measured = EngineMeasurement(
        EngineCandidate("torch"), generation={8: 100.0, 64: 400.0}, first=0.5, update=200.0, hand_over=0.1
    )
    rates = MeasuredRates(measured)
    assert rates.generate(RoundWorkload(64, 10)) == pytest.approx(0.5 + 640 / 400)
    assert rates.update(100, 300) == pytest.approx(2.1)
    counts = TokenCounts(32, 80, 60, 9, 9, True, 96, True, 196, 28, 56)
    assert forecast_training(OWN, rates, ROWS, counts, measured=7.0).round == 7.0
    assert forecast_training(OWN, rates, ROWS, counts).round == pytest.approx(
        0.5 + 64 * 9 / 400 + (8 * 80 + 64 * 9) / 200 + 0.1
    )


def test_the_quantisation_of_a_gguf_file_and_its_size_reach_the_forecasts(home: Home, tmp_path: Path) -> None:
    """The file is seen as a folder elsewhere, and neither had been looked for behind it."""
    from tests.support.gguf_files import placed, whole_model

    from sapo_desktop.services.bases.card import quantisation_of
    from sapo_desktop.services.machine.memory_plan import plan_round_memory

    file = placed(tmp_path / "m.gguf", whole_model())
    assert quantisation_of(str(file)) == "F32"
    assert quantisation_of("starter") == ""
    pair = msgspec.structs.replace(OWN, model=str(file), trainer="llamacpp+torch", device="cpu", threads=1)
    both, alone = (plan_round_memory(config) for config in (pair, msgspec.structs.replace(pair, trainer="torch")))
    assert both is not None
    assert alone is not None
    logits = 4 * 512 * 263  # its tokens
    assert both.needed - alone.needed == file.stat().st_size + logits
    long = plan_round_memory(pair, prompt=1000)
    assert long is not None
    assert long.needed > both.needed


def test_of_a_table_that_is_not_stored_yet_the_same_is_expected_as_once_it_is(home: Home) -> None:
    task, stored = library.load_task("short"), question_tokens.count_question_tokens(home, OWN, make=False)
    with library_in(home.data / "empty"):
        assert question_tokens.count_question_tokens(home, OWN, make=False) is None
        counts = question_tokens.count_question_tokens(home, OWN, make=False, table=task)
    assert counts == stored
    assert counts is not None


def test_where_the_questions_are_not_known_a_round_is_a_range_that_holds_both_kinds_of_answers(home: Home) -> None:
    """Of a table with answers of a word ten times as much was said as it took."""
    unknown, known = forecast_training(OWN, RATES, ROWS, None), expected(home, OWN)
    assert unknown.least < known.round < unknown.round
    words = unknown.parts
    assert (
        words
        == f"a round of practice {in_words(unknown.least)} to {in_words(unknown.round)}, by the length of the answers"
    )
    assert unknown.basis == f"assumed: questions of 64 tokens, answers of 4 to {OWN.max_new_tokens}"
    assert known.least == 0.0
    assert forecast_training(OWN, RATES, ROWS, None, measured=7.0).parts == "a round of practice about 7.0 s"
