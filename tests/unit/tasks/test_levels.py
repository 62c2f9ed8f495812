"""Difficulty as a column: levels, what a node samples from them, and what the dashboard tells of it."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.own_tasks import library_in, write_folder

from sapo_desktop.dashboard.state import DashboardState, apply_event
from sapo_desktop.dashboard.widgets.held_out import difficulty_rows as shown
from sapo_desktop.services.tasks.proposal.draft import ImportOptions, draft_task
from sapo_desktop.settings import flags
from sapo_swarm.config import RunConfig
from sapo_swarm.events import GroupRecorded
from sapo_swarm.node.round_phases import candidate_refs
from sapo_swarm.sapo.adaptive_sampling import SuccessPosterior
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import OwnTask, build_task
from sapo_swarm.tasks.own.import_rows import RowTable
from sapo_swarm.tasks.own.library import PRESET
from sapo_swarm.tasks.own.row_roles import MAX_LEVELS
from sapo_swarm.tasks.own.spec import BadTask, TaskSpec
from sapo_swarm.tasks.questions import NoSuchQuestion, generate_entry
from sapo_swarm.types import Group, Question, Rollout, TaskRef


def with_levels(*values: str) -> OwnTask:
    rows = [{"question": f"q{n}", "answer": "a", "difficulty": value} for n, value in enumerate(values)]
    table = RowTable(rows=rows, numbers=[*range(len(rows))])
    return build_task(TaskSpec(name="t", difficulty="difficulty"), table, table)


def test_words_are_levels_and_numbers_are_in_their_order() -> None:
    assert with_levels("easy", "hard", "easy").levels == {"level_easy": (0, 2), "level_hard": (1,)}
    assert with_levels("10", "2", "2.5").levels == {"level_1": (1,), "level_2": (2,), "level_3": (0,)}


@given(st.lists(st.integers(0, 99), min_size=1, max_size=60))
def test_every_row_is_in_one_level_and_harder_rows_are_in_later_ones(numbers: list[int]) -> None:
    found = with_levels(*map(str, numbers)).levels
    assert sorted(place for places in found.values() for place in places) == [*range(len(numbers))]
    assert 1 <= len(found) <= MAX_LEVELS
    ordered = [[numbers[place] for place in places] for places in found.values()]
    assert all(max(a) < min(b) for a, b in pairwise(ordered))


def test_too_many_words_are_told_of() -> None:
    with pytest.raises(BadTask, match="has 9 different words"):
        with_levels(*"abcdefghi")


def test_a_node_asks_more_of_the_level_that_it_solves_half_of_the_time(tmp_path: Path) -> None:
    toml = 'difficulty = "level"\n'
    rows = [{"question": f"q{n}", "answer": "a", "level": n % 3} for n in range(60)]
    write_folder(tmp_path / "t", toml, rows, rows[:3])
    with library_in(tmp_path):
        config = flags.propose_run(RunConfig(), tasks=("t",))
        assert config.curriculum == "presets"
        posteriors = {
            "t/level_1": SuccessPosterior(200, 0),
            "t/level_2": SuccessPosterior(100, 100),
            "t/level_3": SuccessPosterior(0, 200),
        }
        refs = candidate_refs(config, "node", "", 1, posteriors)
        asked = [next(refs) for _ in range(300)]
        counts = Counter(ref.preset for ref in asked)
        assert counts["level_2"] > 0.6 * 300 > 0 < min(counts["level_1"], counts["level_3"])
        for ref in asked[:50]:
            assert generate_entry(ref)[1]["row"]["level"] == str(int(ref.preset[-1]) - 1)
        with pytest.raises(NoSuchQuestion, match="no difficulty 'level_9'"):
            generate_entry(TaskRef("t", "level_9", 1, 0, library.load_task("t").generator))


def test_a_column_called_difficulty_is_found_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("question,answer,difficulty\n" + "".join(f"q{n},a{n},{n % 2}\n" for n in range(9)))
    assert draft_task(tmp_path / "f.csv", ImportOptions()).task.spec.difficulty == "difficulty"


def said(*asked: tuple[str, str, tuple[float, ...]]) -> list[str]:
    """What the dashboard says after these groups: task, preset, rewards."""
    state = DashboardState()
    for number, (task, preset, rewards) in enumerate(asked):
        ref = TaskRef(task, preset, number, 0, "task-" + "0" * 32)
        group = Group(Question(ref, "q", "0" * 64), tuple(Rollout("x", "stop", r) for r in rewards), source="own")
        state = apply_event(state, GroupRecorded(time=0.0, round=1, group=group, trained=True))
    return [line.plain for line in shown(state, 40)]


def test_the_dashboard_says_how_often_each_preset_was_asked_where_the_curriculum_moves_between_them() -> None:
    assert said(
        ("bf", "starter", (1.0, 1.0)),
        ("arc_1d", "starter", (1.0, 0.0)),
        ("bf", "paper", (0.0, 0.0)),
        ("t", PRESET, (1.0,)),
    ) == [
        "Difficulty, lately",
        "paper          asked  33 %  right   0 %",
        "starter        asked  67 %  right  75 %",
    ]
    assert said(("bf", "paper", (1.0, 0.0)), ("arc_1d", "paper", (0.0, 0.0)), ("t", PRESET, (1.0,))) == []


def test_the_dashboard_says_how_often_each_level_was_asked_and_solved() -> None:
    assert said(("t", "level_1", (1.0, 1.0)), ("t", "level_2", (1.0, 0.0)), ("t", "level_2", (0.0, 0.0))) == [
        "Difficulty, lately",
        "t 1            asked  33 %  right 100 %",
        "t 2            asked  67 %  right  25 %",
    ]
    assert shown(DashboardState(), 40) == []
