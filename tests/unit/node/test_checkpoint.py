"""Checkpoints: whole or absent, the newest intact one wins, milestones stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapo_backends.base import CheckpointCorrupt, LoadRequest
from sapo_backends.fake import FakeBackend
from sapo_swarm.events import LogLine, decode, encode
from sapo_swarm.node.storage.checkpoints import MILESTONE, Checkpoints, read_state, rounds_of

ENGINE = FakeBackend().load(LoadRequest("fake"))


def write(checkpoints: Checkpoints, rounds: int) -> Path:
    return checkpoints.write(ENGINE, rounds, "fake", [encode(LogLine(level="info", text=f"round {rounds}"))], ["bf"])


def test_what_is_written_is_found_again_with_its_events(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "c", keep=3)
    path = write(checkpoints, 7)
    found, warnings = checkpoints.newest_intact()
    assert found is not None
    assert (found[0], warnings) == (path, [])
    assert found[1].rounds_done == 7
    assert found[1].solved == ("bf",)
    event = decode(bytes(found[1].events[0]))
    assert isinstance(event, LogLine)
    assert event.text == "round 7"


def test_old_checkpoints_go_but_the_first_and_every_milestone_stay(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "c", keep=2)
    for rounds in (0, 1, MILESTONE, MILESTONE + 1, MILESTONE + 2, MILESTONE + 3):
        write(checkpoints, rounds)
    assert [rounds_of(p) for p in checkpoints.complete()] == [0, MILESTONE, MILESTONE + 2, MILESTONE + 3]


def test_a_partial_folder_is_no_checkpoint_and_is_cleared_away(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "c", keep=2)
    write(checkpoints, 1)
    (tmp_path / "c" / ".partial-000002" / "engine").mkdir(parents=True)
    found, _ = checkpoints.newest_intact()
    assert found is not None
    assert rounds_of(found[0]) == 1
    assert not list((tmp_path / "c").glob(".partial-*"))


@pytest.mark.parametrize("damage", ["shorten", "remove", "add"])
def test_any_damage_is_found_and_the_older_one_used(tmp_path: Path, damage: str) -> None:
    checkpoints = Checkpoints(tmp_path / "c", keep=9)
    write(checkpoints, 1)
    path = write(checkpoints, 2)
    victim = next(p for p in (path / "engine").iterdir())
    if damage == "shorten":
        victim.write_bytes(victim.read_bytes()[:-1])
    elif damage == "remove":
        victim.unlink()
    else:
        (path / "engine" / "extra").write_text("?")
    with pytest.raises(CheckpointCorrupt, match="round-000002"):
        read_state(path)
    found, warnings = checkpoints.newest_intact()
    assert found is not None
    assert rounds_of(found[0]) == 1
    assert len(warnings) == 1


def test_a_run_whose_checkpoints_are_all_damaged_is_never_started_over(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "c", keep=9)
    (write(checkpoints, 1) / "state.json").write_text("{")
    with pytest.raises(CheckpointCorrupt, match="--new"):
        checkpoints.newest_intact()


def test_a_failed_write_leaves_the_older_checkpoint_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path / "c", keep=9)
    write(checkpoints, 1)

    def full(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ENGINE, "save", full)
    with pytest.raises(OSError, match="No space left"):
        write(checkpoints, 2)
    assert [p.name for p in checkpoints.folder.iterdir()] == ["round-000001"]
