"""A task as a folder, and how its rows are addressed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.own_tasks import library_in, sums, task_of, write_folder

from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import held_out_items
from sapo_swarm.node.round_phases import candidate_refs
from sapo_swarm.protocol.receive import AcceptanceRules
from sapo_swarm.scoring.prompts import SYSTEM_PROMPT, build_conversation
from sapo_swarm.tasks.catalogue import HELD_OUT_SEED, TRAIN_LIMIT, UnknownTask, held_out, preset_of
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import DIGITS, read_task, spec_text, write_task
from sapo_swarm.tasks.own.row_roles import held_out_places
from sapo_swarm.tasks.own.spec import (
    BadTask,
    ChoiceVerifier,
    ExactVerifier,
    NumberVerifier,
    RegexVerifier,
    TaskSpec,
    parse_spec,
)
from sapo_swarm.tasks.questions import NoSuchQuestion, generate_entry
from sapo_swarm.types import GENERATOR_VERSION, Question, TaskRef


def test_training_seeds_reach_every_training_row_and_no_held_out_one(tmp_path: Path) -> None:
    sums(tmp_path / "sums", train=5, held_out=3)
    with library_in(tmp_path):
        task = library.load_task("sums")
        config = RunConfig(tasks=("sums",))
        refs = [ref for ref, _ in zip(candidate_refs(config, "me", "silo", 0), range(200), strict=False)]
        trained = {generate_entry(ref)[1]["question"] for ref in refs}
        kept = {generate_entry(ref)[1]["question"] for ref in held_out_items(["sums"], "starter", 400)}
    assert trained == {task.spec.fill(row) for row in task.train}
    assert kept == {task.spec.fill(row) for row in task.held_out}


@given(seed=st.integers(0, 2**32 - 1), index=st.integers(0, 2**20 - 1))
def test_no_coordinates_lead_from_one_side_to_the_other(
    tmp_path_factory: pytest.TempPathFactory, seed: int, index: int
) -> None:
    home = tmp_path_factory.mktemp("t")
    sums(home / "sums", train=5, held_out=3)
    with library_in(home):
        task = library.load_task("sums")
        try:
            row = generate_entry(TaskRef("sums", "own", seed, index, task.generator))[1]["row"]
        except NoSuchQuestion:
            return
    assert (row in task.held_out) == (seed == HELD_OUT_SEED)
    assert (row in task.train) == (seed < TRAIN_LIMIT and index == 0)


def test_a_task_has_as_many_held_out_items_as_it_has_rows(tmp_path: Path) -> None:
    sums(tmp_path / "sums", held_out=20)
    with library_in(tmp_path):
        assert len(held_out_items(["sums", "bf"], "starter", 50)) == 70
        assert len(held_out_items(["sums"], "starter", 8, start=16)) == 4


def test_an_own_task_has_a_namespace_that_no_swarm_takes(tmp_path: Path) -> None:
    sums(tmp_path / "sums")
    with library_in(tmp_path):
        ref = held_out("sums", preset_of("sums", "starter"), 0)
    assert ref.preset == "own"
    assert ref.generator.startswith("task-")
    assert len(ref.generator) == 5 + DIGITS
    assert ref.generator != GENERATOR_VERSION
    assert ref.dataset not in AcceptanceRules().tasks


def test_a_task_that_changed_since_is_another_task(tmp_path: Path) -> None:
    sums(tmp_path / "sums")
    with library_in(tmp_path):
        ref = held_out("sums", "own", 0)
        (tmp_path / "sums" / "heldout.jsonl").write_text('{"question": "other", "answer": "1"}\n')
        library.set_task_folder(tmp_path)
        with pytest.raises(NoSuchQuestion, match="changed"):
            generate_entry(ref)


def test_a_catalogue_name_is_never_taken_by_a_folder(tmp_path: Path) -> None:
    sums(tmp_path / "bf")
    with library_in(tmp_path):
        assert held_out("bf", "starter", 0).generator == GENERATOR_VERSION


def test_a_misspelt_own_task_is_named(tmp_path: Path) -> None:
    sums(tmp_path / "my_sums")
    with library_in(tmp_path), pytest.raises(UnknownTask, match="my_sums"):
        preset_of("my_sum", "starter")


def test_name_description_and_licence_do_not_make_another_version() -> None:
    task = task_of(ExactVerifier(), description="one", licence="CC0")
    assert task.digest == task_of(ExactVerifier(), description="two").digest
    assert task.digest != task_of(ExactVerifier(case=True)).digest
    assert task.digest != task_of(ExactVerifier(), row={"question": "q", "answer": "b"}).digest


def test_the_digest_is_a_pinned_format() -> None:
    """Changing how it is made makes every stored reference unreadable: then the marker in it has to change too."""
    assert task_of(ExactVerifier()).digest == PINNED


PINNED = "f80b5fd59ed03eb11f4db7d6d4b6ade5d7794dc3937aa8f2aedb7c1068627e01"


def test_a_written_task_reads_as_it_was(tmp_path: Path) -> None:
    task = task_of(
        NumberVerifier(abs=0.5, units=("km", "m")), RegexVerifier(pattern=r"\d+ km", weight=2.0), system="Be short."
    )
    write_task(task, tmp_path / "t")
    assert read_task(tmp_path / "t") == task
    write_task(task, tmp_path / "t")
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_a_spec_is_written_without_what_is_as_it_is_anyway() -> None:
    spec = TaskSpec(name="t", verifier=(ChoiceVerifier(options=("a", "b")),))
    assert parse_spec(spec_text(spec), "x") == spec
    assert "weight" not in spec_text(spec)


def test_one_file_of_rows_is_split_when_it_is_read(tmp_path: Path) -> None:
    folder = sums(tmp_path / "sums")
    rows = (folder / "train.jsonl").read_text()
    for name in ("train.jsonl", "heldout.jsonl"):
        (folder / name).unlink()
    (folder / "rows.jsonl").write_text(rows)
    task = read_task(folder)
    assert (len(task.train), len(task.held_out)) == (64, 16)


def test_a_file_of_rows_is_split_by_the_rule_that_its_task_names(tmp_path: Path) -> None:
    """Without a name by the older one, so that no folder that is there changes what it holds out."""
    rows = [{"question": f"message {n}", "answer": "rare" if n % 10 == 0 else "often"} for n in range(100)]
    for name, toml in (("old", ""), ("new", 'split = "balanced"\n')):
        folder = write_folder(tmp_path / name, toml, rows, [])
        (folder / "heldout.jsonl").unlink()
        (folder / "train.jsonl").rename(folder / "rows.jsonl")
    old, new = read_task(tmp_path / "old"), read_task(tmp_path / "new")
    kept = {row["question"] for row in old.held_out}
    assert kept == {f"message {n}" for n in held_out_places([row["question"] for row in rows], 0.2)}
    assert sum(row["answer"] == "rare" for row in new.held_out) == 2
    assert (len(old.held_out), len(new.held_out)) == (20, 20)


def test_one_file_of_rows_is_split_by_its_cells_however_long_the_wording_around_them(tmp_path: Path) -> None:
    rows = [{"question": f"word{'xyz'[n % 3] * n}", "answer": n} for n in range(100)]
    folder = write_folder(
        tmp_path / "words", f'prompt = "{"Say how many letters it has. " * 8}{{question}}"\n', rows, []
    )
    (folder / "heldout.jsonl").unlink()
    (folder / "train.jsonl").rename(folder / "rows.jsonl")
    task = read_task(folder)
    assert (len(task.train), len(task.held_out)) == (80, 20)


def test_a_cell_that_looks_like_a_column_stays_text() -> None:
    spec = TaskSpec(name="t", prompt="{a} and {b}")
    assert spec.fill({"a": "{b}{b.__class__}", "b": "x"}) == "{b}{b.__class__} and x"


def test_a_tasks_own_system_prompt_is_used_and_the_apps_where_it_has_none(tmp_path: Path) -> None:
    write_folder(
        tmp_path / "one",
        'system = "Only JSON."\n',
        [{"question": "q", "answer": "a"}],
        [{"question": "p", "answer": "a"}],
    )
    sums(tmp_path / "two")
    with library_in(tmp_path):
        for name, wanted in (("one", "Only JSON."), ("two", SYSTEM_PROMPT)):
            assert build_conversation(Question(held_out(name, "own", 0), "q", "0" * 64))[0]["content"] == wanted


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ("name = ", "not valid TOML"),
        ('prompt = "no column"', "names no column"),
        ("[[verifier]]\nkind = 'exat'", "exat"),
        ("[[verifier]]\nkind = 'number'\nabs = -1", "abs|>= 0"),
        ("[[verifier]]\nkind = 'regex'\npattern = '(a+)+b'", "repeats something that repeats"),
        ("[[verifier]]\nkind = 'regex'\npattern = '('", "no regular expression"),
        ("verifier = []", "length"),
        ("surprise = 1", "surprise"),
        ("format = 2", "2"),
    ],
)
def test_a_spec_that_cannot_be_used_says_what_to_mend(tmp_path: Path, toml: str, sentence: str) -> None:
    folder = write_folder(tmp_path / "t", toml, [{"question": "q", "answer": "a"}], [{"question": "p", "answer": "a"}])
    with pytest.raises(BadTask, match=sentence):
        read_task(folder)


def test_rows_without_what_is_needed_are_left_out_with_their_numbers(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": "a"}, {"question": "q"}, {"question": "q", "answer": " "}, {"answer": "a"}]
    task = read_task(write_folder(tmp_path / "t", "", rows, rows[:1]))
    assert len(task.train) == 1
    assert [line.split(": ")[1] for line in task.problems] == ["Row 2", "Row 3", "Row 4"]


def test_a_folder_without_rows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadTask, match=r"no usable row in heldout\.jsonl"):
        read_task(write_folder(tmp_path / "t", "", [{"question": "q", "answer": "a"}], []))


def test_a_row_format_that_is_stored_keeps_its_fields() -> None:
    assert set(msgspec.to_builtins(TaskSpec(name="t"))) == {
        "format", "name", "description", "licence", "prompt", "system", "answer", "extract", "max_new_tokens",
        "heldout_share", "split", "difficulty", "shots", "verifier",
    }  # fmt: skip


def test_a_task_that_a_kill_left_under_its_old_name_comes_back(tmp_path: Path) -> None:
    """write_task renames twice; between the two there is no folder of the task's name."""
    (tmp_path / ".sums.old").mkdir()
    (tmp_path / ".sums.old" / "task.toml").write_text('name = "sums"\n')
    library.set_task_folder(tmp_path)
    assert library.task_names() == ["sums"]
    (tmp_path / ".sums.old").mkdir()
    library.set_task_folder(tmp_path)
    assert (tmp_path / ".sums.old").exists(), "a newer one is in its place"
    library.set_task_folder(None)
