"""Files of rows as people have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.tasks.own.import_rows import MAX_CELL, MAX_COLUMNS, RowTable, read_jsonl, read_table
from sapo_swarm.tasks.own.spec import BadTask


def read(folder: Path, content: str | bytes, name: str = "rows.csv") -> RowTable:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_table(path)


def test_a_byte_order_mark_is_no_part_of_the_first_heading(tmp_path: Path) -> None:
    assert read(tmp_path, b"\xef\xbb\xbfQuestion,Answer\n1,2\n").columns == ["question", "answer"]


def test_utf_16_as_spreadsheets_save_it_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, "question\tanswer\nwhat\tüß\n".encode("utf-16"), "x.tsv").rows == [
        {"question": "what", "answer": "üß"}
    ]


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_separator_is_found_in_the_first_row(tmp_path: Path, mark: str) -> None:
    assert read(tmp_path, f"question{mark}answer\nhow many{mark}3\n").rows == [{"question": "how many", "answer": "3"}]


def test_a_quoted_cell_holds_separators_quotes_and_line_breaks(tmp_path: Path) -> None:
    table = read(tmp_path, 'question,answer\n"a, ""b""\nc",1\nd,2\n')
    assert [row["question"] for row in table.rows] == ['a, "b"\nc', "d"]
    assert table.numbers == [2, 3]


def test_a_quote_that_is_never_closed_costs_its_own_row_only(tmp_path: Path) -> None:
    table = read(tmp_path, 'question,answer\na,1\n"b,2\n' + "".join(f"c{n},3\n" for n in range(100)))
    assert table.problems == ["Row 3: a quote is opened and not closed."]
    assert len(table.rows) == 101
    assert table.numbers[:2] == [2, 4]


@pytest.mark.parametrize(("lines", "kept"), [(60, 2), (200_000, 1)])
def test_a_quoted_cell_of_many_lines_is_one_row_and_no_line_inside_it_ever_becomes_one(
    tmp_path: Path, lines: int, kept: int
) -> None:
    table = read(tmp_path, 'question,answer\n"' + "a,b\n" * lines + '",1\ngood,2\n')
    assert [row["answer"] for row in table.rows] == ["1", "2"][-kept:]
    too_long = [f"Row 2: column question has 800,000 characters; up to {MAX_CELL:,} are read."]
    assert table.problems == too_long[: 2 - kept]


def test_many_quotes_without_an_end_are_read_in_linear_time(tmp_path: Path) -> None:
    table = read(tmp_path, "question,answer\n" + 'x,"y\n' * 20_001)
    assert not table.rows
    assert len(table.problems) + table.more == 20_001


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("a,b,c", "Row 2: 3 cells under 2 headings. Is a quote or a separator missing?"),
        ("a\x1b[2J,b", "Row 2: column question holds the control character U+001B."),
        ("a\u202eb,c", "Row 2: column question holds the control character U+202E."),
        ("x" * 20_000 + ",b", f"Row 2: column question has 20,000 characters; up to {MAX_CELL:,} are read."),
    ],
)
def test_a_row_that_cannot_be_used_is_a_sentence_with_its_number(tmp_path: Path, line: str, sentence: str) -> None:
    table = read(tmp_path, f"question,answer\n{line}\ngood,1\n")
    assert table.problems == [sentence]
    assert table.numbers == [3]


def test_a_line_of_jsonl_that_is_none_is_a_sentence_with_its_number() -> None:
    table = read_jsonl('{"a": 1}\n{"a": \n\n[1]\n{"a": NaN}\n{"a": 2}\n')
    assert [sentence.partition(":")[0] for sentence in table.problems] == ["Row 2", "Row 4", "Row 5"]
    assert table.numbers == [1, 6]


def test_what_is_wrong_with_a_line_of_jsonl_stands_behind_its_number(tmp_path: Path) -> None:
    """Its row is its line; the character is counted in that line."""
    assert read_jsonl('{"a": 1}\n{"a" 2}\nx\n').problems == [
        "Row 2: this line is not valid JSON: character 6, expecting ':' delimiter.",
        "Row 3: this line is not valid JSON: character 1, expecting value.",
    ]
    with pytest.raises(BadTask, match=r"^It begins with \[ but is no JSON list: line 2, character 6, expecting ':'"):
        read_jsonl('[{"a": 1},\n{"a" 2}]')


@pytest.mark.parametrize("name", ["my.csv", "my.tsv", "my.jsonl", "my.json"])
@pytest.mark.parametrize("content", [b"", b" \n\n", b"\xef\xbb\xbf"])
def test_of_a_file_without_content_it_is_said_that_it_is_empty(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadTask, match=rf"^{name} is empty\. It needs a row for each question"):
        read_table(tmp_path / name)


def test_deep_json_is_a_sentence_and_no_crash() -> None:
    assert "nested too deep" in read_jsonl('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}").problems[0]


def test_too_many_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTask, match="columns"):
        read(tmp_path, ",".join(f"c{n}" for n in range(MAX_COLUMNS + 1)) + "\n")


def test_headings_that_repeat_or_are_empty_get_names_of_their_own(tmp_path: Path) -> None:
    assert len(set(read(tmp_path, "a,a,,A b,1\n1,2,3,4,5\n").columns)) == 5


@pytest.mark.timeout(30)
def test_long_headings_that_end_like_a_name_made_here_get_names_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"{'a' * 40},{'a' * 36}_3,{'a' * 40},{'a' * 41}\n1,2,3,4\n", "utf-8")
    columns = read_table(tmp_path / "t.csv").columns
    assert columns == ["a" * 40, f"{'a' * 36}_3", f"{'a' * 36}_4", f"{'a' * 36}_5"]


def test_a_link_and_a_pipe_are_no_files_of_rows(tmp_path: Path) -> None:
    import os

    (tmp_path / "real.csv").write_text("a,b\n1,2\n")
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    for name in ("link.csv", "pipe.csv"):
        with pytest.raises(BadTask):
            read_table(tmp_path / name)


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b"]), st.text(alphabet="xyz \"',;\n", max_size=20), min_size=2)))
def test_rows_written_as_jsonl_are_read_as_they_were(rows: list[dict[str, str]]) -> None:
    table = read_jsonl("".join(json.dumps(row) + "\n" for row in rows))
    assert table.rows == rows
    assert not table.problems


@given(st.binary(max_size=400))
def test_any_bytes_are_rows_or_a_sentence(content: bytes) -> None:
    from sapo_swarm.tasks.own.import_rows import decode_text

    try:
        table = read_jsonl(decode_text(content))
    except BadTask:
        return
    assert len(table.rows) == len(table.numbers)
