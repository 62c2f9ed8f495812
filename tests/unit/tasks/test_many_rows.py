"""Files as large as they may be: 100,000 rows split in bounded time and memory, near-duplicates on one side."""

from __future__ import annotations

import random
import tracemalloc

from sapo_desktop.services.tasks.review import NumberedRow, review_rows
from sapo_swarm.tasks.own.folder import build_task
from sapo_swarm.tasks.own.import_rows import MAX_ROWS, RowTable
from sapo_swarm.tasks.own.row_roles import cluster_prompts, held_out_places
from sapo_swarm.tasks.own.spec import TaskSpec

WORDS = [f"word{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n // 676)}" for n in range(3000)]


def test_near_duplicates_among_many_long_texts_stay_on_one_side() -> None:
    rng = random.Random(3)
    texts = [" ".join(rng.choices(WORDS, k=24)) for _ in range(4000)]
    twins = [f"{text} please" for text in texts[:400]]
    prompts = texts + twins
    chosen = held_out_places(prompts, 0.2)
    apart = [n for n in range(400) if (n in chosen) != (len(texts) + n in chosen)]
    assert len(apart) <= 2, "MinHash finds all but very few"
    assert 0.15 < len(chosen) / len(prompts) < 0.25


def test_a_full_file_of_texts_from_one_template_needs_little_memory_a_row() -> None:
    """The worst case of a sketch: every text shares most of its pieces with every other one."""
    rows = MAX_ROWS // 20
    prompts = [
        "Please read this message of a customer carefully and then tell me which one of all our products is meant : "
        f"number {n} of the list"
        for n in range(rows)
    ]
    tracemalloc.start()
    assert len(set(cluster_prompts(prompts))) == rows, "a number makes another question"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4000 * rows


class Unlike(NumberedRow):
    """A row that fails where it is compared with another: a look at every pair would take minutes."""

    def __eq__(self, _other: object) -> bool:
        raise AssertionError("rows are compared in pairs")

    __hash__ = NumberedRow.__hash__


def test_20_000_doubled_questions_with_different_answers_are_reviewed() -> None:
    rows = [{"question": f"q{n % 20_000}", "answer": str(n)} for n in range(40_000)]
    task = build_task(TaskSpec(name="t"), RowTable(rows=rows[:1], numbers=[1]), RowTable(rows=rows[1:2], numbers=[1]))
    said = review_rows(task, [Unlike("", number, row) for number, row in enumerate(rows, 2)])
    assert said[0].startswith("20,000 questions have different answers in different rows (row 2 and row 20002;")
