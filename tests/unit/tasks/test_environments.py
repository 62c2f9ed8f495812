"""Environments of TRL's shape: what is found in a file, which call a turn holds, and what an episode comes to."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.environments import COUNTER, ENVIRONMENT, SHELF, environment_task
from tests.support.own_tasks import library_in

from sapo_swarm.scoring.environments import EnvironmentSpec, NoEnvironment, first_call, load_environment_spec
from sapo_swarm.scoring.scorer import Scorer, UnanswerableQuestion
from sapo_swarm.tasks.catalogue import held_out
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import read_task, write_task
from sapo_swarm.tasks.own.spec import BadTask
from sapo_swarm.types import Question, TaskRef

ROW: dict[str, object] = {"question": "What is in b?", "inside": "a key", "target": "5"}


@pytest.fixture
def yes(tmp_path: Path) -> Iterator[Path]:
    with library_in(tmp_path):
        yield tmp_path


def found(code: str) -> EnvironmentSpec:
    """The environment in a file that the person allowed."""
    library.allow_task_code(code.encode())
    return load_environment_spec(code.encode())


@pytest.fixture
async def scorer(yes: Path) -> AsyncIterator[Scorer]:
    del yes
    async with Scorer(margin_s=20.0) as started:
        yield started


@pytest.mark.usefixtures("yes")
def test_typed_methods_with_docstrings_become_tools() -> None:
    schemas = found(SHELF).schemas
    assert list(schemas) == ["open_box", "weigh"]
    function = schemas["open_box"]["function"]
    assert function["description"] == "Open a box and look inside."
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "box": {"type": "string", "enum": ["a", "b", "c"], "description": "which one"},
            "carefully": {"type": "boolean", "description": "without breaking it"},
        },
        "required": ["box"],
    }
    assert schemas["weigh"]["function"]["parameters"]["properties"]["note"] == {"type": "string"}


@pytest.mark.usefixtures("yes")
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = 1", "0 classes with a method reset"),
        ("class E:\n    def reset(self): ...\n    def get_reward(self): return 1.0", "has no tool"),
        (
            "class E:\n    def reset(self): ...\n    def t(self, x: int): ...\n    def get_reward(self): ...",
            "no docstring",
        ),
        (
            "class E:\n    def reset(self): ...\n    def t(self, x):\n        'T.'\n    def get_reward(self): ...",
            "x of the tool t has no type",
        ),
        ("class E:\n    def reset(self): ...\n    def t(self, x: int):\n        'T.'", "has no get_reward"),
        (
            "class E:\n    calls = '('\n    def reset(self): ...\n    def t(self, x: int):\n        'T.'\n"
            "    def get_reward(self): ...",
            "no regular expression",
        ),
        (
            "class E:\n    calls = '(?P<u>.)'\n    def reset(self): ...\n    def t(self, x: int):\n        'T.'\n"
            "    def get_reward(self): ...",
            "groups that are named as tools: t",
        ),
    ],
)
def test_an_unusable_file_says_what_to_mend(code: str, says: str) -> None:
    with pytest.raises(NoEnvironment, match=says):
        found(code)


def test_nothing_is_loaded_without_the_persons_yes(yes: Path) -> None:
    del yes
    with pytest.raises(PermissionError, match="Nobody said yes"):
        load_environment_spec(COUNTER.encode() + b"# another file")


@pytest.mark.usefixtures("yes")
@pytest.mark.parametrize(
    ("text", "name", "arguments", "rest"),
    [
        (
            'I look. <tool_call>\n{"name": "open_box", "arguments": {"box": "b"}}\n</tool_call> ok',
            "open_box",
            {"box": "b"},
            " ok",
        ),
        ('{"name": "weigh", "parameters": {"grams": 2.5}}', "weigh", {"grams": 2.5}, ""),
        ("so <open_box> b </open_box><weigh>1</weigh>", "open_box", {"box": "b"}, "<weigh>1</weigh>"),
        ("<weigh>1.5, light</weigh>!", "weigh", {"grams": 1.5, "note": "light"}, "!"),
        (
            '<tool_call>{"name": "open_box", "arguments": "{\\"box\\": \\"c\\"}"}</tool_call>',
            "open_box",
            {"box": "c"},
            "",
        ),
    ],
)
def test_a_call_is_found_in_every_form(text: str, name: str, arguments: dict[str, object], rest: str) -> None:
    call = first_call(text, found(SHELF))
    assert call is not None
    assert (call.name, dict(call.arguments), call.error, text[call.end :]) == (name, arguments, "", rest)


@pytest.mark.usefixtures("yes")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<tool_call>open the box</tool_call>", "a call is"),
        ('<tool_call>{"name": "shout", "arguments": {}}</tool_call>', "there is no tool shout"),
        ('<tool_call>{"name": "open_box", "arguments": {"lid": 1}}</tool_call>', "open_box takes: box, carefully"),
        ("<weigh>heavy</weigh>", "grams is number"),
        ("<weigh>1,2,3,4</weigh>", "weigh takes 2 arguments"),
        ("<tool_call>" + "[" * 9000 + "</tool_call>", "a call is"),
    ],
)
def test_a_bad_call_is_answered_with_what_would_be_right(text: str, says: str) -> None:
    call = first_call(text, found(SHELF))
    assert call is not None
    assert says in call.error


@pytest.mark.usefixtures("yes")
def test_an_argument_that_is_nested_too_deep_is_a_bad_call() -> None:
    shelf = SHELF.replace("grams: float", "grams: list")
    assert shelf != SHELF
    call = first_call("<weigh>" + "[" * 8000 + "</weigh>", found(shelf))
    assert call is not None
    assert "grams is array" in call.error


@pytest.mark.usefixtures("yes")
def test_text_without_a_call_is_the_last_turn() -> None:
    assert first_call("The key is in <box>b</box>.", found(SHELF)) is None


async def test_an_episode_is_the_same_however_often_it_is_played(tmp_path: Path, scorer: Scorer) -> None:
    """The environment's own chance is seeded by the question, so that a killed worker changes nothing."""
    environment_task(tmp_path / "shelf", SHELF, [ROW])
    ref = held_out("shelf", "own", 0)
    (question,) = await scorer.questions([ref])
    assert isinstance(question, Question)
    assert question.prompt == "What is in b?\n\nThere are boxes a, b and c."
    assert [tool["function"]["name"] for tool in scorer.tools(ref)] == ["open_box", "weigh"]
    first = (await scorer.play([(ref, ["<open_box>b</open_box> and more"])]))[0]
    assert (first.over, first.cut) == (False, len("<open_box>b</open_box>"))
    assert first.replies[0].startswith("In b: a key, 0.")
    scorer.worker._discard()  # killed between two turns
    turns = ["<open_box>b</open_box>", "It is a key."]
    last = (await scorer.play([(ref, turns)], final=True))[0]
    assert last == (await scorer.play([(ref, turns)]))[0]
    assert (last.over, last.reward, last.replies) == (True, 1.0, first.replies)


async def test_the_grades_of_an_environment_are_paid_as_it_gives_them(tmp_path: Path, scorer: Scorer) -> None:
    environment_task(tmp_path / "shelf", SHELF, [ROW])
    episode = [(held_out("shelf", "own", 0), ["<open_box>a</open_box>", "done"])]
    assert [step.reward for step in await scorer.play(episode)] == [0.25]


async def test_a_reward_function_over_environments_runs_unmodified(tmp_path: Path, scorer: Scorer) -> None:
    task = environment_task(tmp_path / "counter", COUNTER, [ROW])
    ref = TaskRef("counter", "own", 0, 0, task.generator)
    three = '<tool_call>{"name": "increment", "arguments": {"step": 3}}</tool_call>'
    steps = await scorer.play([(ref, [three]), (ref, [three, "<increment>2</increment>", "5"]), (ref, [three, "3"])])
    assert [(step.replies, step.over, step.reward) for step in steps] == [
        (("3",), False, 0.0),
        (("3", "5"), True, 1.0),
        (("3",), True, 0.0),
    ]


async def test_the_last_turn_calls_nothing(tmp_path: Path, scorer: Scorer) -> None:
    environment_task(tmp_path / "counter", COUNTER, [ROW])
    call = "<increment>1</increment>"
    (step,) = await scorer.play([(held_out("counter", "own", 0), [call, call, call])])
    assert (step.replies, step.over) == (("1", "2"), True)


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "raise SystemExit",
        "return 'x' * 10**10",
        "open('/etc/passwd').read()",
        "import os; os.fork()",
    ],
)
async def test_a_hostile_tool_ends_its_own_episode_at_most(tmp_path: Path, scorer: Scorer, body: str) -> None:
    code = COUNTER.replace("self.counter += step", body)
    ref = held_out("t", "own", 0)
    environment_task(tmp_path / "t", code, [ROW])
    bad, good = await scorer.play([(ref, ["<increment>1</increment>"]), (ref, ["5"])])
    assert bad.reward == 0.0
    assert bad.over or bad.replies[0].startswith("error: ")
    assert good.over


async def test_a_question_that_takes_all_memory_is_told_of_and_tried_once_and_no_other_task_is_blamed(
    tmp_path: Path, scorer: Scorer
) -> None:
    environment_task(tmp_path / "greedy", COUNTER.replace("return None", "raise MemoryError"), [ROW])
    environment_task(tmp_path / "t", COUNTER, [ROW])
    asked = [held_out(task, "own", 0) for task in ("greedy", "t")]
    for _ in range(2):
        greedy, good = await scorer.questions(asked)
        assert isinstance(greedy, UnanswerableQuestion)
        assert "memory" in greedy.reason
        assert isinstance(good, Question)
    assert scorer.worker.restarts == 1


async def test_other_verifiers_judge_the_last_turn(tmp_path: Path, scorer: Scorer) -> None:
    toml = ENVIRONMENT + '[[verifier]]\nkind = "exact"\ncolumn = "inside"\n'
    environment_task(tmp_path / "t", SHELF, [ROW], toml)
    ref, call = held_out("t", "own", 0), "<open_box>b</open_box>"
    told = [[call, "<answer>a key</answer>"], [call, "<answer>a lock</answer>"], [call, "a key"]]
    assert [step.reward for step in await scorer.play([(ref, turns) for turns in told])] == [1.0, 0.0, 0.0]


def test_a_task_with_an_environment_is_written_and_read_alike(yes: Path) -> None:
    task = environment_task(yes / "shelf", SHELF, [ROW])
    assert task.spec.turns == 3
    write_task(task, yes / "shelf")
    assert (yes / "shelf" / "environment.py").read_bytes() == task.code
    assert read_task(yes / "shelf").digest == task.digest
    (yes / "allowed-code.txt").write_text(hashlib.sha256(b"other").hexdigest())
    library.set_task_folder(yes)
    with pytest.raises(BadTask, match=r"environment\.py.*never runs before you said yes"):
        library.load_task("shelf")
