"""Columns and cells of files that no program for machine learning wrote."""

from __future__ import annotations

import json
import uuid
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from sapo_desktop.errors import UsageError
from sapo_desktop.services.tasks.proposal.draft import ImportOptions, TaskDraft, draft_task
from sapo_swarm.tasks.own.folder import read_task, write_task
from sapo_swarm.tasks.own.import_rows import cell_text, read_jsonl, read_table

CHINESE = "".join(f"{n} 加 1 等于几?,{n + 1}\n" for n in range(30))


def drafted(path: Path, content: str, **wishes: object) -> TaskDraft:
    path.write_text(content, "utf-8")
    return draft_task(path, ImportOptions(**wishes))  # type: ignore[arg-type]


def test_columns_named_in_another_script_are_found_by_their_own_names(tmp_path: Path) -> None:
    found = drafted(tmp_path / "sums.csv", "问题,答案\n" + CHINESE, question="问题", answer="答案")
    assert (found.task.spec.prompt, found.task.spec.answer) == ("{column_1}", "column_2")
    assert found.task.train[0]["column_2"] == str(int(found.task.train[0]["column_1"].split()[0]) + 1)
    write_task(found.task, tmp_path / "sums")
    assert read_task(tmp_path / "sums").digest == found.task.digest
    with pytest.raises(UsageError, match=r"There is no column '回答' for the answer\. The file has: 问题, 答案"):
        drafted(tmp_path / "sums.csv", "问题,答案\n" + CHINESE, answer="回答")


def test_a_prompt_may_hold_the_columns_as_the_file_calls_them(tmp_path: Path) -> None:
    found = drafted(tmp_path / "sums.csv", "Вопрос,Ответ\n" + CHINESE, prompt="Реши: {Вопрос}", answer="ответ")
    assert (found.task.spec.prompt, found.task.spec.answer) == ("Реши: {column_1}", "column_2")


def test_keys_of_jsonl_in_another_script_stay_apart_and_guessed_ones_are_named_as_in_the_file(tmp_path: Path) -> None:
    rows = [json.dumps({"Σ": n, "问题": f"{n} 加 1?", "答案": n + 1}) for n in range(30)]
    found = drafted(tmp_path / "数学.jsonl", "\n".join(rows))
    assert found.task.spec.name == "my_task"
    assert found.guessed == "Question: column 问题 (guessed). Answer: column 答案 (guessed)."
    assert found.table.rows[1] == {"column_1": "1", "column_2": "1 加 1?", "column_3": "2"}


def test_held_out_rows_whose_columns_stand_in_another_order_are_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("答案,问题\n101,100 加 1 等于几?\n", "utf-8")
    wishes = {"question": "问题", "answer": "答案", "heldout": tmp_path / "other.csv"}
    found = drafted(tmp_path / "sums.csv", "问题,答案\n" + CHINESE, **wishes)
    assert found.task.held_out == ({"column_1": "100 加 1 等于几?", "column_2": "101"},)


def test_keys_that_differ_in_case_alone_are_two_columns_where_one_row_holds_both() -> None:
    table = read_jsonl('{"Answer": 1, "answer": 2}\n{"answer": 3, "Answer": 4}\n')
    assert table.rows == [{"answer_1": "1", "answer": "2"}, {"answer": "3", "answer_1": "4"}]
    assert read_jsonl('{"Answer": 1}\n{"answer": 2}\n').rows == [{"answer": "1"}, {"answer": "2"}]


def test_a_heading_is_a_comma_list_and_the_rows_tell_the_separator(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("Aufgabe (mm, cm, km);Ergebnis\n1 cm in mm?;10\n2 cm in mm?;20\n", "utf-8")
    table = read_table(tmp_path / "a.csv")
    assert (table.columns, table.rows[0]["ergebnis"], table.problems) == (["aufgabe_mm_cm_km", "ergebnis"], "10", [])


@pytest.mark.parametrize("mark", [";", "\t", "~"])
def test_a_first_line_that_tells_excel_the_separator_is_no_heading(tmp_path: Path, mark: str) -> None:
    (tmp_path / "a.csv").write_text(f"\ufeffsep={mark}\nquestion{mark}answer\na,b?{mark}1\n", "utf-8")
    assert read_table(tmp_path / "a.csv").rows == [{"question": "a,b?", "answer": "1"}]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (date(2024, 5, 12), "2024-05-12"),
        (datetime(2024, 5, 12, 8, 30), "2024-05-12 08:30:00"),
        (Decimal("12.50"), "12.50"),
        (Decimal("0E-10"), "0.0000000000"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ("grün".encode(), "grün"),
        (b"\xe9", "\ufffd"),
        (1.5, "1.5"),
        (True, "true"),
        ([date(2024, 5, 12)], '["2024-05-12"]'),
    ],
)
def test_a_cell_of_a_parquet_file_is_its_text_without_quotes(value: object, text: str) -> None:
    assert cell_text(value) == text
