"""Environments for tests, of the shapes in TRL's documentation (written anew)."""

from __future__ import annotations

from pathlib import Path

from tests.support.own_tasks import write_folder

from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import OwnTask, read_task

COUNTER = '''
class CounterEnvironment:
    """Counts up to a target."""

    def reset(self, **kwargs) -> str | None:
        self.counter = 0
        self.target = int(kwargs["target"])
        return None

    def increment(self, step: int) -> int:
        """
        Increase the counter.

        Args:
            step: The amount to add to the counter.

        Returns:
            The counter's new value.
        """
        self.counter += step
        return self.counter


def reward_counter(environments, **kwargs):
    return [1.0 if environment.counter == environment.target else 0.0 for environment in environments]
'''
SHELF = '''
import random
from typing import Literal, Optional


class Shelf:
    """A shelf with boxes; what lies in one is learned by opening it."""

    def __init__(self):
        self.opened = []

    def reset(self, question: str, inside: str, **row):
        self.inside, self.salt = inside, random.random()
        return "There are boxes a, b and c."

    def open_box(self, box: Literal["a", "b", "c"], carefully: bool = True) -> str:
        """Open a box and look inside.

        Args:
            box (str): which one
            carefully: without breaking it
        """
        if box not in ("a", "b", "c"):
            raise ValueError("there is no such box")
        self.opened.append(box)
        return f"In {box}: {self.inside}, {self.salt}"

    def weigh(self, grams: float, note: Optional[str] = None) -> dict:
        """Weigh something."""
        return {"grams": grams, "note": note}

    def get_reward(self) -> float:
        return 1.0 if self.opened == ["b"] else 0.25 * len(self.opened)
'''
ENVIRONMENT = '[[verifier]]\nkind = "environment"\nturns = 3\n'


def environment_task(folder: Path, code: str, rows: list[dict[str, object]], toml: str = ENVIRONMENT) -> OwnTask:
    """A task with this environment, in the library in force, with the person's yes."""
    write_folder(folder, toml, rows, rows[:1])
    (folder / "environment.py").write_text(code, "utf-8")
    task = read_task(folder)
    library.allow_task_code(task.code)
    return task


TWO_SUMS = '''
class TwoSums:
    """The answer to the first sum opens the second."""

    calls = r"<answer>(?P<hand_in>[^<]*)</answer>"

    def reset(self, first: str, second: str, **row):
        self.first, self.second, self.right = first, second, False

    def hand_in(self, value: str) -> str:
        """Hand in the first answer."""
        self.right = value.strip() == self.first
        return f"Calculate {self.second}."

    def get_reward(self) -> float:
        return float(self.right)
'''


def two_sums(folder: Path) -> OwnTask:
    """A task of two turns that the fake engine plays: the second sum is known from the environment alone."""
    rows: list[dict[str, object]] = [
        {"question": f"Calculate {n} + 12.", "first": str(n + 12), "second": f"{n} + 39", "answer": str(n + 39)}
        for n in range(40)
    ]
    toml = '[[verifier]]\nkind = "environment"\nturns = 2\n'
    return environment_task(folder, TWO_SUMS, rows, toml)
