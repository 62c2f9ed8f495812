"""Worked examples in the questions of a task."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support.own_tasks import library_in, write_folder

from sapo_swarm.tasks.catalogue import held_out
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import OwnTask, read_task
from sapo_swarm.tasks.own.spec import BadTask
from sapo_swarm.tasks.questions import generate_entry
from sapo_swarm.types import TaskRef

TOML = '''shots = 2
prompt = """Sort this message into one of these categories: billing, delivery.

Message: {message}

Reply with the category only."""
answer = "category"
extract = "last_line"

[[verifier]]
kind = "choice"
'''
ROWS = [{"message": f"note {n} is about it", "category": ("billing", "delivery")[n % 2]} for n in range(40)]


def sorted_messages(folder: Path, rows: list[dict[str, str]] = ROWS) -> OwnTask:
    return read_task(write_folder(folder / "sorting", TOML, rows, [{"message": "late parcel", "category": "delivery"}]))


def test_a_question_shows_the_instruction_once_then_rows_of_several_answers_then_what_is_asked(tmp_path: Path) -> None:
    task = sorted_messages(tmp_path)
    blocks = task.question(task.held_out[0]).split("\n\n")
    assert blocks[0] == "Sort this message into one of these categories: billing, delivery."
    assert [block.splitlines()[0] for block in blocks[1:4]] == ["Example:", "Example:", "Now:"]
    assert {block.splitlines()[2] for block in blocks[1:3]} == {"Category: billing", "Category: delivery"}
    assert blocks[3:] == ["Now:\nMessage: late parcel", "Reply with the category only."]


def test_examples_are_training_rows_and_none_is_shown_with_its_own_question(tmp_path: Path) -> None:
    task = sorted_messages(tmp_path)
    assert all(row in task.train for row in task.examples)
    for row in (*task.train, *task.held_out):
        assert task.question(row).count("Example:") == 2
        assert task.question(row).count(f"Message: {row['message']}\n") == 1


def test_a_near_duplicate_is_no_example(tmp_path: Path) -> None:
    long = "the parcel was sent on monday to the old harbour and came back because nobody there had ordered any of it"
    rows = [{"message": f"{long} at {word}", "category": "delivery"} for word in ("noon", "dawn", "dusk")]
    task = sorted_messages(tmp_path, rows)
    assert "Example:" not in task.question(task.train[0])


def test_the_same_rows_are_shown_whatever_their_order(tmp_path: Path) -> None:
    mixed = ROWS[:]
    random.Random(1).shuffle(mixed)
    one, other = sorted_messages(tmp_path / "a"), sorted_messages(tmp_path / "b", mixed)
    assert one.question(one.held_out[0]) == other.question(other.held_out[0])


def test_what_a_node_asks_is_the_question_with_its_examples(tmp_path: Path) -> None:
    task = sorted_messages(tmp_path)
    with library_in(tmp_path):
        asked = generate_entry(held_out("sorting", "own", 0))[1]
        trained = generate_entry(TaskRef("sorting", "own", 3, 0, library.load_task("sorting").generator))[1]
    assert asked["question"] == task.question(task.held_out[0])
    assert (trained["question"], trained["answer"]) == (task.question(task.train[3]), "delivery")


@pytest.mark.parametrize("changed", ['extract = "tags"', 'extract = "whole"\n[[verifier]]\nkind = "judged"'])
def test_a_task_without_answers_to_show_says_so(tmp_path: Path, changed: str) -> None:
    toml = f"shots = 1\n{changed}\n"
    folder = write_folder(tmp_path / "t", toml, [{"question": "q", "answer": "a"}], [{"question": "p", "answer": "a"}])
    with pytest.raises(BadTask, match="shots = 1 shows rows with their right answers"):
        read_task(folder)
