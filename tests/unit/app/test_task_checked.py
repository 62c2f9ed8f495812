"""What `tasks check` and `eval` say of a task is what training on it does."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from tests.support.own_tasks import library_in, sums, write_folder

from sapo_desktop.commands.tasks.own import check_task
from sapo_desktop.paths import Home
from sapo_desktop.services.models import comparing
from sapo_desktop.services.models.checkpoints import SelectedWeights
from sapo_desktop.services.tasks import expectation, review
from sapo_desktop.services.tasks.ratings import rated_file, read_ratings, save_rating
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import held_out_items
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import read_task
from sapo_swarm.types import AnswerFormat

SHORT = 'max_new_tokens = 2\n[[verifier]]\nkind = "number"\n'


async def test_eval_and_tasks_check_let_an_answer_be_as_long_as_training_does(tmp_path: Path) -> None:
    """No answer of the fake model ends within two tokens."""
    rows = [{"question": f"Calculate {n // 10} + {n % 10}.", "answer": f"{n // 10 + n % 10}"} for n in range(100)]
    write_folder(tmp_path / "short", SHORT, rows[:80], rows[80:])
    config = RunConfig(model="fake", trainer="fake", tasks=("short",), max_new_tokens=8)
    chosen = SelectedWeights("base", config, None)
    with library_in(tmp_path):
        task = library.load_task("short")
        refs = held_out_items(("short",), "", 20)
        (found,) = await comparing.compare_weights((chosen, chosen), refs, (1.0,), 1, lambda *_: None)
        async with Scorer() as scorer:
            expected = await expectation.measure_expectation(task, config, scorer)
    assert all(all(item.truncated) for item in found.after)
    assert expected is not None
    assert expected.truncated == 1.0
    rows = [{"question": f"Say number {n}.", "answer": "in so many words as these"} for n in range(9)]
    wordy = read_task(write_folder(tmp_path / "elsewhere" / "short", SHORT, rows[:8], rows[8:]))
    told = review.length_warnings(wordy, review.number_rows(wordy), RunConfig(model="starter", max_new_tokens=64))
    assert "answered in more than 2 tokens" in told[0]


def test_check_measures_in_the_format_that_the_run_will_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    home = Home.find()
    home.prepare()
    home.settings.write_text('[run]\nanswer_format = "boxed"\nmodel = "fake"\ntrainer = "fake"\n', "utf-8")
    sums(home.tasks / "sums")
    with library_in(home.tasks):
        check_task(Namespace(target="sums", allow_code=False, json=False, model="", no_model=False))
    said = capsys.readouterr().out
    assert "judged wrong" not in said
    assert "only 0 % of the answers hold an answer at all" in said  # the fake model writes tags


@pytest.mark.parametrize(
    ("answer_format", "text"),
    [
        ("boxed", "<think>\\boxed{3}?</think>Adding gives \\boxed{4}."),
        ("json", '{"answer": 4}'),
        ("last_line", "Adding gives\n4"),
        ("tags", "It is <answer>4</answer>, I think."),
    ],
)
def test_a_good_rating_of_an_answer_keeps_what_stands_where_the_model_was_asked_to_put_it(
    tmp_path: Path, answer_format: AnswerFormat, text: str
) -> None:
    home = Home(tmp_path, tmp_path / "data", tmp_path, tmp_path, tmp_path)
    save_rating(home, "me", "2 + 2?", text, True, answer_format)
    assert [row["answer"] for row in read_ratings(rated_file(home, "me"))] == ["4"]


ANY_OF = '[[verifier]]\nkind = "exact"\nalternatives = "|"\n'


async def test_a_task_with_alternatives_has_nothing_to_warn_of(tmp_path: Path) -> None:
    rows = [{"question": f"Which is number {n}?", "answer": f"the {n}th | number {n}x"} for n in range(300)]
    write_folder(tmp_path / "any_of", ANY_OF, rows[:240], rows[240:])
    with library_in(tmp_path):
        task = library.load_task("any_of")
        async with Scorer() as scorer:
            found = await review.measure_shortcuts(task, scorer, review.train_places(task))
    assert (found.truth, review.shortcut_warnings(found), review.review_rows(task, review.number_rows(task))) == (
        1.0,
        [],
        [],
    )


def test_answers_that_the_verifier_calls_equal_do_not_contradict_one_another(tmp_path: Path) -> None:
    rows = [("Is 4 even?", "Yes"), ("is 4 even", "yes"), ("Evaluate 5!", "120"), ("Evaluate 5.", "5"), ("Is 3?", "no")]
    named = [{"question": question, "answer": answer} for question, answer in [*rows, ("is 3?", "yes")]]
    found = read_task(write_folder(tmp_path / "t", "", named, [{"question": "Why?", "answer": "so"}]))
    told = "\n".join(review.review_rows(found, review.number_rows(found)))
    assert "One question has different answers in different rows (train.jsonl row 5 and train.jsonl row 6)" in told
    assert "One question has several rows (train.jsonl row 1 and train.jsonl row 2)" in told


@pytest.mark.parametrize(("yes", "told"), [(200, False), (280, False), (320, True)])
def test_an_answer_dominates_only_where_a_guess_does_not_earn_nearly_as_much(
    tmp_path: Path, yes: int, told: bool
) -> None:
    rows = [{"question": f"Is it {n} o'clock?", "answer": "yes" if n < yes else "no"} for n in range(400)]
    toml = '[[verifier]]\nkind = "choice"\noptions = ["yes", "no"]\n'
    found = read_task(write_folder(tmp_path / "t", toml, rows[::2], rows[1::2]))
    assert any("dominates" in line for line in review.review_rows(found, review.number_rows(found))) is told


async def test_a_schema_with_an_unknown_type_is_told_of(tmp_path: Path) -> None:
    rows = [{"question": f"Object {n}?"} for n in range(9)]
    folder = write_folder(tmp_path / "typed", '[[verifier]]\nkind = "json_schema"\n', rows[:5], rows[5:])
    (folder / "schema.json").write_text('{"type": "objekt"}')
    with library_in(tmp_path):
        async with Scorer() as scorer:
            found = await review.measure_shortcuts(library.load_task("typed"), scorer, [])
    assert "'objekt' is not valid" in review.shortcut_warnings(found)[0]
