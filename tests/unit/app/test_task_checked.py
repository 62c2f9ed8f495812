"""What `tasks check` and `eval` say of a task is what training on it does."""

from __future__ import annotations

from pathlib import Path

from tests.support.own_tasks import library_in, write_folder

from sapo_desktop.services.models import comparing
from sapo_desktop.services.models.checkpoints import Chosen
from sapo_desktop.services.tasks import expectation, review
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import held_out_items
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import read_task

SHORT = 'max_new_tokens = 2\n[[verifier]]\nkind = "number"\n'


async def test_eval_and_tasks_check_let_an_answer_be_as_long_as_training_does(tmp_path: Path) -> None:
    """No answer of the fake model ends within two tokens."""
    rows = [{"question": f"Calculate {n // 10} + {n % 10}.", "answer": f"{n // 10 + n % 10}"} for n in range(100)]
    write_folder(tmp_path / "short", SHORT, rows[:80], rows[80:])
    config = RunConfig(model="fake", trainer="fake", tasks=("short",), max_new_tokens=8)
    chosen = Chosen("base", config, None)
    with library_in(tmp_path):
        task = library.find("short")
        refs = held_out_items(("short",), "", 20)
        found = await comparing.measure((chosen, chosen), refs, 1.0, 1, lambda *_: None)
        async with Scorer() as scorer:
            expected = await expectation.measure(task, config, scorer)
    assert all(all(item.truncated) for item in found.after)
    assert expected is not None
    assert expected.truncated == 1.0
    rows = [{"question": f"Say number {n}.", "answer": "in so many words as these"} for n in range(9)]
    wordy = read_task(write_folder(tmp_path / "elsewhere" / "short", SHORT, rows[:8], rows[8:]))
    told = review.room(wordy, review.numbered(wordy), RunConfig(model="starter", max_new_tokens=64))
    assert "answered in more than 2 tokens" in told[0]
