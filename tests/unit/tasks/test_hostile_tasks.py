"""Task folders that mean harm: nothing of them is run, nothing hangs, memory stays bounded."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.support.hostile_tasks import HOSTILE
from tests.support.own_tasks import library_in

from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.scoring.scorer import ScoredTexts, Scorer, ScoringFailed
from sapo_swarm.tasks.catalogue import held_out
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.spec import BadTask

READ_S = 10.0
"""Reading a folder may take so long on a busy machine; a good one takes milliseconds."""
MEMORY = 600 * 2**20
FORBIDDEN = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "socket.connect", "pickle.find_class")
_watching: list[str] = []
_seen: list[str] = []


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    # A worker that had to be stopped is started again; from Python 3.13 on by posix_spawn.
    restart = event in ("subprocess.Popen", "os.posix_spawn") and "sapo_swarm.scoring.worker" in str(arguments)
    if _watching and event in FORBIDDEN and not restart:
        _seen.append(f"{event} {str(arguments)[:80]}")


sys.addaudithook(_audit)


@pytest.fixture
def watched() -> Iterator[list[str]]:
    """What was run meanwhile, in this process."""
    _seen.clear()
    _watching.append("on")
    yield _seen
    _watching.clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("hostile")
    with library_in(home):
        yield home


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scorer(folder: Path) -> AsyncIterator[Scorer]:
    async with Scorer(margin_s=60.0) as started:
        await started.ready()
        yield started


def test_there_are_two_hundred_of_them() -> None:
    assert len(HOSTILE) >= 200


def test_a_worker_that_starts_reads_no_more_of_a_task_than_a_task_may_have(tmp_path: Path) -> None:
    """It looks for tasks that run code before its memory is limited: all of a terabyte was read."""
    (tmp_path / "large").mkdir()
    with (tmp_path / "large" / "task.toml").open("wb") as file:
        file.truncate(2**40)
    with library_in(tmp_path):
        assert not library.runs_generated()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(HOSTILE)), ids=[str(name)[:60] for name in HOSTILE])
@pytest.mark.asyncio(loop_scope="module")
async def test_a_hostile_folder_is_refused_in_a_sentence_or_does_no_harm(
    number: int, folder: Path, scorer: Scorer, watched: list[str]
) -> None:
    name = f"hostile_{number}"
    list(HOSTILE.values())[number](folder / name)
    before = {path.relative_to(folder) for path in (folder / name).rglob("*")}
    began, used = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = _refusal(name)
    if refused is None:
        await _ask(name, scorer)
    else:
        assert 20 < len(safe_text(refused)) < 3000
    library.set_task_folder(folder)
    assert time.process_time() - began < READ_S
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used) * 1024 < MEMORY
    assert watched == []
    assert {path.relative_to(folder) for path in (folder / name).rglob("*")} == before


def _refusal(name: str) -> str | None:
    """Why the folder is no task, None where it is one."""
    try:
        library.load_task(name)
    except BadTask as error:
        return str(error)
    except KeyError:
        return f"There is no plain task.toml in {name}."
    return None


async def _ask(name: str, scorer: Scorer) -> None:
    """A question and three verdicts: each is a reward or a reason."""
    ref = held_out(name, "own", 0)
    answer = library.load_task(name).held_out[0].get("answer", "x")
    texts = [f"<answer>{text}</answer>" for text in (answer, "a" * 40 + "!", "[" * 900 + "]" * 900)]
    found = await scorer.score_many([(ref, (text,)) for text in texts])
    assert all(isinstance(verdict, (ScoredTexts, ScoringFailed)) for verdict in found)
    assert all(0.0 <= verdict.rewards[0] <= 1.0 for verdict in found if isinstance(verdict, ScoredTexts))


@pytest.mark.parametrize("name", ["../x", "/etc", "a/b", ".hidden", "", "..", "A", "a" * 41, "a\x00b", "a\nb", "ä"])
def test_a_name_never_leads_out_of_the_folder(name: str, folder: Path) -> None:
    assert not library.has_task(name)
    with pytest.raises(KeyError):
        library.load_task(name)
