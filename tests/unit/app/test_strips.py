"""Held-out pass@1 of every task over time: cells by height and colour, figures beside them, in any room."""

from __future__ import annotations

import re

import msgspec
import pytest
from tests.support.records import evaluation, opened

from sapo_desktop.dashboard.look import ASCII, UNICODE, to_ascii
from sapo_desktop.dashboard.state import DashboardState, apply_event
from sapo_desktop.dashboard.widgets.held_out import FIGURES, held_out_panel, task_strips
from sapo_swarm.events import Evaluated, TaskScore


def measured(round_: int, **scores: float) -> Evaluated:
    """The base had the scores of BASE."""
    tasks = tuple(
        TaskScore(task, 16, score, 0.0, 1.0, 1.0, 0.0, base=BASE.get(task, 0.0) if round_ else None)
        for task, score in scores.items()
    )
    return msgspec.structs.replace(evaluation(round_, sum(scores.values()) / len(scores)), tasks=tasks)


BASE = {"sums": 0.1, "bf": 0.4}


def fold(*events: Evaluated) -> DashboardState:
    state = apply_event(DashboardState(), opened(0))
    for event in events:
        state = apply_event(state, event)
    return state


FOUR = fold(*(measured(25 * n, sums=0.1 + 0.2 * n, bf=0.4, maze=0.0) for n in range(4)))


def rows(state: DashboardState, width: int, height: int, ascii_: bool = False) -> list[str]:
    return [row.plain for row in task_strips(state, width, height, ASCII if ascii_ else UNICODE)]


def test_a_cell_is_as_high_as_the_score_on_one_scale_for_all_tasks() -> None:
    assert rows(FOUR, 28, 3) == [
        "sums ▂▂▂▄▄▄▆▆▆███    10→70 %",
        "bf   ▅▅▅▅▅▅▅▅▅▅▅▅    40→40 %",
        "maze ▁▁▁▁▁▁▁▁▁▁▁▁      0→0 %",
    ]
    assert rows(FOUR, 28, 3, ascii_=True)[0].split()[1] == "...---+++###"


def test_where_it_is_wide_every_cell_has_its_figure_under_its_round() -> None:
    head, sums, *_ = rows(FOUR, FIGURES, 10)
    assert head.split() == ["after", "round", "0", "25", "50", "75"]
    assert [int(cell.strip("▁▂▃▄▅▆▇█")) for cell in sums.split()[1:-2] if cell.strip("▁▂▃▄▅▆▇█")] == [10, 30, 50, 70]


@pytest.mark.parametrize(
    ("rounds", "last"), [(9_999, "9999"), (10_000, "10k"), (400_000, "400k"), (999_600, "1.0M"), (12_000_000, "12M")]
)
def test_a_round_of_any_number_stands_over_its_cell(rounds: int, last: str) -> None:
    head, sums, *_ = rows(fold(*(measured(rounds * n // 40, sums=n / 40) for n in range(41))), FIGURES, 10)
    labels = list(re.finditer(r"\S+", head.removeprefix("after round")))
    figures = list(re.finditer(r"[▁▂▃▄▅▆▇█] *\d+", sums))
    assert labels[-1][0] == last
    assert [label.end() + len("after round") for label in labels] == [figure.end() for figure in figures]


@pytest.mark.parametrize("width", [20, 28, 48, 76, 80, 116, 196])
@pytest.mark.parametrize("height", [1, 2, 5, 40])
def test_it_fits_and_counts_the_tasks_that_do_not(width: int, height: int) -> None:
    many = fold(*(measured(n * 10, **{f"task_with_a_long_name_{t}": t / 20 for t in range(9)}) for n in range(60)))
    for ascii_ in (False, True):
        found = rows(many, width, height, ascii_)
        assert 1 <= len(found) <= height
        assert all(len(row) <= width for row in found)
        assert all(to_ascii(row).isascii() and len(to_ascii(row)) == len(row) for row in found)
    if height == 5:
        assert found[-1].endswith("more: e 3 times")
    panel = held_out_panel(many, 0.0, width, height, UNICODE).plain.splitlines()
    assert len(panel) <= height


def test_more_results_than_columns_are_means_over_equal_stretches_of_rounds() -> None:
    long = fold(*(measured(n, sums=n / 1000) for n in range(1000)))
    (row,) = rows(long, 30, 1)
    strip = [char for char in row if char in UNICODE.bars]
    assert strip == sorted(strip)
    assert {strip[0], strip[-1]} == {"▁", "█"}
    assert row.endswith("0→100 %")


def test_a_task_that_a_result_left_out_keeps_what_was_known_of_it() -> None:
    gap = fold(measured(0, sums=0.5), measured(1, bf=0.5), measured(2, sums=0.5))
    assert rows(gap, 25, 1)[0].split()[1] == "█" * 9


def test_a_model_without_held_out_results_has_no_strip() -> None:
    assert task_strips(DashboardState(), 40, 5, UNICODE) == []
    assert task_strips(fold(evaluation(0)), 40, 5, UNICODE) == []
