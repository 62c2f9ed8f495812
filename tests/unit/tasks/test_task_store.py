"""Own tasks on the disk: what is replaced is kept, once; what is deleted is gone, and nothing that is in use goes unasked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.own_tasks import library_in, sums, write_folder

from sapo_desktop.commands.tasks.verb import OWN, SHARED, USAGE
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import store as models
from sapo_desktop.services.tasks import looking, store
from sapo_desktop.services.tasks.proposal.draft import RESERVED
from sapo_swarm.config import RunConfig
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import OwnTask, read_task
from sapo_swarm.tasks.own.library import SharedTask


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "me"))
    found = Home.find()
    found.prepare()
    with library_in(found.tasks):
        yield found


def task(folder: Path, train: int = 80) -> OwnTask:
    return read_task(sums(folder / str(train) / "my_sums", train=train))


def edited(home: Home, text: str) -> None:
    path = home.tasks / "my_sums" / "task.toml"
    path.write_text(path.read_text("utf-8").replace('"{question}"', f'"{text} {{question}}"'), "utf-8")


def test_a_task_that_is_replaced_is_kept_with_what_the_person_changed(home: Home, tmp_path: Path) -> None:
    assert store.store_task(task(tmp_path), home, replace=False) is None
    with pytest.raises(UsageError, match="say --replace"):
        store.store_task(task(tmp_path, 60), home, replace=False)
    edited(home, "My wording:")
    kept = store.store_task(task(tmp_path, 70), home, replace=True)
    assert kept == home.data / "replaced" / "tasks" / "my_sums"
    assert read_task(kept).spec.prompt == "My wording: {question}"
    assert len(library.load_task("my_sums").train) == 70
    assert library.task_names() == ["my_sums"]
    assert not list(home.tasks.glob(".*"))


def test_one_copy_is_kept_and_the_same_task_again_does_not_push_it_out(home: Home, tmp_path: Path) -> None:
    store.store_task(task(tmp_path), home, replace=False)
    edited(home, "Mine:")
    kept = store.store_task(task(tmp_path, 70), home, replace=True)
    assert kept is not None
    assert store.store_task(read_task(home.tasks / "my_sums"), home, replace=True) is None
    assert read_task(kept).spec.prompt == "Mine: {question}"
    assert store.store_task(task(tmp_path, 60), home, replace=True) == kept
    assert len(read_task(kept).train) == 70
    assert [path.name for path in kept.parent.iterdir()] == ["my_sums"]


def model(home: Home, name: str, *tasks: str) -> None:
    models.create_model_folder(home, name, RunConfig(model="starter-1m", tasks=tasks))


def test_a_task_that_is_deleted_is_gone_with_its_copy_its_yes_and_its_place_in_swarms(
    home: Home, tmp_path: Path
) -> None:
    store.store_task(task(tmp_path), home, replace=False)
    store.store_task(task(tmp_path, 60), home, replace=True)
    library.allow_task_code(library.consent_bytes(library.load_task("my_sums")))
    for swarm, mine in (("a" * 16, True), ("b" * 16, False)):
        entry = SharedTask(swarm=swarm, name="my_sums", digest="0" * 64, held_out=False, mine=mine)
        library.add_shared_task(home.tasks, entry)
    library.add_shared_task(
        home.tasks, SharedTask(swarm="a" * 16, name="other", digest="0" * 64, held_out=False, mine=True)
    )
    code = library.consent_bytes(library.load_task("my_sums"))
    store.remove_task(home, "my_sums")
    assert library.task_names() == []
    assert not store.replaced_task_path(home, "my_sums").exists()
    assert not library.is_code_allowed(code)
    assert [entry.name for entry in library.load_shared_tasks(home.tasks)] == ["other"]
    assert not [path for path in home.tasks.iterdir() if path.is_dir()]


def test_a_task_that_cannot_be_read_and_one_that_is_a_link_can_be_deleted(home: Home, tmp_path: Path) -> None:
    (home.tasks / "broken").mkdir(parents=True)
    (home.tasks / "broken" / "task.toml").write_text("name = ")
    (home.tasks / "linked").symlink_to(sums(tmp_path / "linked"))
    store.remove_task(home, "broken")
    store.remove_task(home, "linked")
    assert library.task_names() == []
    assert (tmp_path / "linked" / "task.toml").exists()


def test_a_task_that_settings_name_is_in_use_and_says_by_whom(home: Home, tmp_path: Path) -> None:
    store.store_task(task(tmp_path), home, replace=False)
    store.require_unused(home, "my_sums")
    model(home, "maths", "my_sums", "bf")
    model(home, "other", "bf")
    with pytest.raises(
        UsageError, match=r"the model maths\. Give it other tasks \(sapo-desktop node maths --tasks A,B\)"
    ):
        store.require_unused(home, "my_sums")
    model(home, "third", "my_sums")
    with pytest.raises(UsageError, match=r"the models maths, third\."):
        store.require_unused(home, "my_sums")
    home.settings.write_text('[run]\ntasks = ["my_sums"]\n')
    with pytest.raises(UsageError, match=r"for new models \(run\.tasks\), the models maths, third.*--even-in-use"):
        store.require_unused(home, "my_sums")


def test_only_tasks_of_ones_own_are_deleted(home: Home) -> None:
    for name, why in (("bf", "ships with the app"), ("nothing", "You have none yet"), ("../models", "no task")):
        with pytest.raises(UsageError, match=why):
            store.require_own(name)


def test_no_task_is_called_like_a_verb_of_tasks() -> None:
    assert {*OWN, *SHARED} <= set(RESERVED)
    assert all(f"sapo-desktop tasks {verb} " in USAGE for verb in (*OWN, *SHARED))


def test_a_yes_to_code_that_another_task_has_too_outlives_the_deleted_one(home: Home) -> None:
    code = b"def reward(completions, **columns): return [1.0]"
    for name in ("one", "two"):
        write_folder(home.tasks / name, '[[verifier]]\nkind = "function"\n', [{"question": "a"}], [{"question": "b"}])
        (home.tasks / name / "reward.py").write_bytes(code)
    library.allow_task_code(code)
    store.remove_task(home, "one")
    assert library.is_code_allowed(code)
    store.remove_task(home, "two")
    assert not library.is_code_allowed(code)


def test_a_task_whose_answers_stand_between_tags_is_named_to_who_trains_another_base_on_it(tmp_path: Path) -> None:
    rows = [{"question": f"q {n}", "answer": "a"} for n in range(6)]
    write_folder(tmp_path / "tagged", '[[verifier]]\nkind = "exact"\n', rows[:4], rows[4:])
    write_folder(tmp_path / "plain", 'extract = "last_line"\n[[verifier]]\nkind = "exact"\n', rows[:4], rows[4:])
    with library_in(tmp_path):
        (sentence,) = looking.foreign_form(RunConfig(model="my model.gguf", tasks=("tagged", "plain", "chain_sum")))
        assert "tagged count only between <answer>" in sentence
        assert sentence.endswith("--model 'my model.gguf'")
        assert looking.foreign_form(RunConfig(model="starter", tasks=("tagged",))) == []
