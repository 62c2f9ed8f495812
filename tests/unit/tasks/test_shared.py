"""What leaves this machine: only a task that the person shared or accepted, in the very version that the swarm has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.own_tasks import library_in, sums, write_folder

from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import held_out_items
from sapo_swarm.node.round_phases import candidate_refs
from sapo_swarm.tasks.catalogue import HELD_OUT_SEED, generator_of, held_out
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import generator_id, read_task
from sapo_swarm.tasks.own.library import FILE, SharedTask
from sapo_swarm.tasks.own.spec import BadTask
from sapo_swarm.tasks.questions import NoSuchQuestion, generate_entry
from sapo_swarm.types import TaskRef

SWARM, OTHER = "a" * 16, "b" * 16


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    sums(tmp_path / "my_sums", train=5, held_out=3)
    with library_in(tmp_path):
        yield tmp_path


def note(home: Path, digest: str, held_out: bool = False, mine: bool = True) -> None:
    library.add_shared_task(home, SharedTask(swarm=SWARM, name="my_sums", digest=digest, held_out=held_out, mine=mine))
    library.set_task_folder(home)


def training_ref(swarm: str) -> TaskRef:
    return next(candidate_refs(RunConfig(tasks=("my_sums",)), "me", swarm, 0))


def test_a_shared_task_has_the_coordinates_of_its_shared_version_in_that_swarm_only(home: Path) -> None:
    task = library.load_task("my_sums")
    assert not library.has_shared_version("my_sums", SWARM)
    note(home, task.train_digest)
    assert library.has_shared_version("my_sums", SWARM)
    assert training_ref(SWARM).generator == generator_id(task.train_digest) != task.generator
    for swarm in ("silo", OTHER, ""):
        assert not library.has_shared_version("my_sums", swarm)
        assert training_ref(swarm or "silo").generator == generator_of("my_sums", swarm) == task.generator


def test_both_versions_ask_the_same_training_rows_and_held_out_rows_answer_to_the_whole_one_only(home: Path) -> None:
    task = library.load_task("my_sums")
    for version in (task.generator, generator_id(task.train_digest)):
        assert generate_entry(TaskRef("my_sums", "own", 7, 0, version))[1]["row"] == task.train[2]
    assert generate_entry(held_out("my_sums", "own", 0))[1]["row"] == task.held_out[0]
    with pytest.raises(NoSuchQuestion):
        generate_entry(TaskRef("my_sums", "own", HELD_OUT_SEED, 0, generator_id(task.train_digest)))


def test_a_task_that_was_edited_stays_here(home: Path) -> None:
    note(home, library.load_task("my_sums").train_digest)
    with (home / "my_sums" / "train.jsonl").open("a") as file:
        file.write('{"question": "Calculate 1 + 1.", "answer": "2"}\n')
    library.set_task_folder(home)
    assert not library.has_shared_version("my_sums", SWARM)
    assert training_ref(SWARM).generator == library.load_task("my_sums").generator


def test_other_held_out_rows_make_no_other_version_of_what_is_shared_without_them(home: Path) -> None:
    note(home, library.load_task("my_sums").train_digest)
    (home / "my_sums" / "heldout.jsonl").write_text('{"question": "Calculate 1 + 1.", "answer": "2"}\n')
    library.set_task_folder(home)
    assert library.has_shared_version("my_sums", SWARM)
    note(home, read_task(home / "my_sums").digest, held_out=True)
    assert library.has_shared_version("my_sums", SWARM)
    (home / "my_sums" / "heldout.jsonl").write_text('{"question": "Calculate 1 + 2.", "answer": "3"}\n')
    library.set_task_folder(home)
    assert not library.has_shared_version("my_sums", SWARM)


def test_only_a_task_that_was_accepted_may_have_no_held_out_rows(home: Path) -> None:
    digest = library.load_task("my_sums").train_digest
    (home / "my_sums" / "heldout.jsonl").write_text("")
    for mine, held_out_too in ((True, False), (False, True)):
        note(home, digest, held_out_too, mine)
        with pytest.raises(BadTask, match="no usable row"):
            library.load_task("my_sums")
    note(home, digest, mine=False)
    assert library.load_task("my_sums").digest == digest
    assert held_out_items(["my_sums"], "starter", 50) == []


def test_an_empty_held_out_file_says_the_same_where_no_note_tells_of_the_task_as_after_a_restore(home: Path) -> None:
    digest = library.load_task("my_sums").train_digest
    (home / "my_sums" / "heldout.jsonl").write_text("")
    library.set_task_folder(home)
    assert library.load_task("my_sums").digest == digest
    assert not library.has_shared_version("my_sums", SWARM)
    (home / "my_sums" / "heldout.jsonl").write_text("nothing")
    library.set_task_folder(home)
    with pytest.raises(BadTask, match="no usable row"):
        library.load_task("my_sums")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000, b'[{"swarm": "../x"}]', b" " * 2**21])
def test_where_the_note_is_damaged_nothing_is_shared(home: Path, content: bytes) -> None:
    note(home, library.load_task("my_sums").train_digest)
    (home / FILE).write_bytes(content)
    library.set_task_folder(home)
    assert library.shared_in(SWARM) == {}
    assert not library.has_shared_version("my_sums", SWARM)


def test_a_folder_cannot_say_for_itself_that_it_is_shared(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "theirs", "", [{"question": "q", "answer": "1"}], [{"question": "p", "answer": "1"}]
    )
    digest = read_task(folder).train_digest
    library.add_shared_task(folder, SharedTask(swarm=SWARM, name="theirs", digest=digest, held_out=False, mine=True))
    with library_in(tmp_path):
        assert not library.has_shared_version("theirs", SWARM)


def test_a_note_takes_the_place_of_the_earlier_version_and_can_be_taken_out(home: Path) -> None:
    for digest in ("1" * 64, "2" * 64):
        note(home, digest)
    assert [entry.digest for entry in library.load_shared_tasks(home)] == ["2" * 64]
    library.remove_shared_task(home, SWARM, "my_sums")
    assert library.load_shared_tasks(home) == ()
