"""Files that are no UTF-8: nothing is lost, and it is said what they were taken for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.own_tasks import sums

from sapo_desktop.services.tasks.proposal.draft import ImportOptions, TaskDraft, draft_task, rows_of
from sapo_swarm.tasks.own.folder import read_task
from sapo_swarm.tasks.own.import_rows import read_table, read_text
from sapo_swarm.tasks.own.spec import BadTask

SHEET = "Frage;Lösung\r\n" + "".join(f"Wie heißt Übung {n}?;Größe – {n} €\r\n" for n in range(9))
TAKEN = (
    "quiz.csv is not UTF-8 and was read as Windows-1252 (cp1252). If letters are wrong, name its encoding "
    "(--encoding mac_roman) or save it as UTF-8."
)


def of(folder: Path, content: bytes, **wishes: object) -> TaskDraft:
    (folder / "quiz.csv").write_bytes(content)
    return draft_task(folder / "quiz.csv", ImportOptions(**wishes))  # type: ignore[arg-type]


def test_a_sheet_that_excel_saved_on_windows_keeps_every_row_and_says_how_it_was_read(tmp_path: Path) -> None:
    found = of(tmp_path, SHEET.encode("cp1252"))
    assert found.task.spec.answer == "losung"
    assert found.table.rows[3] == {"frage": "Wie heißt Übung 3?", "losung": "Größe – 3 €"}
    assert (len(found.table.rows), found.table.problems, found.notes) == (9, [], (TAKEN,))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_byte_order_mark_is_read_as_what_it_is(tmp_path: Path, encoding: str) -> None:
    """It was refused for the control character U+0000 in a column q_u_e_s_t_i_o_n."""
    found = of(tmp_path, SHEET.encode(encoding))
    assert (len(found.table.rows), found.table.rows[3]["losung"], found.notes) == (9, "Größe – 3 €", ())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_what_says_its_encoding_itself_needs_no_words(tmp_path: Path, encoding: str) -> None:
    found = of(tmp_path, SHEET.encode(encoding))
    assert (len(found.table.rows), found.notes) == (9, ())


@pytest.mark.parametrize("encoding", ["cp1250", "mac_roman", "cp850", "utf-16-le", "utf-8"])
def test_the_person_knows_better(tmp_path: Path, encoding: str) -> None:
    """For both files, and for the row numbers that are told later."""
    text = SHEET if encoding != "cp850" else SHEET.replace("–", "-").replace("€", "E")
    (tmp_path / "held.csv").write_bytes(text.replace("Übung", "Frage").encode(encoding))
    found = of(tmp_path, text.encode(encoding), encoding=encoding, heldout=tmp_path / "held.csv")
    assert found.table.rows[3]["frage"] == "Wie heißt Übung 3?"
    assert found.task.held_out[3]["frage"] == "Wie heißt Frage 3?"
    assert found.notes == ()
    assert rows_of(found.task, tmp_path / "quiz.csv", encoding).rows == found.table.rows


def test_an_encoding_that_is_none_is_named(tmp_path: Path) -> None:
    for name in ("latein", "base64", "undefined", "a\0b"):
        with pytest.raises(BadTask, match="no encoding"):
            of(tmp_path, SHEET.encode(), encoding=name)


def test_one_broken_row_of_a_utf_8_file_is_left_out_and_the_others_stay_as_they_are(tmp_path: Path) -> None:
    table = read_table(of_bytes(tmp_path, "a,b\nö,1\nü,2\nä,3\n".encode() + b"caf\xe9,4\n"))
    assert [row["a"] for row in table.rows] == ["ö", "ü", "ä"]
    assert table.problems[0].startswith("Row 5: column a holds bytes that are no UTF-8 text.")
    assert table.encoding == ""
    literal = read_table(of_bytes(tmp_path, "a,b\nx\ufffdy,1\nz,2\n".encode()))
    assert (literal.encoding, literal.numbers) == ("", [3])


def test_the_held_out_file_is_told_of_too(tmp_path: Path) -> None:
    (tmp_path / "held.csv").write_bytes(SHEET.encode("cp1252"))
    assert of(tmp_path, SHEET.encode(), heldout=tmp_path / "held.csv").notes == (TAKEN.replace("quiz", "held"),)


def of_bytes(folder: Path, content: bytes) -> Path:
    (folder / "rows.csv").write_bytes(content)
    return folder / "rows.csv"


@given(st.binary(max_size=200))
def test_any_bytes_become_a_text(content: bytes) -> None:
    text, taken = read_text(content)
    assert isinstance(text, str)
    assert taken in ("", "cp1252")


def test_a_task_toml_that_was_saved_in_another_encoding_is_not_read_with_holes(tmp_path: Path) -> None:
    folder = sums(tmp_path / "mine")
    toml = 'name = "mine"\nprompt = "Löse: {question}"\n'
    (folder / "task.toml").write_bytes(toml.encode("cp1252"))
    with pytest.raises(BadTask, match=r"task\.toml holds bytes that are no UTF-8 text\. Save it as UTF-8"):
        read_task(folder)
    (folder / "task.toml").write_bytes(toml.encode())
    assert read_task(folder).spec.prompt == "Löse: {question}"
