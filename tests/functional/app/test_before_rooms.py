"""What was written before the code was regrouped (tests/fixtures/before_rooms/README.md) is read by the code of today."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.node_process import sapo
from tests.support.swarm_process import coordinator, journal

from sapo_desktop import settings
from sapo_swarm.coordinator.store.sqlite import SQLiteStore
from sapo_swarm.events import SwarmUpdated
from sapo_swarm.protocol.invite import parse_invite

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "before_rooms"


def test_a_settings_file_of_before_is_read_and_rewritten_with_one_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "config.toml"
    shutil.copy(FIXTURES / "config.toml", path)
    before = path.read_text("utf-8")
    found = settings.load_settings(path)
    assert (found.run.local_groups, found.run.external_groups) == (4, 2)
    assert (found.person.name, found.limits.nice) == ("Ada", 7)
    assert path.read_text("utf-8") == before.replace("own_groups", "local_groups")
    assert [record.getMessage() for record in caplog.records] == [
        f"Settings: run.own_groups is called run.local_groups now; {path} was brought up to date."
    ]
    assert settings.load_settings(path) == found
    assert len(caplog.records) == 1, "the second time there is nothing to tell"


def test_a_verb_over_such_a_file_says_so_in_one_line(tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "config.toml", tmp_path / "config.toml")
    first = sapo(tmp_path, "config", "get", "run.local_groups")
    assert (first.returncode, first.stdout) == (0, "4\n")
    assert first.stderr.count("\n") == 1
    assert "run.own_groups is called run.local_groups now" in first.stderr
    assert sapo(tmp_path, "config", "get", "run.local_groups").stderr == ""


async def test_the_swarm_of_before_opens_with_its_invite_its_member_and_its_groups(tmp_path: Path) -> None:
    database = tmp_path / "swarm.db"
    shutil.copy(FIXTURES / "swarm.db", database)
    old = parse_invite((FIXTURES / "invite.txt").read_text("utf-8"))
    arguments = ("--port", "0", "--store", f"sqlite:{database}", "--group-life-s", "1000000000")
    async with coordinator(tmp_path / "host", *arguments) as (printed, _):
        fresh = parse_invite(printed)
        assert fresh.swarm == old.swarm
        invite = str(replace(old, port=fresh.port))
        done = sapo(
            tmp_path / "node",
            *(
                "node",
                "--join",
                invite,
                "--trainer",
                "fake",
                "--model",
                "fake",
                "--rounds",
                "4",
                "--sampling",
                "uniform",
            ),
            *("--tasks", "basic_arithmetic,base_conversion", "--group-size", "4", "--eval-every", "0"),
        )
    assert done.returncode == 0, done.stderr
    assert "Joined" in done.stdout
    seen = [event.rejected for event in journal(tmp_path / "node") if isinstance(event, SwarmUpdated)]
    assert max(rejected.get("stale", 0) for rejected in seen) > 0, "groups of before arrive, and are too old by now"
    store = SQLiteStore(database)
    await store.open()
    assert len(await store.members()) == 2
    await store.close()
