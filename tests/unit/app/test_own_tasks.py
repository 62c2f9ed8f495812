"""From a file to a proposed task, and what a careful friend says about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.make_recordings import recording
from tests.support.own_tasks import library_in, sums, task_of

from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf.changes import stale_tasks, task_versions
from sapo_desktop.services.models.shelf.store import ModelRecord, train_on
from sapo_desktop.services.tasks import looking, store
from sapo_desktop.services.tasks.expectation import Expectation, describe_expectation
from sapo_desktop.services.tasks.proposal.columns import best_verifier
from sapo_desktop.services.tasks.proposal.draft import ImportOptions, TaskDraft, draft_task
from sapo_desktop.services.tasks.ratings import rated_file, save_rating
from sapo_desktop.services.tasks.review import (
    ShortcutScores,
    measure_shortcuts,
    number_rows,
    review_rows,
    shortcut_warnings,
    too_long,
)
from sapo_swarm.config import RunConfig
from sapo_swarm.events import RunStarted
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.catalogue import CATALOGUE
from sapo_swarm.tasks.own.folder import build_task, write_task
from sapo_swarm.tasks.own.import_rows import RowTable
from sapo_swarm.tasks.own.spec import (
    ChoiceVerifier,
    ExactVerifier,
    JsonEqual,
    LengthVerifier,
    NumberVerifier,
    RegexVerifier,
    TaskSpec,
    Verifier,
)


def of(folder: Path, text: str, **wishes: str) -> TaskDraft:
    (folder / "my file.csv").write_text(text)
    return draft_task(folder / "my file.csv", ImportOptions(**wishes))  # type: ignore[arg-type]


def said(found: TaskDraft) -> str:
    return "\n".join(review_rows(found.task, number_rows(found.task, found.table)))


@pytest.mark.parametrize(
    ("truths", "verifier"),
    [
        (["1", "-20", "1,300"], NumberVerifier()),
        (["1.5", "2.25", "3"], NumberVerifier(abs=0.005)),
        (["5 km", "1.5 m", "2km"], NumberVerifier(abs=0.05, units=("km", "m"))),
        (["yes", "no", "Yes", "no"] * 4, ChoiceVerifier(options=("no", "yes"))),
        (['{"a": 1}', "[1]"], JsonEqual()),
        (["one thing", "another", "a third", "a fourth"], ExactVerifier()),
        ([], ExactVerifier()),
    ],
)
def test_a_verifier_is_proposed_from_the_answers(truths: list[str], verifier: Verifier) -> None:
    assert best_verifier(truths)[0] == verifier


def test_columns_are_found_by_their_usual_names_or_by_what_they_hold(tmp_path: Path) -> None:
    rows = "".join(f"{n},what is {n} and more,{n}\n" for n in range(9))
    assert of(tmp_path, "id,Prompt,Expected\n" + rows).task.spec.prompt == "{prompt}"
    found = of(tmp_path, "id,blah,last\n" + rows).task.spec
    assert (found.prompt, found.answer, found.name) == ("{blah}", "last", "my_file")
    assert of(tmp_path, "id,blah,last\n" + rows, question="id", answer="Blah").task.spec.answer == "blah"


def test_a_column_named_source_that_says_where_each_row_came_from_is_not_the_question(tmp_path: Path) -> None:
    rows = "".join(f"the soup number {n} was cold,{'card' if n % 2 else 'web'},kitchen{n % 3}\n" for n in range(40))
    spec = of(tmp_path, "comment,source,team\n" + rows).task.spec
    assert ("{comment}" in spec.prompt, "{source}" in spec.prompt, spec.answer) == (True, False, "team")
    pairs = "".join(f"Satz {n},sentence {n}\n" for n in range(40))
    assert "{source}" in of(tmp_path, "source,translation\n" + pairs).task.spec.prompt


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        ({"answer": "nothing"}, "There is no column 'nothing' for the answer. The file has: id, question, answer."),
        ({"prompt": "{nothing}"}, "has no column 'nothing'"),
        ({"question": "answer"}, "Column answer cannot be both the question and the answer"),
        ({"name": "bf"}, "The name 'bf' is taken."),
        ({"name": "check"}, "taken"),
    ],
)
def test_a_wish_that_cannot_be_met_is_named(tmp_path: Path, wishes: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        of(tmp_path, "id,question,answer\n1,a,b\n2,c,d\n", **wishes)


def test_contradictions_and_repeats_are_named_by_their_rows(tmp_path: Path) -> None:
    found = said(of(tmp_path, "question,answer\nWhat?,1\nwhat?,2\nHow?,3\n how? ,3\nWho?,4\n"))
    assert "One question has different answers in different rows (row 2 and row 3)" in found
    assert "One question has several rows (row 4 and row 5)." in found


def test_an_answer_that_dominates_or_stands_in_the_question_is_told_of(tmp_path: Path) -> None:
    found = said(
        of(tmp_path, "question,answer\n" + "".join(f"is it {n} yes,yes\n" for n in range(20)) + "a,no\nb,no\n")
    )
    assert "'yes' is right in 91 % of the rows" in found
    assert "The answer stands in the question in 20 of 22 rows (rows 2, 3, 4, 5, 6, …)" in found


def test_a_way_of_reading_that_finds_nothing_in_the_right_answers_is_named(tmp_path: Path) -> None:
    words = "question,answer\n" + "".join(f"Which is {n}?,{'odd' if n % 2 else 'even'}\n" for n in range(20))
    found = said(of(tmp_path, words, extract="last_number"))
    assert "right answers hold no number (such as " in found
    assert "--extract last_line" in found
    assert "hold no" not in said(of(tmp_path, words, extract="last_line"))


def test_options_that_every_question_names_give_no_answer_away(tmp_path: Path) -> None:
    """Neither in the wording nor in the cells, at their beginning, their end or on a line of their own."""
    kinds = ("red", "blue", "green")
    rows = [(f"Box {n} is of the colour of {'sky' if n % 3 == 1 else 'leaves'}", kinds[n % 3]) for n in range(60)]
    head = "text,colour\n"
    plain = of(tmp_path, head + "".join(f"{text},{kind}\n" for text, kind in rows), base="m.gguf")
    assert "red" in plain.task.spec.prompt
    shapes = ('"Say red, blue or green: {}"', '"{} (red, blue or green)"', '"red, blue, green\n{}"')
    for shape in shapes:
        found = of(tmp_path, head + "".join(f"{shape.format(text)},{kind}\n" for text, kind in rows))
        assert "The answer stands in the question" not in said(found), shape
    assert "The answer stands in the question" not in said(plain)
    leaking = of(tmp_path, head + "".join(f"{text} {kind},{kind}\n" for text, kind in rows), base="m.gguf")
    assert "The answer stands in the question in 60 of 60 rows" in said(leaking)


def test_a_held_out_question_that_is_trained_on_is_a_leak() -> None:
    rows = [{"question": f"q{n}", "answer": "a"} for n in range(3)]
    task = build_task(TaskSpec(name="t"), RowTable(rows=rows, numbers=[1, 2, 3]), RowTable(rows=[rows[1]], numbers=[1]))
    assert "Leak: 1 held-out questions are also trained on (heldout.jsonl row 1)" in "\n".join(
        review_rows(task, number_rows(task))
    )


def test_rows_without_room_in_the_context_are_named() -> None:
    rows = [{"question": "x" * size, "answer": "y" * size} for size in (5, 500, 6)]
    task = build_task(TaskSpec(name="t"), RowTable(rows=rows, numbers=[1, 2, 3]), RowTable(rows=rows[:1], numbers=[1]))
    found = too_long(task, number_rows(task), len, 200, 50)
    assert found[0].startswith("Train.jsonl row 2 is too long: question and answer must fit into 200 tokens.")
    assert found[1].startswith("Train.jsonl row 2 is answered in more than 50 tokens")


def test_a_file_without_faults_has_nothing_said_about_it(tmp_path: Path) -> None:
    assert said(of(tmp_path, "question,answer\n" + "".join(f"number {n}?,a{n}\n" for n in range(400)))) == ""


async def test_shortcuts_are_seen_before_a_model_finds_them(tmp_path: Path) -> None:
    folder = tmp_path / "easy"
    rows = [{"question": f"q{n}", "answer": "yes" if n % 4 else "no"} for n in range(80)]
    write_task(
        build_task(
            TaskSpec(name="easy"), RowTable(rows=rows, numbers=[*range(80)]), RowTable(rows=rows, numbers=[*range(80)])
        ),
        folder,
    )
    with library_in(tmp_path):
        from sapo_swarm.tasks.own import library

        async with Scorer() as scorer:
            found = await measure_shortcuts(library.load_task("easy"), scorer, [f"row {n}" for n in range(80)])
    assert found.constant == ("yes", 0.75)
    assert found.permuted == 0.0  # another answer than the row's own is wrong, however often 'yes' is right
    assert found.truth == 1.0
    assert (found.echo, found.wrong) == (0.0, ())
    assert len(shortcut_warnings(found)) == 1


async def test_an_honest_task_has_no_shortcut_and_a_row_that_contradicts_its_verifier_is_named(tmp_path: Path) -> None:
    sums(tmp_path / "sums")
    path = tmp_path / "sums" / "train.jsonl"
    path.write_text(path.read_text() + '{"question": "Calculate 1 + 1.", "answer": "two"}\n')
    with library_in(tmp_path):
        from sapo_swarm.tasks.own import library

        async with Scorer() as scorer:
            found = await measure_shortcuts(library.load_task("sums"), scorer, [f"row {n}" for n in range(1, 82)])
    assert (found.constant[1], found.permuted, found.wrong) == (0.0, 0.0, ("row 81",))
    assert "judged wrong in 1 of the rows looked at (row 81)" in shortcut_warnings(found)[0]


async def test_a_pattern_that_hangs_is_told_of_and_ends(tmp_path: Path) -> None:
    parts = (RegexVerifier(pattern="(a|a)*b"), ExactVerifier(weight=0.1), LengthVerifier())
    task = task_of(*parts, row={"question": "q", "answer": "a" * 40})
    write_task(task, tmp_path / "t")
    with library_in(tmp_path):
        async with Scorer(margin_s=60.0) as scorer:
            found = await measure_shortcuts(task, scorer, ["row 1"])
    assert [reason.partition(":")[0] for reason in found.hanging] == ["row 1"]
    assert found.constant[1] == 0.0


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "Well suited"),
        ({"rate": 0.0, "mixed": 0.0}, "Too hard"),
        ({"rate": 0.95, "mixed": 0.1}, "Too easy"),
        ({"rate": 0.03, "mixed": 0.15}, "Possible, but slow"),
        ({"formed": 0.1, "sample": "\n\nno tags"}, "'no tags'"),
        ({"truncated": 0.5}, "max_new_tokens"),
    ],
)
def test_what_to_expect_is_said_in_one_sentence(changes: dict[str, float], word: str) -> None:
    usual = {"rate": 0.3, "mixed": 0.7, "formed": 1.0, "truncated": 0.0, "sample": ""}
    figures = {"model": "m", "prompts": 64, "answers": 512, "low": 0.2, "high": 0.4, "group_size": 8, "round_s": 4.0}
    lines = describe_expectation(Expectation(**(figures | usual | changes)))  # type: ignore[arg-type]
    assert word in lines[0]
    assert "comes in about 2 minutes" in lines[3]


def test_the_commands_that_train_repeat_what_was_tried() -> None:
    made = train_on("my_task", "/my models/a b.gguf", ["my_task", "other"])
    assert made == (
        "sapo-desktop new my_task-2 --base '/my models/a b.gguf' --tasks my_task, then: sapo-desktop node my_task-2"
    )
    assert train_on("t") == "sapo-desktop new t --tasks t, then: sapo-desktop node t"


@pytest.mark.parametrize("name", store.example_names())
def test_an_example_is_clean_and_its_name_is_free(name: str) -> None:
    task = store.load_example(name)
    assert name not in CATALOGUE
    assert task.spec.licence
    assert task.spec.description
    assert task.problems == ()
    assert [line for line in review_rows(task, number_rows(task)) if not line.startswith("The answer stands")] == []


def test_four_examples_ship() -> None:
    assert len(store.example_names()) == 4


@pytest.mark.parametrize(
    ("digest", "changed", "word"),
    [
        ("same", (), ""),
        ("other", (), "since me was trained"),
        ("same", ("task sums was edited",), "while me was trained"),
    ],
)
def test_a_task_that_is_another_than_the_one_trained_on_is_told_of(
    tmp_path: Path, digest: str, changed: tuple[str, ...], word: str
) -> None:
    sums(tmp_path / "sums")
    config = RunConfig(tasks=("sums", "basic_arithmetic"))
    first = next(iter(recording("silo", 1, 1)))
    assert isinstance(first, RunStarted)
    session = RunStarted(**{**{name: getattr(first, name) for name in first.__struct_fields__}, "changed": changed})
    with library_in(tmp_path):
        now = task_versions(config)["sums"]
        record = ModelRecord(
            id="i", name="me", base="b", created=0.0, method="full", precision="auto", lora_rank=8, config=config,
            tasks={"sums": now if digest == "same" else "0" * 64},
        )  # fmt: skip
        said = stale_tasks(record, [session])
    assert bool(said) is bool(word)
    assert all(word in sentence for sentence in said)


def test_a_rating_that_is_given_again_replaces_the_first_and_only_good_answers_become_rows(tmp_path: Path) -> None:
    home = Home(tmp_path, tmp_path / "data", tmp_path, tmp_path, tmp_path)
    assert save_rating(home, "me", "2 + 3?", "I think.<answer> 5 </answer>", True) == (1, 0)
    assert save_rating(home, "me", "2 + 3?", "<answer>6</answer>", True) == (2, 0)
    assert save_rating(home, "me", "2 + 3?", "<answer>6</answer>", False) == (1, 1)
    assert save_rating(home, "me", "4 + 4?", "eight", True) == (2, 1)
    found = draft_task(rated_file(home, "me"), ImportOptions())
    assert [row["answer"] for row in found.table.rows] == ["5", "eight"]
    assert found.table.problems == ["Row 2: you rated this answer bad."]
    save_rating(home, "me", "4 + 4?", "eight", False)
    with pytest.raises(UsageError, match="holds one question, and a task needs at least two"):
        draft_task(rated_file(home, "me"), ImportOptions())


def test_a_file_of_reviews_labelled_good_and_bad_keeps_both_labels(tmp_path: Path) -> None:
    reviews = [f"film {n},{'good' if n % 2 else 'bad'}\n" for n in range(9)]
    assert len(of(tmp_path, "review,rating\n" + "".join(reviews)).table.rows) == 9
    text = "question,answer,rating\n" + "".join(f"why {n}?,{line}" for n, line in enumerate(reviews))
    assert len(of(tmp_path, text, answer="rating").table.rows) == 9


def test_a_row_without_a_question_is_left_out_and_named(tmp_path: Path) -> None:
    rows = "".join(f"{'' if n == 3 else f'twice {n}'},{2 * n}\n" for n in range(20))
    found = of(tmp_path, "question,answer\n" + rows)
    assert looking.describe_problems(found.task, found.table) == ["Left out. Row 5: its question is empty."]
    alpaca = "".join(f"Double the number {n}.,{n if n % 2 else ''},{2 * n}\n" for n in range(20))
    found = of(tmp_path, "instruction,input,output\n" + alpaca)
    assert (found.task.spec.prompt, found.notes) == ("{instruction}", ("Not used: column input.",))
    assert not found.task.problems


def test_columns_that_no_name_tells_are_said_to_be_guessed_and_a_first_row_of_data_is_named(tmp_path: Path) -> None:
    header = "The first row was taken for column names; if it is data, add a header."
    found = of(tmp_path, "foo,bar,baz\n" + "".join(f"{n},what is {n} + 1,{n + 1}\n" for n in range(9)))
    assert found.guessed == "Question: column bar (guessed). Answer: column baz (guessed)."
    assert found.notes == ("Not used: column foo.",)
    assert not of(tmp_path, "foo,bar\na b,c\nd e,f\n", question="foo", answer="bar").guessed
    plain = of(tmp_path, "question,answer\na,1\nb,1\n")
    assert (plain.guessed, plain.notes) == ("", ())
    assert of(tmp_path, "what is 0 + 1,1\n" + "".join(f"what is {n} + 1,{n + 1}\n" for n in range(1, 30))).notes == (
        header,
    )
    assert of(tmp_path, "is it red,yes\nis it blue,no\nis it green,yes\n").notes == (header,)


def test_columns_in_other_languages_are_known_and_who_checked_a_row_is_no_answer(tmp_path: Path) -> None:
    rows = "".join(f"Für {n} Äpfel und 2 Birnen: wie viele?;{n + 2};Jürgen Müßig\n" for n in range(30))
    found = of(tmp_path, "Frage;Lösung;Prüfer\n" + rows)
    assert (found.task.spec.prompt, found.task.spec.answer, found.guessed) == ("{frage}", "losung", "")
    assert found.task.train[0]["frage"].startswith("Für ")
    science = "question,distractor,correct_answer,support\n" + "".join(f"{n}?,a{n},b{n},c{n}\n" for n in range(9))
    assert of(tmp_path, science).task.spec.answer == "correct_answer"
    unnamed = of(tmp_path, "Wortlaut;Zahl;Prüfer\n" + rows)
    assert (unnamed.task.spec.prompt, unnamed.task.spec.answer) == ("{wortlaut}", "zahl")
    assert unnamed.guessed


def test_rows_that_were_left_out_for_one_reason_are_one_sentence(tmp_path: Path) -> None:
    found = of(tmp_path, "question,answer\n" + "".join(f"{n} + 1?,{n + 1 if n % 3 else ''}\n" for n in range(30)))
    assert looking.describe_problems(found.task, found.table) == [
        "Left out. Rows 2, 5, 8, 11, 14 and 5 more: answer is empty or missing."
    ]


def test_what_chance_earns_among_options_is_no_shortcut() -> None:
    def found(options: int, constant: float, permuted: float) -> list[str]:
        chance = 1 / options if options else 0.0
        return shortcut_warnings(ShortcutScores(100, 1.0, (), (), ("A", constant), permuted, 0.0, chance))

    assert found(3, 0.4, 0.4) == []
    assert found(2, 0.6, 0.5) == []
    assert len(found(2, 0.8, 0.8)) == len(found(3, 0.6, 0.6)) == len(found(0, 0.4, 0.4)) == 2


def test_a_table_without_one_answer_is_refused_by_its_own_name_and_column(tmp_path: Path) -> None:
    """The sentence spoke of a train.jsonl, which nobody had written."""
    rows = "".join(f"What is {n} and {n}?,\n" for n in range(9))
    with pytest.raises(UsageError, match=r"my file\.csv holds no answer: column Answer is empty in every row"):
        of(tmp_path, "Question,Answer\n" + rows)
