"""Which commit of a base counts where several programs share the cache."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sapo_backends.checkpoints import hub_cache, locate
from sapo_backends.checkpoints.locate import bundled_model_folder

ID = "owner/tiny"


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only commit, as a download leaves it."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = shutil.copytree(
        bundled_model_folder("starter-1m"), hub_cache.repository_folder(ID) / "snapshots" / ("a" * 40)
    )
    hub_cache.update_main_ref(ID, found.name)
    return found


def test_a_newer_commit_that_another_program_fetched_in_part_hides_no_whole_one(first: Path) -> None:
    newer = first.with_name("f" * 40)
    newer.mkdir()
    shutil.copy(first / "config.json", newer)
    hub_cache.update_main_ref(ID, newer.name)
    assert hub_cache.find_snapshot(ID) == first


def test_a_base_stays_at_the_commit_that_was_used_first_whatever_another_program_fetches(first: Path) -> None:
    """With another chat template it would be another model to those that were trained on it."""
    assert locate.resolve_model(ID) == first
    newer = shutil.copytree(first, first.with_name("f" * 40))
    hub_cache.update_main_ref(ID, newer.name)
    assert locate.resolve_model(ID) == first
    shutil.rmtree(first)  # the person made room
    assert locate.resolve_model(ID) == newer
