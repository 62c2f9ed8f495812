"""Multiple choice whose answers are numbers: of which kind they are, the file as a whole says."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sapo_desktop.services.tasks.proposal.draft import ImportOptions, TaskDraft, draft_task

HEADS = ("option1,option2,option3,option4", "1,2,3,4", "A,B,C,D", "option_a,option_b,option_c,option_d")


def sheet(folder: Path, head: str, lines: list[str]) -> TaskDraft:
    (folder / "quiz.csv").write_text("\n".join([f"question,{head},answer", *lines]) + "\n", "utf-8")
    return draft_task(folder / "quiz.csv", ImportOptions())


def keys(found: TaskDraft) -> dict[str, str]:
    return {row["question"]: row["answer"] for row in (*found.task.train, *found.task.held_out)}


def sums(rows: int) -> list[tuple[str, list[int], int]]:
    """Question, its options, and the place of the right one."""
    rng = random.Random(0)
    found = []
    for n in range(rows):
        a, b = rng.randint(0, 6), rng.randint(0, 6)
        options = [a + b, *rng.sample([x for x in range(13) if x != a + b], 3)]
        rng.shuffle(options)
        found.append((f"({n}) {a} + {b}?", options, options.index(a + b)))
    return found


@pytest.mark.parametrize("head", HEADS)
def test_answers_that_are_the_texts_of_numbered_options_are_keyed_by_their_text_also_where_the_text_is_a_columns_number(
    tmp_path: Path, head: str
) -> None:
    asked = sums(200)
    lines = [f"{question},{','.join(map(str, options))},{options[place]}" for question, options, place in asked]
    found = sheet(tmp_path, head, [*lines, "2 + 1?,6,10,8,5,3"])
    assert keys(found) == {question: "ABCD"[place] for question, _, place in asked}
    assert found.notes[0].endswith("column answer holds the text of the right one, which became its letter.")
    assert found.table.problems == ["Row 202: the answer '3' is none of its options."]


@pytest.mark.parametrize("head", HEADS)
def test_answers_that_count_the_options_stay_numbers_among_numbers(tmp_path: Path, head: str) -> None:
    asked = sums(200)
    found = sheet(tmp_path, head, [f"{q},{','.join(map(str, options))},{place + 1}" for q, options, place in asked])
    assert keys(found) == {question: "ABCD"[place] for question, _, place in asked}
    assert "row" not in found.notes[0]


def test_letters_that_are_options_are_texts_where_the_answers_say_so(tmp_path: Path) -> None:
    found = sheet(tmp_path, "A,B,C,D", ["Before B?,C,A,D,X,A", "After B?,X,A,D,C,C", "After E?,B,A,F,C,F"])
    assert keys(found) == {"Before B?": "B", "After B?": "D", "After E?": "C"}


@pytest.mark.parametrize("head", HEADS)
def test_an_answer_that_may_be_a_text_or_a_number_in_every_row_is_a_text_and_the_summary_says_so(
    tmp_path: Path, head: str
) -> None:
    lines = ["1 + 1?,4,3,2,1,2", "4 - 1?,1,2,3,4,3", "4 - 3?,4,2,3,1,1"]
    found = sheet(tmp_path, head, lines)
    assert sorted(keys(found).items()) == [("1 + 1?", "C"), ("4 - 1?", "C"), ("4 - 3?", "D")]
    assert found.notes[0].endswith(
        "became its letter. In 2 rows it is also the number of another one; if that is meant, write letters."
    )
