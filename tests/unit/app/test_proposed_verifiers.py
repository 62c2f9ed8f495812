"""Which verifier a file's answers get: one that calls them right, pays nothing else, and says what it takes for granted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.declared import judge
from tests.support.own_tasks import task_of

from sapo_desktop.errors import UsageError
from sapo_desktop.services.tasks import looking
from sapo_desktop.services.tasks.proposal.columns import best_verifier, propose_verifiers
from sapo_desktop.services.tasks.proposal.draft import ImportOptions, TaskDraft, draft_task
from sapo_swarm.tasks.own.spec import ExactVerifier, NumberVerifier, Verifier


def of(folder: Path, answers: list[str], **wishes: str) -> TaskDraft:
    """A draft of a spreadsheet's file with these answers."""
    lines = "".join(f"question {n}?;{answer}\r\n" for n, answer in enumerate(answers))
    (folder / "codes.csv").write_bytes(f"\ufeffquestion;answer\r\n{lines}".encode())
    return draft_task(folder / "codes.csv", ImportOptions(**wishes))  # type: ignore[arg-type]


def paid(found: TaskDraft, truth: str, answer: str) -> float:
    task = task_of(*found.task.spec.verifier, row={"question": "q", "answer": truth})
    return judge(task, f"<answer>{answer}</answer>", truth)


@pytest.mark.parametrize(
    ("answers", "truth", "wrong"),
    [
        ([f"47{n}{'AB'[n % 2]}" for n in range(11, 40)], "4711A", ["4711", "4708A", "4713A", "4711B"]),
        ([f"{n}50 EUR" for n in range(12, 40)], "1250 EUR", ["1251 EUR", "1249", "1250.5"]),
        ([f"{n:05}" for n in range(1067, 1100)], "01067", ["1067", "1068", "001067"]),
        ([f"{n} Berlin" if n % 2 else f"{n} Potsdam" for n in range(10115, 10140)], "10115 Berlin", ["10115"]),
        ([f"{n},5" for n in range(40)], "3,5", ["3", "35", "3,56", "4", "3.5.0"]),
        ([f"{n},50 €" for n in range(12, 40)], "12,50 €", ["12,60 €", "1250", "12"]),
        (["0,025", "0,150", "1,250"] * 9, "0,025", ["25", "0,026", "0,25"]),
        (["1.234,5", "17", "1.250"] * 9, "1.250", ["1,25", "1249"]),
        (["1.5 kg", "2.25 kg"] * 9, "1.5 kg", ["1.51 kg", "1.5 g"]),
        (["-.5", ".25"] * 9, ".25", ["25", "-.25"]),
        (["٣٥", "١٢"] * 9, "٣٥", ["٣٦"]),
        (["3,5", "3.5"] * 9, "3,5", ["35"]),
    ],
)
def test_each_answer_of_a_file_earns_its_reward_and_what_is_near_it_nothing(
    tmp_path: Path, answers: list[str], truth: str, wrong: list[str]
) -> None:
    found = of(tmp_path, answers)
    assert [paid(found, answer, answer) for answer in answers] == [1.0] * len(answers)
    assert {answer: paid(found, truth, answer) for answer in wrong} == dict.fromkeys(wrong, 0.0)


@pytest.mark.parametrize(
    ("truths", "verifier"),
    [
        (["4711A", "4737B"], ExactVerifier()),
        (["01067", "10115"], ExactVerifier()),
        (["12 Birnen", "3 Birnen"], NumberVerifier(units=("Birnen",))),
        (["12 Birnen", "3 Äpfel", "4 Kirschen"], ExactVerifier()),
        (["5 km", "1.5 m", "2km"], NumberVerifier(abs=0.05, units=("km", "m"))),
        (["12,50 €", "3,20 €"], NumberVerifier(abs=0.005, units=("€",), decimal=",")),
        (["0,5", "39,5"], NumberVerifier(abs=0.05, decimal=",")),
        (["1.234.567", "12"], NumberVerifier(decimal=",")),
        (["1,234,567", "12"], NumberVerifier()),
        (["1,250.5", "12"], NumberVerifier(abs=0.05)),
        (["0", "-0", "00:30"], ExactVerifier()),
        (["5²", "3²"], ExactVerifier()),
        (["5 m²", "30 cm²"], NumberVerifier(units=("cm²", "m²"))),
    ],
)
def test_a_verifier_takes_numbers_as_they_are_written(truths: list[str], verifier: Verifier) -> None:
    assert best_verifier(truths)[0] == verifier


def test_one_sentence_says_how_a_number_is_read_that_can_be_read_in_two_ways(tmp_path: Path) -> None:
    found = of(tmp_path, [f"{n},250" for n in range(1, 30)])
    taken = 'takes the comma in 1,250 for one between thousands (if not: decimal = "," in task.toml)'
    assert found.reason == f"the answers are whole numbers; {taken}"
    assert "takes" not in of(tmp_path, [f"{n},25" for n in range(1, 30)]).reason


def test_tolerance_units_and_decimal_mark_stand_beside_judged_by(tmp_path: Path) -> None:
    found = of(tmp_path, [f"{n},5 kg" for n in range(30)])
    assert 'Judged by: number, abs 0.05, units kg, decimal mark "," (the answers are numbers with a unit)' in "\n".join(
        looking.describe_task(found.task, found.reason)
    )


def test_a_verifier_that_calls_the_files_own_answers_wrong_is_not_on_offer(tmp_path: Path) -> None:
    assert {one.kind for one in propose_verifiers(["a, b", "b, a, b", "c, c", "d"])} == {
        "exact",
        "choice",
        "list",
        "set",
    }
    assert {one.kind for one in propose_verifiers(["4711A", "4737B"])} >= {"exact", "number"}
    with pytest.raises(UsageError, match="The file's own answers are wrong by 'json_equal'"):
        of(tmp_path, [f"word {n}" for n in range(30)], verifier="json_equal")


def test_words_of_difficulty_that_make_no_levels_are_left_alone_and_told_of(tmp_path: Path) -> None:
    lines = "".join(f"{n} + {n}?,{2 * n},class {n % 12}\n" for n in range(60))
    (tmp_path / "t.csv").write_text("question,answer,level\n" + lines, "utf-8")
    found = draft_task(tmp_path / "t.csv", ImportOptions())
    assert (found.task.spec.difficulty, len(found.task.train) + len(found.task.held_out)) == ("", 60)
    assert found.notes[0].startswith("No levels of difficulty: Column level has 12 different words")


def test_rows_without_a_level_are_kept(tmp_path: Path) -> None:
    rows = [
        json.dumps({"question": f"{n} + 1?", "answer": n + 1} | ({"level": n % 3} if n % 2 else {})) for n in range(60)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(rows), "utf-8")
    found = draft_task(tmp_path / "t.jsonl", ImportOptions())
    assert (found.task.spec.difficulty, len(found.task.train) + len(found.task.held_out)) == ("", 60)
    assert found.notes == ("No levels of difficulty: column level is empty in 30 of 60 rows.",)
    every = [row.replace("1?", "2?") for row in rows if "level" in row]
    (tmp_path / "t.jsonl").write_text("\n".join(every), "utf-8")
    assert (draft_task(tmp_path / "t.jsonl", ImportOptions()).task.spec.difficulty, found.task.problems) == (
        "level",
        (),
    )


@pytest.mark.parametrize("answers", [["f", "f'", "g", "g'"], ["(a)", "a", "b"], ["125", "0,125", "3"]])
def test_no_proposed_verifier_calls_two_answers_of_the_file_equal(answers: list[str]) -> None:
    for one in propose_verifiers(answers * 20):
        paid = [judge(task_of(one.verifier), f"<answer>{a}</answer>", t) for a in answers for t in answers if a != t]
        assert not any(paid), one
