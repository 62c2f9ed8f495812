"""A file of multiple-choice questions becomes a task whose questions hold their options and whose answers are letters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.declared import judge
from tests.support.own_tasks import library_in, task_of

from sapo_desktop.paths import Home
from sapo_desktop.services.tasks.proposal.draft import ImportOptions, TaskDraft, draft_task, rows_of
from sapo_desktop.services.tasks.proposal.options import find_options, put_in
from sapo_desktop.services.tasks.review import describe_shortcuts, measure_shortcuts, number_rows, review_rows
from sapo_desktop.services.tasks.wizard.actions import HomeTasks
from sapo_desktop.services.tasks.wizard.interface import WizardAnswers
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import write_task
from sapo_swarm.tasks.own.import_rows import RowTable, read_table
from sapo_swarm.tasks.own.spec import ChoiceVerifier, NumberVerifier

TOWNS = ("Paris", "Rome", "Vienna", "Oslo")
ASKED = "Capital {n}?\nA) Paris\nB) Rome\nC) Vienna\nD) Oslo\nAnswer with the letter of the right option."


def of(folder: Path, rows: list[dict[str, object]], **wishes: str) -> TaskDraft:
    (folder / "quiz.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return draft_task(folder / "quiz.jsonl", ImportOptions(**wishes))  # type: ignore[arg-type]


def sheet(folder: Path, head: str, lines: list[str], **wishes: str) -> TaskDraft:
    (folder / "quiz.csv").write_text("\n".join([head, *lines]) + "\n", "utf-8")
    return draft_task(folder / "quiz.csv", ImportOptions(**wishes))  # type: ignore[arg-type]


def questions(found: TaskDraft) -> dict[str, str]:
    """Question -> answer of every row, both sides."""
    task = found.task
    return {task.spec.fill(row): row[task.spec.answer] for row in (*task.train, *task.held_out)}


def expected(count: int) -> dict[str, str]:
    return {ASKED.replace("{n}", str(n)): "ABCD"[n % 4] for n in range(count)}


@pytest.mark.parametrize(
    "head",
    [
        "question,A,B,C,D,answer",
        "Frage,Antwort A,Antwort B,Antwort C,Antwort D,richtige Antwort",
        "question,option_a,option_b,option_c,option_d,correct",
        "question,choice1,choice2,choice3,choice4,key",
        "question,1,2,3,4,label",
    ],
)
@pytest.mark.parametrize("kind", ["letter", "text", "bracket", "both"])
def test_options_of_columns_come_into_the_question_and_the_answer_is_their_letter(
    tmp_path: Path, head: str, kind: str
) -> None:
    def answer(n: int) -> str:
        letter, town = "ABCD"[n % 4], TOWNS[n % 4]
        return {"letter": letter.lower(), "text": town, "bracket": f"({letter})", "both": f"{letter}) {town}"}[kind]

    found = sheet(tmp_path, head, [f"Capital {n}?,{','.join(TOWNS)},{answer(n)}" for n in range(12)])
    assert questions(found) == expected(12)
    assert found.task.spec.verifier == (ChoiceVerifier(options=("A", "B", "C", "D")),)
    assert found.notes[0].startswith("Multiple choice: the options (columns ")


@pytest.mark.parametrize(
    ("choices", "answer"),
    [
        (list(TOWNS), [0, 1, 2, 3]),
        (list(TOWNS), [1, 2, 3, 4]),
        (list(TOWNS), ["A", "B", "C", "D"]),
        (list(TOWNS), list(TOWNS)),
        ({"text": list(TOWNS), "label": ["A", "B", "C", "D"]}, ["A", "B", "C", "D"]),
        ({"text": list(TOWNS), "label": ["1", "2", "3", "4"]}, ["1", "2", "3", "4"]),
        (dict(zip("ABCD", TOWNS, strict=True)), list(TOWNS)),
        ([{"label": c, "text": t} for c, t in zip("ABCD", TOWNS, strict=True)], ["A", "B", "C", "D"]),
        (str(list(TOWNS)), ["0", "1", "2", "3"]),
        ("Paris | Rome | Vienna | Oslo", ["A", "B", "C", "D"]),
        ("A) Paris B) Rome C) Vienna D) Oslo", ["A", "B", "C", "D"]),
        (["A. Paris", "B. Rome", "C. Vienna", "D. Oslo"], ["A", "B", "C", "D"]),
    ],
)
@pytest.mark.parametrize("name", ["choices", "options"])
def test_options_of_one_column_are_read_as_data_sets_write_them(
    tmp_path: Path, name: str, choices: object, answer: list[object]
) -> None:
    rows = [{"question": f"Capital {n}?", name: choices, "answerKey": answer[n % 4]} for n in range(12)]
    assert questions(of(tmp_path, rows)) == expected(12)


def test_the_summary_says_how_the_answer_was_read_and_what_is_not_used(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"id": n, "subject": "geo", "question": f"Capital {n}?", "choices": TOWNS, "answer": n % 4, "blank": ""}
        for n in range(12)
    ]
    found = of(tmp_path, rows)
    assert found.notes == (
        "Multiple choice: the options (column choices) stand below the question, each with its letter; "
        "column answer counts them from 0, so that 0 became A.",
        "Not used: columns id, subject.",
    )
    plain = sheet(tmp_path, "nr,question,answer", [f"{n},q{n}?,word {n}" for n in range(9)])
    assert plain.notes == ("Not used: column nr.",)


def test_numbers_among_the_options_are_texts_where_the_answers_say_so(tmp_path: Path) -> None:
    lines = [f"What is {n} + {n}?,{2 * n},{2 * n + 1},{2 * n + 2},{2 * n}" for n in range(20)]
    assert set(questions(sheet(tmp_path, "question,a,b,c,answer", lines)).values()) == {"A"}


def test_a_row_has_as_many_options_as_it_fills_and_keeps_the_letters_of_the_file(tmp_path: Path) -> None:
    lines = [f"Is {n} even?,yes,no,,b" for n in range(9)] + ["Which?,x,,z,c", "Odd?,x,y,z,e", "One?,x,,,a"]
    found = sheet(tmp_path, "question,A,B,C,answer", lines)
    assert "Which?\nA) x\nC) z\nAnswer with the letter of the right option." in questions(found)
    assert len(questions(found)) == 10
    assert found.table.problems == [
        "Row 12: the answer 'e' is none of its options.",
        "Row 13: it has fewer than two options.",
    ]


def test_columns_that_only_look_like_options_stay_out_and_are_named(tmp_path: Path) -> None:
    found = sheet(tmp_path, "question,a,b,answer", [f"Add them ({n}),{n},{n * n},{n + n * n + 500}" for n in range(12)])
    assert found.task.spec.prompt == "{question}"
    assert found.task.spec.verifier == (NumberVerifier(),)
    assert found.notes == (
        "Columns a, b look like options, but in 12 of 12 rows column answer names none of them.",
        "Not used: columns a, b.",
    )


def test_a_wording_of_ones_own_holds_the_options_where_it_says_so(tmp_path: Path) -> None:
    lines = [f"Capital {n}?,{','.join(TOWNS)},{'ABCD'[n % 4]},T{n}" for n in range(12)]
    head = "question,A,B,C,D,answer,text"
    worded = sheet(tmp_path, head, lines, prompt="{text}: {question}\n{options}")
    assert next(iter(questions(worded))).endswith("?\nA) Paris\nB) Rome\nC) Vienna\nD) Oslo")
    assert "Not used" not in " ".join(worded.notes)
    placed = sheet(tmp_path, head, lines, prompt="{question} {A}/{B}/{C}/{D}")
    assert "Capital 0? Paris/Rome/Vienna/Oslo" in questions(placed)
    assert placed.notes == ("Not used: column text.",)


def test_held_out_rows_and_row_numbers_follow_the_same_options(tmp_path: Path) -> None:
    head, line = "question,A,B,C,D,answer", "Capital {n}?,Paris,Rome,Vienna,Oslo,{n}"
    (tmp_path / "held.csv").write_text(f"{head}\nTown?,Paris,Rome,Vienna,Oslo,1\n", "utf-8")
    lines = [line.replace("{n}", str(n % 4)).replace("Capital", f"Capital {n},"[:-1]) for n in range(12)]
    found = sheet(tmp_path, head, lines, heldout=tmp_path / "held.csv")  # type: ignore[arg-type]
    assert [row["answer"] for row in found.task.held_out] == ["B"]
    assert rows_of(found.task, tmp_path / "quiz.csv").rows == found.table.rows
    assert read_table(tmp_path / "quiz.csv").numbers == found.table.numbers


def test_the_letter_alone_is_paid(tmp_path: Path) -> None:
    found = sheet(tmp_path, "question,A,B,answer", [f"Capital {n}?,Paris,Rome,B" for n in range(9)])
    task = task_of(*found.task.spec.verifier, row={"question": "q", "answer": "B"})
    paid = {text: judge(task, f"<answer>{text}</answer>", "B") for text in ("b", "(B)", "A", "A or B", "Rome", "C")}
    assert paid == {"b": 1.0, "(B)": 1.0, "A": 0.0, "A or B": 0.0, "Rome": 0.0, "C": 0.0}


def test_words_that_every_question_shares_make_no_two_rows_alike(tmp_path: Path) -> None:
    lines = [f"Is {word}land in Italy?,true,false,{'ab'[len(word) % 2]}" for word in "abcdefghijklmnopqrstuvwxyz" + "ß"]
    found = sheet(tmp_path, "question,a,b,answer", lines)
    assert (len(found.task.train), len(found.task.held_out)) == (22, 5)
    assert "Leak" not in "\n".join(review_rows(found.task, number_rows(found.task)))


def science(n: int) -> dict[str, object]:
    return {"distractor3": "Oslo", "question": f"Capital {n}?", "distractor1": TOWNS[(n + 1) % 3], "support": f"s{n}",
            "correct_answer": TOWNS[n % 3], "distractor2": TOWNS[(n + 2) % 3]}  # fmt: skip


def test_a_right_option_and_distractors_become_options_in_an_order_that_does_not_tell_which_is_right(
    tmp_path: Path,
) -> None:
    """As SciQ has them. The order follows from the texts alone: these rows have the same four, and so one order."""
    found = of(tmp_path, [science(n) for n in range(12)])
    assert found.task.spec.verifier == (ChoiceVerifier(options=("A", "B", "C", "D")),)
    rows = {row["question"]: row for row in (*found.task.train, *found.task.held_out)}
    (order,) = {row["options"] for row in rows.values()}
    assert {line[3:] for line in order.split("\n")} == set(TOWNS)
    for n in range(12):
        assert f"{rows[f'Capital {n}?']['correct_answer']}) {TOWNS[n % 3]}" in order.split("\n")
    assert found.notes == (
        "Multiple choice: column correct_answer (the right option) and columns distractor3, distractor1, distractor2 (wrong "
        "ones) stand below the question, mixed by their texts, each with its letter.",
        "Not used: column support.",
    )
    assert rows_of(found.task, tmp_path / "quiz.jsonl").rows == found.table.rows
    others = of(tmp_path, [science(n) | {"distractor3": f"Town {n}"} for n in range(60)])
    assert set(questions(others).values()) == set("ABCD")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ({"incorrect_answers": ["Rome", "Oslo"]}, "correct_answer"),
        ({"distractors": "Rome; Oslo"}, "answer"),
        ({"Incorrect Answer 1": "Rome", "Incorrect Answer 2": "Oslo"}, "Correct Answer"),
        ({"wrong_answer_a": "Rome", "wrong_answer_b": "Oslo"}, "correct"),
    ],
)
def test_wrong_options_are_found_under_the_names_that_data_sets_give_them(
    tmp_path: Path, wrong: dict[str, object], right: str
) -> None:
    rows = [{"category": f"c{n}", "question": f"Capital {n}?", right: "Paris", **wrong} for n in range(9)]
    found = of(tmp_path, rows)
    (shown,) = {row["options"] for row in found.task.train}
    assert {line[3:] for line in shown.split("\n")} == {"Paris", "Rome", "Oslo"}


def test_a_row_whose_answer_is_a_distractor_too_or_that_has_none_is_named(tmp_path: Path) -> None:
    rows = [science(n) for n in range(9)]
    rows[2]["distractor1"] = f" {rows[2]['correct_answer']} "
    rows[3] |= dict.fromkeys(("distractor1", "distractor2", "distractor3"), "")
    assert of(tmp_path, rows).table.problems == [
        "Row 3: the answer 'Vienna' stands among its wrong options.",
        "Row 4: it has fewer than two options.",
    ]
    asked = of(tmp_path, [science(n) for n in range(9)], prompt="{support} {question}")
    assert asked.task.spec.verifier != (ChoiceVerifier(options=("A", "B", "C", "D")),)


async def test_the_wizard_proposes_the_same_however_often_it_looks(tmp_path: Path) -> None:
    home = Home(tmp_path, tmp_path / "data", tmp_path, tmp_path, tmp_path)
    lines = [f"{n},Capital {n}?,{','.join(TOWNS)},{'ABCD'[n % 4]}" for n in range(12)]
    (tmp_path / "quiz.csv").write_text("\n".join(["nr,Question,A,B,C,D,Answer", *lines]), "utf-8")
    actions = HomeTasks(home)
    first = await actions.look(WizardAnswers(str(tmp_path / "quiz.csv")))
    assert (first.answers.question, first.answers.answer, first.answers.verifier) == ("question", "answer", "choice")
    assert first.columns == ("nr", "question", "a", "b", "c", "d", "answer")
    assert first.rows[0][0].endswith("? A) Paris B) Rome C) Vienna D) Oslo")
    assert "\n".join(first.asked).endswith("D) Oslo\nAnswer with the letter of the right option.")
    assert "Not used: column nr." in first.said
    assert await actions.look(first.answers) == first


async def test_the_chance_of_a_guess_is_told_beside_the_best_constant_answer(tmp_path: Path) -> None:
    lines = [f"Capital {n}?,{','.join(TOWNS[:3])},{'ABC'[n % 3]}" for n in range(30)]
    write_task(sheet(tmp_path, "question,A,B,C,answer", lines).task, tmp_path / "quiz")
    with library_in(tmp_path):
        async with Scorer() as scorer:
            found = await measure_shortcuts(library.load_task("quiz"), scorer, [f"row {n}" for n in range(30)])
    assert found.chance == 1 / 3
    assert "held-out rows (a guess: 33.3 %)." in describe_shortcuts(found)[0]
    assert found.wrong == ()


CELLS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["A", "(b)", "0", "4", "2.0", "[]", "[1, [2]]", '{"text": ["x", null], "label": [1]}', "A) x B) y", "a|a"]
    ),
    st.lists(st.text(max_size=5), max_size=30).map(json.dumps),
    st.lists(st.text(max_size=5), max_size=5).map(str),
)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=12), st.sampled_from(["listed", "own", "wrong"]))
def test_any_cells_become_rows_whose_letter_is_among_their_options_or_a_sentence(
    rows: list[tuple[str, str, str]], kind: str
) -> None:
    names = {"listed": ("choices", "topic"), "own": ("a", "b"), "wrong": ("wrong_1", "wrong_2")}[kind]
    names = (*names, "answer")
    table = RowTable(
        columns=["question", *names],
        rows=[{"question": "q", **dict(zip(names, row, strict=True))} for row in rows],
        numbers=[*range(len(rows))],
    )
    found = find_options(table, "", "")
    if found is None:
        return
    made = put_in(table, found)
    assert len(made.rows) + len(made.problems) == len(rows)
    for row in made.rows:
        letters = [line[:3] for line in row["options"].split("\n")]
        assert not row[found.answer] or f"{row[found.answer]}) " in letters
        assert letters == sorted(set(letters))
