"""What the commit before `resolve_run_config` wrote (tests/fixtures/before_resolve_run) is read by the code of today."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.archives import unpack
from tests.support.node_process import sapo
from tests.support.swarm_process import coordinator, journal

from sapo_desktop import settings
from sapo_desktop.paths import Home
from sapo_desktop.services.models.shelf import history, store
from sapo_swarm.config import RunConfig
from sapo_swarm.coordinator.store.sqlite import SQLiteStore
from sapo_swarm.events import Evaluated, RoundFinished
from sapo_swarm.node.journal import read_only
from sapo_swarm.protocol.invite import parse_invite
from sapo_swarm.resolve_run import resolve_run_config

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "before_resolve_run"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home with the settings and the model of before."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    shutil.copy(FIXTURES / "config.toml", tmp_path)
    unpack(FIXTURES / "model.tar.xz", tmp_path / "data" / "models")
    return Home.find()


def test_the_settings_of_before_say_of_each_value_where_it_comes_from(home: Home) -> None:
    before = home.settings.read_bytes()
    read = settings.load_settings(home.settings)
    assert (read.run.local_groups, read.run.temperature, read.person.name, read.limits.nice) == (4, 0.9, "Ada", 7)
    assert home.settings.read_bytes() == before, "nothing is migrated where no key was renamed"
    _, origins = resolve_run_config(read.run, flags={"seed": 0})
    assert (origins["local_groups"], origins["seed"], origins["rounds"]) == ("settings", "flag", "default")


def test_the_model_of_before_goes_on_from_its_checkpoint_with_its_own_settings(home: Home) -> None:
    model = store.find_model(home, "kim")
    assert (model.config.group_size, model.config.eval_every, model.rounds_done) == (4, 2, 4)
    assert len(history.load_history(model.folder).evaluations) >= 2
    events = read_only(model.folder / "journal.db")
    assert [event.round for event in events if isinstance(event, RoundFinished)] == [0, 1, 2, 3]
    assert any(isinstance(event, Evaluated) and event.delta is not None for event in events)
    done = sapo(home.config, "node", "kim", "--silo", "--rounds", "6")
    assert done.returncode == 0, done.stderr
    assert "Resumed from checkpoint 4" in done.stdout
    run = store.find_model(home, "kim")
    assert run.rounds_done == 6
    assert run.record.trained == run.config == model.config, "nothing was changed by starting it"
    assert resolve_run_config(RunConfig(), run.config)[1]["temperature"] == "model"


async def test_the_swarm_of_before_opens_with_its_invite_and_knows_its_member(tmp_path: Path) -> None:
    database = tmp_path / "swarm.db"
    shutil.copy(FIXTURES / "swarm.db", database)
    old = parse_invite((FIXTURES / "invite.txt").read_text("utf-8"))
    arguments = ("--port", "0", "--store", f"sqlite:{database}", "--group-life-s", "1000000000")
    async with coordinator(tmp_path / "host", *arguments) as (printed, _):
        fresh = parse_invite(printed)
        assert fresh.swarm == old.swarm
        run = ("--trainer", "fake", "--model", "fake", "--rounds", "2", "--tasks", "basic_arithmetic,base_conversion")
        invite = str(replace(old, port=fresh.port))
        done = sapo(tmp_path / "node", "node", "--join", invite, *run, "--group-size", "4", "--eval-every", "0")
    assert done.returncode == 0, done.stderr
    assert "Joined" in done.stdout
    assert len([event for event in journal(tmp_path / "node") if isinstance(event, RoundFinished)]) == 2
    opened = SQLiteStore(database)
    await opened.open()
    assert len(await opened.members()) == 2
    await opened.close()


def test_the_list_of_models_of_before_is_shown(home: Home) -> None:
    done = sapo(home.config, "models", "--json")
    (row,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (row["model"], row["base"], row["rounds"]) == ("kim", "fake", 4)
