"""One declared verifier judging one answer."""

from __future__ import annotations

import sqlite3

from tests.support.own_tasks import task_of

from sapo_swarm.scoring.verify import score_text
from sapo_swarm.tasks.own.folder import OwnTask
from sapo_swarm.tasks.own.spec import Verifier
from sapo_swarm.types import RewardRule

SCHEMA = {
    "type": "object",
    "required": ["name", "age"],
    "additionalProperties": False,
    "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}, "age": {"type": "integer", "minimum": 0}},
}


def database() -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.executescript(
        "create table people(name text, age int); insert into people values ('Ann', 31), ('Bob', 7), ('Cid', 52);"
    )
    data = connection.serialize()
    connection.close()
    return data


FIXTURE = database()
ADULTS = "select name from people where age >= 18"


def score(part: Verifier, answer: str, truth: str = "", partial: bool = False) -> float:
    task = task_of(part, row={"question": "q", "answer": truth or "x"}, schema=SCHEMA, fixture=FIXTURE)
    return judge(task, f"<answer>{answer}</answer>", truth, partial)


def judge(task: OwnTask, text: str, truth: str = "", partial: bool = False) -> float:
    row = {"question": "q", "answer": truth}
    return score_text(text, "t", task, {"question": "q", "answer": truth, "row": row}, RewardRule(partial))[0]
