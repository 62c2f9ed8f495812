"""Held-out questions that training must not ask, though none of its seeds reaches them: a task with few questions draws the
same one from different seeds (of 800 drawn with training seeds 324 of jugs were held out, 281 of prime_factorization, 80 of
n_queens)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sapo_swarm.evaluation import held_out_items
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.catalogue import is_own, preset_of
from sapo_swarm.types import Question, TaskRef

EXCLUDED_PER_TASK = 400
"""Held-out questions a task, from the first on, that are never trained on;"""
IN_ALL = 4000
"""but no more than these over all tasks."""
FEW = {"string_splitting/default": 125, "string_synthesis/default": 125, "tower_of_hanoi/default": 60}
"""Tasks that have 216, 216 and 90 questions in all: so many held-out ones hold half of them, and the rest can be trained on."""
SLOW = frozenset(
    {
        "bf/hard",
        "figlet_font/default",
        "quantum_lock/default",
        "quantum_lock/library",
        "rearc/default",
        "sudoku/default",
        "zebra_puzzles/default",
    }
)
"""Tasks whose questions take 30 to 200 ms each to draw. Of 300 drawn with training seeds none was held out (quantum_lock: 3)."""


async def held_out_exclusion(scorer: Scorer, tasks: Sequence[str], preset: str, start: int = 0) -> frozenset[str]:
    """SHA-256 of the prompts that training leaves out, from held-out question `start` on: about a second for nine tasks.

    Raises ScorerUnavailable, UnknownTask.
    """
    found = await scorer.questions(refs) if (refs := _excluded(tasks, preset, start)) else []
    return frozenset(question.prompt_sha256 for question in found if isinstance(question, Question))


def beyond_exclusion(refs: Iterable[TaskRef], tasks: Sequence[str], preset: str) -> int:
    """How many of these held-out questions training on `tasks` may have asked, because it does not leave them out. None of tasks
    that draw too many questions for that (SLOW), and none of the person's own: their held-out rows are in no training file.

    Raises UnknownTask.
    """
    left_out = {*_excluded(tasks, preset)}
    drawn = [ref for ref in refs if ref.dataset in tasks and not is_own(ref.dataset)]
    return sum(ref not in left_out and f"{ref.dataset}/{ref.preset}" not in SLOW for ref in drawn)


def _excluded(tasks: Sequence[str], preset: str, start: int = 0) -> list[TaskRef]:
    named = [(task, f"{task}/{preset_of(task, preset)}") for task in tasks]
    quick = [(task, name) for task, name in named if name not in SLOW]
    most = min(EXCLUDED_PER_TASK, IN_ALL // max(len(quick), 1))
    counts = [(task, min(most, FEW.get(name, most))) for task, name in quick]
    return [ref for task, count in counts for ref in held_out_items([task], preset, count, start)]
