"""What trying an untrained model on a task tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tests.support.own_tasks import library_in, write_folder

from sapo_backends import fake
from sapo_backends.base import Completion
from sapo_desktop.commands.tasks import own
from sapo_desktop.paths import Home
from sapo_desktop.services.bases.forecast import TrainingForecast
from sapo_desktop.services.machine.load_request import stored_trials
from sapo_desktop.services.tasks import expectation
from sapo_desktop.services.tasks.store import keep_shots
from sapo_swarm.config import RunConfig
from sapo_swarm.scoring.scorer import ScoredTexts, Scorer
from sapo_swarm.tasks.own import library
from sapo_swarm.types import Question


@pytest.mark.parametrize("tiny", [expectation.TINY, 1])
async def test_the_share_of_mixed_groups_is_that_of_the_success_however_large_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: int
) -> None:
    """Questions that are solved 15 % of the time. tiny: from how many parameters on a model counts as large; this one has few."""
    for name, value in {"TINY": tiny, "PROMPTS": 400, "PROMPTS_OF_LARGE": 400, "MOST_ASKING_S": 3600}.items():
        monkeypatch.setattr(expectation, name, value)
    rows = [{"question": f"Calculate {n // 20} + {n % 20}.", "answer": n // 20 + n % 20} for n in range(401)]
    write_folder(tmp_path / "easy", '[[verifier]]\nkind = "number"\n', rows[:400], rows[400:])
    config = RunConfig(model="fake", trainer="fake", tasks=("easy",), temperature=0.88, max_new_tokens=8)
    with library_in(tmp_path):
        async with Scorer() as scorer:
            found = await expectation.measure_expectation(library.load_task("easy"), config, scorer)
    assert found is not None
    assert (found.prompts, found.rate) == (400, pytest.approx(0.15, abs=0.03))
    neither_all_right_nor_all_wrong = 1 - (1 - found.rate) ** config.group_size - found.rate**config.group_size
    assert found.mixed == pytest.approx(neither_all_right_nor_all_wrong, abs=0.1)


def trial(**changes: object) -> expectation.Expectation:
    """What a trial found of a task with right answers to show: nothing right."""
    usual: dict[str, object] = {
        "model": "m.gguf", "prompts": 16, "answers": 128, "rate": 0.0, "low": 0.0, "high": 0.2, "mixed": 0.0, "group_size": 8,
        "truncated": 0.0, "formed": 1.0, "round_s": 4.0, "sample": "It is a bill.", "limit": 24, "reference": "billing",
        "longest": 3,
    }  # fmt: skip
    return expectation.Expectation(**(usual | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        (
            {"formed": 0.1},
            "Nothing right yet: only 10 % of the answers hold an answer at all, such as 'It is a bill.'.",
        ),
        (
            {"truncated": 0.7},
            "Nothing right yet: 70 % of the answers are much longer than yours and are cut off at 24",
        ),
        ({"fitting": 0.2}, "Nothing right yet: answers look like 'It is a bill.' and yours like 'billing'."),
        ({}, "Nothing right yet: the answers are wrong although they have the right form, such as 'It is a bill.'."),
        ({"fitting": 0.2, "greedy": 0.4}, "Little right yet: answers look like"),
        ({"rate": 0.05, "mixed": 0.2}, "Little is right yet."),
    ],
)
def test_the_verdict_names_the_cause_and_begins_with_the_rows_as_examples(
    changes: dict[str, object], cause: str
) -> None:
    verdict = expectation.describe_expectation(trial(**changes))[0]
    assert verdict.startswith(cause)
    assert verdict.endswith("Training begins with your rows as examples; practice follows where it helps.")


def test_an_answer_limit_below_the_persons_own_answers_is_to_be_raised() -> None:
    assert "raise max_new_tokens" in expectation.describe_expectation(trial(truncated=0.7, longest=20))[0]


def test_without_right_answers_to_show_the_remedy_is_the_persons() -> None:
    assert expectation.describe_expectation(trial(reference=""))[0].startswith(
        "Too hard for this model: where nothing is ever right"
    )


def test_what_worked_examples_brought_is_told_and_whether_they_stay() -> None:
    left = expectation.describe_expectation(trial(tried=(2, 0.05)))[-1]
    assert (
        left == "With 2 worked examples in each question: 5 % at temperature 0. That is no help, and they are left out."
    )
    better = trial(shots=2, greedy=0.5, tried=(0, 0.05))
    assert expectation.describe_expectation(better, kept=True)[-1].endswith(
        "without: 5 % at temperature 0. The task has them from now on."
    )
    assert expectation.describe_expectation(better)[-1].endswith("Write shots = 2 into task.toml to have them.")


async def test_examples_that_help_are_found_by_the_trial_and_kept_in_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is right only behind worked examples: the fake one, asked with another skill there."""
    home = Home(tmp_path, tmp_path / "data", tmp_path, tmp_path, tmp_path)
    rows = [{"question": f"Calculate {n // 20} + {n % 20}.", "answer": n // 20 + n % 20} for n in range(80)]
    toml = 'extract = "last_number"\n[[verifier]]\nkind = "number"\n'
    write_folder(home.tasks / "sums", toml, rows[:60], rows[60:])
    true = expectation._Trial.greedy

    async def right_behind_examples(
        self: expectation._Trial, questions: Sequence[Question]
    ) -> tuple[list[list[Completion]], list[ScoredTexts]]:
        shown = ["Example:" in question.prompt for question in questions]
        assert shown == [shown[0]] * len(shown)
        completions, verdicts = await true(self, questions)
        return completions, [replace(scored, rewards=(float(shown[0]),)) for scored in verdicts]

    monkeypatch.setattr(expectation._Trial, "greedy", right_behind_examples)
    config = RunConfig(model="fake:0", trainer="fake", tasks=("sums",), max_new_tokens=8)
    with library_in(home.tasks):
        before = library.load_task("sums")
        async with Scorer() as scorer:
            found = await expectation.measure_expectation(before, config, scorer)
        assert found is not None
        assert (found.shots, found.greedy, found.tried) == (2, 1.0, (0, 0.0))
        after = keep_shots(before, found.shots, home)
    assert (after.spec.shots, after.train, after.held_out) == (2, before.train, before.held_out)
    assert after.digest != before.digest
    assert "Example:" in after.question(after.held_out[0])


@pytest.mark.parametrize(
    ("examples", "when", "verdict"),
    [
        ("auto", "Examples come first: usually 2 to 5 minutes", expectation.EXAMPLES_FIRST),
        ("only", "Examples come first: usually 2 to 5 minutes", expectation.EXAMPLES_ONLY),
        ("off", "A round takes about 179.7 s here; the first held-out comparison, after 25", expectation.NO_EXAMPLES),
    ],
)
def test_when_something_can_be_compared_follows_the_setting_of_examples(examples: str, when: str, verdict: str) -> None:
    """A large model was promised its first comparison after 75 minutes, though examples come first."""
    lines = expectation.describe_expectation(trial(examples=examples, round_s=179.7))
    assert lines[3].startswith(when)
    assert lines[0].endswith(verdict)


def test_the_forecast_of_this_machine_takes_the_place_of_what_is_usual() -> None:
    """With the examples, a round and an evaluation, each as long as it takes here."""
    time = TrainingForecast(trial=3.0, examples=95.0, round=4.2, evaluation=15.0, every=25, answer=4.0, counts=None)
    hard = trial(rate=0.0, greedy=0.0, mixed=0.0, formed=1.0, reference="plumber", fitting=0.0)
    text = " ".join(expectation.describe_expectation(hard, time=time))
    assert "Examples come first: 63 s to 4 min here" in text
    assert "its rounds take about 4.2 s; a held-out evaluation, every 25 rounds, takes about 15 s." in text
    assert "usually 2 to 5 minutes" in " ".join(expectation.describe_expectation(hard))


async def test_answers_that_do_not_end_in_time_are_left_out_of_the_figures_and_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that writes every answer to a limit of 2,000 tokens would otherwise be tried for hours."""
    monkeypatch.setattr(expectation, "MOST_ASKING_S", 1.0)
    monkeypatch.setattr(fake.TablePolicy, "initial", classmethod(partial(_endless, fake.TablePolicy.initial)))
    rows = [{"question": f"Calculate {n // 20} + {n % 20}.", "answer": n // 20 + n % 20} for n in range(80)]
    write_folder(tmp_path / "sums", 'extract = "last_number"\n[[verifier]]\nkind = "number"\n', rows[:60], rows[60:])
    config = RunConfig(model="fake:0.02", trainer="fake", tasks=("sums",), max_new_tokens=2000)
    with library_in(tmp_path):
        async with Scorer() as scorer:
            measured = await expectation.measure_expectation(library.load_task("sums"), config, scorer)
    assert measured is not None
    assert measured.counts is not None
    assert (measured.answers, measured.greedy_asked) == (0, 0)
    assert measured.unfinished == measured.counts.answers > 0
    assert measured.left_out > 0
    text = " ".join(expectation.describe_expectation(measured))
    assert f"came to no end with any of {measured.unfinished} answers" in text
    assert f"{measured.left_out} of {measured.prompts + measured.left_out} questions were not asked" in text
    assert "%" not in text


def _endless(initial: object, _cls: object, seed: int) -> fake.TablePolicy:
    policy: fake.TablePolicy = initial(seed)  # type: ignore[operator]
    policy.table[:, :, fake.FIRST_PIECE :] = -60.0
    return policy


def test_what_a_trial_left_out_is_told_beside_its_figures() -> None:
    lines = expectation.describe_expectation(trial(unfinished=12, left_out=8, greedy_asked=0))
    assert "answered greedily (temperature 0, as in a chat) was not asked in time" in lines[1]
    assert lines[2].startswith("The trial ends after 60 s: 12 more answers were not at their end, 8 of 24 questions")
    partly = expectation.describe_expectation(trial(greedy_asked=5))
    assert "5 of 16 were answered at temperature 0" in partly[2]


async def test_the_trial_of_a_new_task_is_the_one_that_a_node_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the same conditions: another limit, another preset of sampling or a changed table is another trial."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    monkeypatch.setattr(expectation, "PROMPTS", 4)
    home = Home.find()
    rows = [{"question": f"Calculate {n // 20} + {n % 20}.", "answer": n // 20 + n % 20} for n in range(80)]
    write_folder(home.tasks / "sums", 'extract = "last_number"\n[[verifier]]\nkind = "number"\n', rows[:60], rows[60:])
    config = RunConfig(model="starter-1m", trainer="torch", tasks=("sums",), max_new_tokens=8, threads=1)
    with library_in(home.tasks):
        async with Scorer() as scorer:
            await own._try(library.load_task("sums"), config, scorer, lambda _: None)
        trials = stored_trials(home, config)
        counts = trials.find(config, "silo")
        assert counts is not None
        assert (counts.questions, counts.answers) == (4, 4 * config.group_size)
        assert trials.find(replace_config(config, max_new_tokens=9), "silo") is None
        assert trials.find(replace_config(config, temperature=0.5), "silo") is None
    (file,) = trials.folder.glob("*.json")
    file.write_bytes(file.read_bytes()[:100])
    with library_in(home.tasks):
        assert trials.find(config, "silo") is None, "a file that was cut off is as if there was none"


def replace_config(config: RunConfig, **changes: object) -> RunConfig:
    return msgspec.structs.replace(config, **changes)
