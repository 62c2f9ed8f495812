"""Under which system prompt a model was trained, by its tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.own_tasks import library_in, sums, write_folder

from sapo_desktop.services.models.exports.writing import held_out_chats
from sapo_swarm.config import RunConfig
from sapo_swarm.scoring.prompts import SYSTEM_PROMPTS, system_prompt

BRIEF, LONG = "Reply with the number alone.", "Think aloud."
USUAL = SYSTEM_PROMPTS["boxed"]


def asking(folder: Path, system: str) -> None:
    rows = [{"question": f"{n} + 1?", "answer": n + 1} for n in range(40)]
    write_folder(folder, f'system = "{system}"\n[[verifier]]\nkind = "number"\n', rows[:20], rows[20:])


@pytest.mark.parametrize(
    ("tasks", "prompt"),
    [
        (("brief",), BRIEF),
        (("brief", "brief_too"), BRIEF),
        (("my_sums",), USUAL),
        (("basic_arithmetic", "my_sums"), USUAL),
        (("brief", "basic_arithmetic"), USUAL),
        (("brief", "aloud"), ""),
        (("brief", "gone"), ""),
        (("brief", "broken"), ""),
    ],
)
def test_it_is_the_one_that_all_tasks_have_else_the_apps_where_a_task_has_that_else_none(
    tmp_path: Path, tasks: tuple[str, ...], prompt: str
) -> None:
    for name, system in (("brief", BRIEF), ("brief_too", BRIEF), ("aloud", LONG), ("broken", BRIEF)):
        asking(tmp_path / name, system)
    (tmp_path / "broken" / "train.jsonl").write_text("nothing")
    sums(tmp_path / "my_sums")
    with library_in(tmp_path):
        assert system_prompt(tasks, "boxed") == prompt


async def test_the_check_of_an_export_asks_each_question_as_training_did(tmp_path: Path) -> None:
    asking(tmp_path / "brief", BRIEF)
    with library_in(tmp_path):
        chats = await held_out_chats(RunConfig(tasks=("brief", "basic_arithmetic"), answer_format="boxed"), 8)
    assert {chat[0]["content"] for chat in chats if " + 1?" in chat[1]["content"]} == {BRIEF}
    assert {chat[0]["content"] for chat in chats if " + 1?" not in chat[1]["content"]} == {USUAL}
