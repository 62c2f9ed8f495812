"""What the wizard reads while somebody types."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sapo_desktop.errors import USER_ERRORS
from sapo_desktop.paths import Home
from sapo_desktop.services.tasks.wizard import actions
from sapo_desktop.services.tasks.wizard.interface import TaskPreview, WizardAnswers


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """An entry for each time that a file was made a task of."""
    made: list[Any] = []
    true = actions.draft_task
    monkeypatch.setattr(actions, "draft_task", lambda *given: made.append(given) or true(*given))
    return made


async def opened(folder: Path) -> tuple[actions.HomeTasks, TaskPreview]:
    (folder / "sums.csv").write_text("question,answer\n" + "".join(f"{n} + {n}?,{2 * n}\n" for n in range(99)))
    tasks = actions.HomeTasks(Home(folder, folder / "data", folder, folder, folder))
    return tasks, await tasks.look(WizardAnswers(str(folder / "sums.csv")))


async def given_up(tasks: actions.HomeTasks, answers: WizardAnswers) -> None:
    """A look that the next change ends while it is under way."""
    look = asyncio.create_task(tasks.look(answers))
    await asyncio.sleep(0)
    look.cancel()
    await asyncio.wait([look])


async def test_five_quick_changes_of_the_name_read_the_file_once(tmp_path: Path, drafts: list[Any]) -> None:
    tasks, seen = await opened(tmp_path)
    for name in ("c", "co", "cod", "code"):
        await given_up(tasks, replace(seen.answers, name=name))
    last = await tasks.look(replace(seen.answers, name="Codes"))
    assert len(drafts) == 1
    assert (last.answers, last.said) == (replace(seen.answers, name="codes"), seen.said)
    assert last.summary[0].startswith("Task codes: ")
    with pytest.raises(USER_ERRORS, match="taken"):
        await tasks.look(replace(seen.answers, name="check"))


async def test_of_five_quick_changes_of_the_wording_the_first_and_the_last_are_looked_at(
    tmp_path: Path, drafts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, seen = await opened(tmp_path)
    counted, all_typed = actions.draft_task, threading.Event()
    monkeypatch.setattr(actions, "draft_task", lambda *given: all_typed.wait(60) and counted(*given))
    for number in range(4):
        await given_up(tasks, replace(seen.answers, prompt=f"{number}: {{question}}"))
    look = asyncio.create_task(tasks.look(replace(seen.answers, prompt="Say: {question}")))
    await asyncio.sleep(0)
    all_typed.set()
    last = await look
    assert len(drafts) == 3
    assert last.asked[0].startswith("Say: ")


async def test_a_file_that_was_written_since_is_read_again(tmp_path: Path, drafts: list[Any]) -> None:
    tasks, seen = await opened(tmp_path)
    (tmp_path / "sums.csv").write_text("question,answer\n1?,1\n2?,2\n3?,3\n")
    again = await tasks.look(replace(seen.answers, name="other"))
    assert len(drafts) == 2
    assert len(again.rows) < len(seen.rows)
