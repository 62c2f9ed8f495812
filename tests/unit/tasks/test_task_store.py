"""Own tasks on the disk: what is replaced is kept, once; what is deleted is gone, and nothing that is in use goes unasked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.own_tasks import library_in, sums

from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.tasks import store
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import OwnTask, read_task


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
    assert store.keep(task(tmp_path), home, replace=False) is None
    with pytest.raises(UsageError, match="say --replace"):
        store.keep(task(tmp_path, 60), home, replace=False)
    edited(home, "My wording:")
    kept = store.keep(task(tmp_path, 70), home, replace=True)
    assert kept == home.data / "replaced" / "tasks" / "my_sums"
    assert read_task(kept).spec.prompt == "My wording: {question}"
    assert len(library.find("my_sums").train) == 70
    assert library.names() == ["my_sums"]
    assert not list(home.tasks.glob(".*"))


def test_one_copy_is_kept_and_the_same_task_again_does_not_push_it_out(home: Home, tmp_path: Path) -> None:
    store.keep(task(tmp_path), home, replace=False)
    edited(home, "Mine:")
    kept = store.keep(task(tmp_path, 70), home, replace=True)
    assert kept is not None
    assert store.keep(read_task(home.tasks / "my_sums"), home, replace=True) is None
    assert read_task(kept).spec.prompt == "Mine: {question}"
    assert store.keep(task(tmp_path, 60), home, replace=True) == kept
    assert len(read_task(kept).train) == 70
    assert [path.name for path in kept.parent.iterdir()] == ["my_sums"]
