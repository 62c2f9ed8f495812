"""A model on a task of the person's own leaves the app: node, export and its child processes are real."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.node_process import sapo
from tests.support.own_tasks import library_in, sums, write_folder

pytest.importorskip("torch", reason="the torch engine is not installed")
pytest.importorskip("transformers", reason="the torch engine is not installed")

from dataclasses import replace

from tests.support.trained_models import random_model, trained

from sapo_desktop.services.models.exports import ExportPlan, ExportSource, create_export

LONG_S = 240
SYSTEM = "Reply with JSON only."
CONTROL = "<|endoftext|>"
"""A control token of the tests' models."""


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> ExportSource:
    """A random Qwen whose chat template has a place for the system prompt."""
    folder = tmp_path_factory.mktemp("qwen")
    return trained(folder, str(random_model(folder / "base", "qwen2")), updates=1, method="full", max_new_tokens=8)


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Path]:
    with library_in(tmp_path / "tasks"):
        yield tmp_path / "tasks"


def on(source: ExportSource, *tasks: str) -> ExportSource:
    return replace(source, config=msgspec.structs.replace(source.config, tasks=tasks))


def test_a_model_on_an_own_task_is_exported_and_checked_and_without_its_task_exported_all_the_same(
    tmp_path: Path,
) -> None:
    sums(tmp_path / "data" / "tasks" / "my_sums")
    node = ("node", "--silo", "--model", "starter-1m", "--tasks", "my_sums", "--rounds", "1", "--local-groups", "2")
    ran = sapo(tmp_path, *node, "--eval-every", "0", "--quiet", timeout=LONG_S)
    assert ran.returncode == 0, ran.stderr
    done = sapo(tmp_path, "export", "--format", "hf", "--to", str(tmp_path / "mine"), timeout=LONG_S)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\b(\d+) of \1 greedy answers identical", done.stdout)
    shutil.rmtree(tmp_path / "data" / "tasks" / "my_sums")
    gone = sapo(tmp_path, "export", "--format", "hf", "--to", str(tmp_path / "later"), timeout=LONG_S)
    assert gone.returncode == 0, gone.stderr
    told = "The task my_sums is not here any more or does not load, so the export was not checked."
    assert told in gone.stdout
    assert told in (tmp_path / "later" / "README.md").read_text(encoding="utf-8")


def test_the_tasks_own_system_prompt_goes_with_the_model(chatty: ExportSource, tasks: Path) -> None:
    rows = [{"question": f"{n}?", "answer": n} for n in range(9)]
    write_folder(tasks / "my_json", f'system = "{SYSTEM}"\n[[verifier]]\nkind = "exact"\n', rows[:8], rows[8:])
    create_export(on(chatty, "my_json"), ExportPlan("gguf", tasks.parent / "out", verify=False))
    assert f'SYSTEM """{SYSTEM}"""\n' in (tasks.parent / "out" / "Modelfile").read_text(encoding="utf-8")
    card = (tasks.parent / "out" / "README.md").read_text(encoding="utf-8")
    assert f"\n\n    {SYSTEM}\n\n" in card
    assert re.search(r"A whole message, to try it with\. .*\n\n    [0-7]\?\n", card), (
        "a training row, none that is held out"
    )


def test_a_question_that_spells_a_control_token_is_no_reason_to_refuse_an_export(
    chatty: ExportSource, tasks: Path
) -> None:
    rows = [{"question": f"What is {n}{CONTROL * (n % 2)}?", "answer": n} for n in range(12)]
    write_folder(tasks / "about_tokens", '[[verifier]]\nkind = "exact"\n', rows[:8], rows[8:])
    done = create_export(on(chatty, "about_tokens"), ExportPlan("hf", tasks.parent / "out"))
    assert done.agreement is not None
    assert done.agreement.prompts == done.agreement.answers == 2


def test_a_task_that_does_not_load_is_no_reason_to_refuse_an_export(chatty: ExportSource, tasks: Path) -> None:
    folder = write_folder(tasks / "mine", '[[verifier]]\nkind = "function"\n', [{"question": "q"}], [{"question": "p"}])
    (folder / "reward.py").write_text("def reward(completions, **_):\n    return [1.0]\n")
    sums(tasks / "edited")
    (tasks / "edited" / "train.jsonl").write_text("nothing")
    done = create_export(on(chatty, "mine", "edited"), ExportPlan("hf", tasks.parent / "out"))
    assert done.unchecked == (
        "The tasks mine, edited are not here any more or do not load, so the export was not checked."
    )
