"""Looking a journal over and mending it: what can be read stays, what cannot is put aside, nothing is thrown away."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.records import finished, opened

from sapo_swarm.node.journal import Journal, JournalError, check_journal, read_only, repair_journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    journal = Journal(tmp_path / "journal.db")
    journal.append([opened(0), *[finished(number) for number in range(6)]])
    journal.close()
    return journal.path


def damage(path: Path, sql: str, *values: object) -> None:
    journal = Journal(path)
    with journal.writing() as db:
        db.execute(sql, values)
    journal.close()


def test_a_sound_journal_is_called_sound_and_left_alone(path: Path) -> None:
    before = path.read_bytes()
    report = check_journal(path)
    assert (report.sound, report.events, report.rounds, report.missing) == (True, 7, 6, 0)
    assert "sound" in report.sentence
    assert repair_journal(path) == report
    assert path.read_bytes() == before


def test_unreadable_events_are_counted_and_taken_out_with_the_old_file_kept(path: Path) -> None:
    damage(path, "UPDATE events SET body = ? WHERE seq = 3", b"{")
    report = check_journal(path)
    assert (report.sound, report.unreadable, report.missing) == (False, 1, 1)
    assert "1 events cannot be read" in report.sentence
    mended = repair_journal(path)
    assert mended.aside is not None
    assert mended.aside.exists()
    assert check_journal(path).sound
    assert [e.seq for e in read_only(path)] == [1, 2, 4, 5, 6, 7]


def test_of_a_round_told_twice_the_newer_one_counts(path: Path) -> None:
    journal = Journal(path)
    journal.append([finished(2, reward=0.9)])
    journal.close()
    assert check_journal(path).repeated == 1
    repair_journal(path)
    told = [e.reward_local for e in read_only(path, ("round",)) if e.round == 2]  # type: ignore[union-attr]
    assert told == [0.9]


def test_what_a_damaged_file_still_gives_is_saved(path: Path) -> None:
    journal = Journal(path)
    journal.append([finished(number) for number in range(6, 400)])
    journal.close()
    raw = bytearray(path.read_bytes())
    middle = len(raw) // 2
    raw[middle : middle + 8192] = b"\xff" * 8192
    path.write_bytes(bytes(raw))
    report = check_journal(path)
    assert report.damage
    mended = repair_journal(path)
    assert mended.events > 100
    assert check_journal(path).sound


class Killed(BaseException):
    """Nothing runs after it."""


@pytest.mark.parametrize("step", ["link", "unlink", "replace", "rename"])
@pytest.mark.parametrize("how", [Killed(), OSError(13, "held by a virus scanner")], ids=["killed", "refused"])
def test_a_repair_that_ends_at_any_change_of_names_leaves_a_journal_with_every_readable_event(
    path: Path, step: str, how: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(path, "UPDATE events SET body = ? WHERE seq = 3", b"{")

    def ending(real: Callable[..., Any], step_: str) -> Callable[..., Any]:
        def call(*names: Any, **more: Any) -> Any:
            if (step_ == step and str(path) in map(str, names)) or str(names[0]).endswith(".repaired"):
                raise how
            return real(*names, **more)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", ending(os.link, "link"))
        for name in ("unlink", "rename", "replace"):
            patch.setattr(Path, name, ending(getattr(Path, name), name))
        with pytest.raises((Killed, JournalError)):
            repair_journal(path)
    assert [e.seq for e in read_only(path)] == [1, 2, 4, 5, 6, 7]
    if isinstance(how, OSError):
        assert not path.with_name("journal.db.before-repair").exists(), "it is said to be as it was"
    repair_journal(path)
    assert [e.seq for e in read_only(path)] == [1, 2, 4, 5, 6, 7]


def test_a_missing_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no journal"):
        check_journal(tmp_path / "journal.db")
