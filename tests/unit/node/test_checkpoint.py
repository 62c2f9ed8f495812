"""Checkpoints: whole or absent, the newest intact one wins, everything within the disk budget."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from sapo_backends.base import LoadRequest
from sapo_backends.errors import CheckpointCorrupt
from sapo_backends.fake import FakeBackend, FakeEngine
from sapo_swarm.config import RunConfig
from sapo_swarm.node.checkpoints import (
    CheckpointInfo,
    CheckpointStore,
    NoRoom,
    checkpoints_to_drop,
    folder_bytes,
    has_optimizer,
    read_state,
    rounds_of,
)
from sapo_swarm.node.model_store import BYTES_A_DAY, DAY_S, checkpoint_due

ENGINE = FakeBackend().load(LoadRequest("fake"))


def write(checkpoints: CheckpointStore, rounds: int) -> Path:
    return checkpoints.write(ENGINE, CheckpointInfo(rounds, "time", ("bf",))).path


def rounds_in(checkpoints: CheckpointStore) -> list[int]:
    return [rounds_of(p) for p in checkpoints.complete()]


def with_optimizer(checkpoints: CheckpointStore) -> list[int]:
    return [rounds_of(p) for p in checkpoints.complete() if has_optimizer(p, read_state(p))]


def damage(path: Path) -> None:
    (path / "engine" / "extra").write_text("?")


def test_what_is_written_is_found_again(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(tmp_path / "c", keep=3)
    saved = checkpoints.write(ENGINE, CheckpointInfo(7, "pause", ("bf",), parent="a" * 64))
    found, warnings = checkpoints.newest_intact()
    assert found is not None
    assert (found[0], warnings) == (saved.path, [])
    state = found[1]
    assert (state.rounds_done, state.solved, state.reason, state.parent) == (7, ("bf",), "pause", "a" * 64)
    assert state.weights == state.digests["fake.safetensors"]
    assert saved.bytes == checkpoints.written == checkpoints.used()


def test_only_the_newest_keeps_its_optimizer_and_every_one_stays_intact(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(tmp_path / "c", keep=9)
    for rounds in range(4):
        write(checkpoints, rounds)
    assert rounds_in(checkpoints) == [0, 1, 2, 3]
    assert with_optimizer(checkpoints) == [3]


def test_the_first_the_newest_the_best_and_ever_fewer_old_ones_stay(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(tmp_path / "c", keep=2)
    checkpoints.pinned = (5,)
    for rounds in range(40):
        write(checkpoints, rounds)
    kept = rounds_in(checkpoints)
    assert {0, 5, 38, 39} <= set(kept)
    assert len(kept) <= 2 + 1 + 1 + 6
    gaps = [b - a for a, b in pairwise(kept) if a != 5 and b != 5]
    assert gaps == sorted(gaps, reverse=True)


def test_where_the_budget_holds_one_best_checkpoint_only_that_is_the_first_pinned(tmp_path: Path) -> None:
    """The sampled best, which the tripwire needs; with more room the greedy best is the last that goes."""
    sizes = CheckpointStore(tmp_path / "sizes", keep=9)
    write(sizes, 0)
    write(sizes, 1)
    weights = folder_bytes(tmp_path / "sizes" / "round-000000")
    for room, pinned_stay in ((4.4, {3, 6}), (3.4, {6})):
        folder = tmp_path / str(room)
        checkpoints = CheckpointStore(folder, keep=1)
        for rounds in range(9):
            checkpoints.pinned = (6, 3) if rounds > 6 else (3,)
            write(checkpoints, rounds)
        checkpoints.budget = int(room * weights)
        write(checkpoints, 9)
        kept = set(rounds_in(checkpoints))
        assert kept & {3, 6} == pinned_stay
        assert 9 in kept
        assert checkpoints.used() <= checkpoints.budget


def test_a_copy_leaves_its_source_where_the_budget_is_tight_and_a_changed_source_is_no_checkpoint(
    tmp_path: Path,
) -> None:
    checkpoints = CheckpointStore(tmp_path / "c", keep=9)
    for rounds in range(4):
        write(checkpoints, rounds)
    source = tmp_path / "c" / "round-000001"
    state = read_state(source)
    checkpoints.budget = checkpoints.used()
    saved = checkpoints.write_copy(source, state, CheckpointInfo(4, "rollback", parent=state.weights, restored=1))
    assert read_state(saved.path).weights == state.weights
    assert (saved.optimizer, saved.state.restored) == (False, 1)
    assert {1, 3, 4} <= set(rounds_in(checkpoints))
    assert checkpoints.used() <= checkpoints.budget
    damage(source)
    (source / "engine" / "fake.json").write_text("{}")
    with pytest.raises(CheckpointCorrupt, match="nothing was done"):
        checkpoints.write_copy(source, state, CheckpointInfo(5, "rollback", restored=1))
    assert 5 not in rounds_in(checkpoints)
    assert not list((tmp_path / "c").glob(".partial-*"))


def test_of_a_million_rounds_about_twenty_checkpoints_stay() -> None:
    rounds = list(range(0, 1_000_000, 100))
    kept = sorted({*rounds} - {*checkpoints_to_drop(rounds, 3, ())})
    assert len(kept) < 25
    assert kept[0] == 0


def test_nothing_is_ever_above_the_budget_also_while_a_new_one_is_written(tmp_path: Path) -> None:
    """A budget of four and a half whole checkpoints, of which other files take one; measured inside the engine's save."""
    size = CheckpointStore(tmp_path / "one", 1).write(ENGINE, CheckpointInfo(0, "start")).bytes
    budget = int(4.5 * size)
    checkpoints = CheckpointStore(
        tmp_path / "c", keep=9, budget=budget, counted=lambda folder: folder_bytes(folder) + size
    )
    most = 0

    class Watched(FakeEngine):
        def save(self, folder: Path, optimizer: bool = True) -> None:
            nonlocal most
            super().save(folder, optimizer)
            most = max(most, folder_bytes(tmp_path / "c") + size)

    engine = Watched(LoadRequest("fake"))
    checkpoints.pinned = (2,)
    for rounds in range(30):
        checkpoints.write(engine, CheckpointInfo(rounds, "time"))
        assert checkpoints.used() <= budget
    assert most <= budget
    assert {2, 29} <= set(rounds_in(checkpoints))
    assert with_optimizer(checkpoints) == [29]


def test_where_the_budget_is_tight_the_optimizer_goes_before_the_weights(tmp_path: Path) -> None:
    whole = CheckpointStore(tmp_path / "one", 1).write(ENGINE, CheckpointInfo(0, "start")).bytes
    checkpoints = CheckpointStore(tmp_path / "c", keep=9, budget=int(1.2 * whole))
    for rounds in range(5):
        checkpoints.write(ENGINE, CheckpointInfo(rounds, "time"))
        assert checkpoints.used() <= 1.2 * whole
    assert rounds_in(checkpoints)[-1] == 4
    assert checkpoints.newest_intact()[0] is not None


def test_a_budget_without_room_for_two_checkpoints_is_refused_with_what_to_set(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(tmp_path / "c", keep=9, budget=1000)
    with pytest.raises(NoRoom, match="--disk-budget-gb"):
        checkpoints.require_room(ENGINE)


def test_a_checkpoint_that_does_not_fit_is_refused_in_one_sentence_and_the_old_one_stays(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(tmp_path / "c", keep=9)
    write(checkpoints, 1)
    checkpoints.budget = 1000
    with pytest.raises(NoRoom, match="disk_budget_gb"):
        write(checkpoints, 2)
    assert rounds_in(checkpoints) == [1]
    assert checkpoints.newest_intact()[0] is not None


def test_one_that_would_not_fit_even_without_all_older_ones_deletes_none_of_them_nor_the_newest_ones_optimizer(
    tmp_path: Path,
) -> None:
    checkpoints = CheckpointStore(tmp_path / "c", keep=9)
    for rounds in range(4):
        write(checkpoints, rounds)
    checkpoints.counted = lambda folder: folder_bytes(folder) + 10**9
    checkpoints.budget = 10**9 + 1000
    with pytest.raises(NoRoom, match="does not fit"):
        write(checkpoints, 4)
    assert rounds_in(checkpoints) == [0, 1, 2, 3]
    assert with_optimizer(checkpoints) == [3]


def test_one_that_is_written_again_replaces_the_old_one_only_when_it_is_whole(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(tmp_path / "c", keep=9)
    write(checkpoints, 1)
    checkpoints.write(ENGINE, CheckpointInfo(1, "rollback", rollbacks=1))
    assert read_state(tmp_path / "c" / "round-000001").rollbacks == 1
    (tmp_path / "c" / "round-000001").rename(tmp_path / "c" / ".replaced-round-000001")
    found, _ = checkpoints.newest_intact()
    assert found is not None, "killed between the two renames"
    assert rounds_in(checkpoints) == [1]


def test_a_checkpoint_is_due_by_time_and_for_large_models_by_their_bytes_a_day() -> None:
    config = RunConfig(checkpoint_minutes=2.0, checkpoint_every=1)
    assert not checkpoint_due(config, 10**6, 119.0, 50)
    assert checkpoint_due(config, 10**6, 120.0, 1)
    assert not checkpoint_due(config, 10**6, 1e6, 0), "nothing is new"
    large, seconds = BYTES_A_DAY // 20, DAY_S / 20
    assert not checkpoint_due(config, large, seconds - 1.0, 50)
    assert checkpoint_due(config, large, seconds, 1)
    assert not checkpoint_due(RunConfig(checkpoint_minutes=0.0, checkpoint_every=5), 1000, 1e3, 4)


def test_a_partial_folder_is_no_checkpoint_and_is_cleared_away(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(tmp_path / "c", keep=2)
    write(checkpoints, 1)
    (tmp_path / "c" / ".partial-000002" / "engine").mkdir(parents=True)
    found, _ = checkpoints.newest_intact()
    assert found is not None
    assert rounds_of(found[0]) == 1
    assert not list((tmp_path / "c").glob(".partial-*"))


@pytest.mark.parametrize("kind", ["shorten", "remove", "add"])
def test_any_damage_is_found_and_the_older_one_used(tmp_path: Path, kind: str) -> None:
    checkpoints = CheckpointStore(tmp_path / "c", keep=9)
    write(checkpoints, 1)
    path = write(checkpoints, 2)
    victim = next(p for p in (path / "engine").iterdir())
    if kind == "shorten":
        victim.write_bytes(victim.read_bytes()[:-1])
    elif kind == "remove":
        victim.unlink()
    else:
        damage(path)
    with pytest.raises(CheckpointCorrupt, match="round-000002"):
        read_state(path)
    found, warnings = checkpoints.newest_intact()
    assert found is not None
    assert rounds_of(found[0]) == 1
    assert len(warnings) == 1


def test_a_damaged_checkpoint_does_not_count_as_the_newest_and_stays_for_a_person(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(tmp_path / "c", keep=1)
    used = write(checkpoints, 90)
    damage(write(checkpoints, 100))
    assert checkpoints.set_aside(used) == ["damaged-round-000100"]
    assert checkpoints.set_aside(used) == []
    write(checkpoints, 91)
    write(checkpoints, 92)
    assert rounds_in(checkpoints)[-1] == 92
    assert with_optimizer(checkpoints) == [92]
    assert (tmp_path / "c" / "damaged-round-000100" / "engine" / "extra").exists()


def test_damaged_checkpoints_are_bounded_and_go_before_intact_ones_where_room_is_short(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(tmp_path / "c", keep=2)
    used = write(checkpoints, 1)
    for rounds in (2, 3, 4):
        damage(checkpoints.write(ENGINE, CheckpointInfo(rounds, "time", ("bf",))).path)
    assert checkpoints.set_aside(used) == ["damaged-round-000003", "damaged-round-000004"]
    checkpoints.budget = int(2.5 * folder_bytes(used))
    write(checkpoints, 5)
    assert rounds_in(checkpoints) == [1, 5]
    assert not list((tmp_path / "c").glob("damaged-*"))


def test_a_run_whose_checkpoints_are_all_damaged_is_never_started_over(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(tmp_path / "c", keep=9)
    (write(checkpoints, 1) / "state.json").write_text("{")
    with pytest.raises(CheckpointCorrupt, match="sapo-desktop new"):
        checkpoints.newest_intact()


def test_a_failed_write_leaves_the_older_checkpoint_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = CheckpointStore(tmp_path / "c", keep=9)
    write(checkpoints, 1)

    def full(folder: Path, optimizer: bool = True) -> None:
        (folder / "half").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ENGINE, "save", full)
    with pytest.raises(OSError, match="No space left"):
        write(checkpoints, 2)
    assert [p.name for p in checkpoints.folder.iterdir()] == ["round-000001"]
