"""docs/how-to/own-task.md says what is so: every verifier has an example there, and each example holds."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from tests.support.own_tasks import task_of

from sapo_swarm.scoring.verify import score_text
from sapo_swarm.tasks.own.spec import TaskSpec, Verifier, parse_spec

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "own-task.md").read_text("utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def kinds() -> set[str]:
    return {msgspec.to_builtins(kind())["kind"] for kind in get_args(Verifier)}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_page_holds(example: str) -> None:
    spec = parse_spec(f'name = "t"\n{example}', "the page")
    said = re.search(r"# truth: (.*?)    right: (.*?)    wrong: (.*)", example)
    assert said is not None
    truth, right, wrong = said.groups()
    schema = re.search(r"# schema\.json: (.*)", example)
    task = task_of(
        *spec.verifier,
        row={"question": "q", "answer": truth},
        schema=json.loads(schema[1]) if schema else None,
        fixture=fixture(example),
    )
    row = {"row": {"question": "q", "answer": truth}}
    assert score_text(f"<answer>{right}</answer>", "t", task, row)[0] == 1.0
    assert score_text(f"<answer>{wrong}</answer>", "t", task, row)[0] == 0.0


def fixture(example: str) -> bytes:
    script = re.search(r"# fixture\.sqlite: (.*)", example)
    if script is None:
        return b""
    connection = sqlite3.connect(":memory:")
    connection.executescript(script[1])
    data = connection.serialize()
    connection.close()
    return data


def test_every_verifier_has_a_paragraph_and_an_example() -> None:
    headings = {word for line in re.findall(r"^### (.*)$", PAGE, re.MULTILINE) for word in line.split(", ")}
    assert headings == kinds()
    shown = {kind for example in EXAMPLES for kind in re.findall(r'kind = "(\w+)"', example)}
    assert kinds() - shown == {"list", "order", "function", "python_tests", "environment", "judged"}, (
        "two share set's, the others are in test_reward_function, test_environments and test_rubric"
    )


def test_every_key_of_a_task_is_on_the_page() -> None:
    table = PAGE.partition("| key of `task.toml`")[2].partition("\n\n")[0]
    named = set(re.findall(r"`\[?\[?(\w+)\]?\]?`", " ".join(line.split("|")[1] for line in table.splitlines()[2:])))
    assert named == set(TaskSpec.__struct_fields__) - {"format"}


def test_every_setting_of_a_verifier_is_on_the_page() -> None:
    section = PAGE.partition("## Verifiers")[2].partition("## What makes")[0]
    fields = {name for kind in get_args(Verifier) for name in kind.__struct_fields__}
    missing = sorted(name for name in fields if not re.search(rf"`{name}\b|^{name} = ", section, re.MULTILINE))
    assert missing == []
