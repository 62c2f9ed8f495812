"""Files that came from somewhere (a model's folder, settings, a base, a swarm's export) and what a coordinator says are printed,
never obeyed by the terminal."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from pathlib import Path

import msgspec
import pytest
from tests.functional.swarm.test_lying_coordinator import coordinator, http

from sapo_assets import models
from sapo_desktop import cli
from sapo_swarm.coordinator.admin import FORMAT, SwarmExport
from sapo_swarm.coordinator.records import SwarmRecord
from sapo_swarm.protocol.wire import Limits, Problem, SwarmInfo

EVIL = "ev\x1b]52;c;x\x07il\x9b2J\u202e\u200b"
OBEYED = set("\x1b\x07\x9b\u202e\u200b")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a model `one` from the small starter."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    assert cli.run_command_line(["new", "one", "--base", "starter-1m"]) == 0
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    cli.run_command_line(list(words))
    found = capsys.readouterr()
    return found.out + found.err


@pytest.mark.parametrize("words", [("models",), ("models", "--json"), ("models", "show", "one"), ("new", "two")])
def test_a_record_of_a_model_is_shown_as_plain_text(
    home: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    path = home / "data" / "models" / "one" / "model.json"
    record = json.loads(path.read_text("utf-8"))
    for change in ({"base": EVIL}, {"base": EVIL, "name": EVIL}):
        path.write_text(json.dumps({**record, **change}), "utf-8")
        assert not set(said(capsys, *words)) & OBEYED


@pytest.mark.parametrize("words", [("config", "get"), ("config", "get", "person.name")])
def test_settings_are_shown_as_plain_text(
    home: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    quoted = json.dumps(EVIL)
    (home / "config.toml").write_text(f"{quoted} = 1\n[person]\nname = {quoted}\n", "utf-8")
    text = said(capsys, *words)
    assert "il" in text
    assert not set(text) & OBEYED


def test_a_base_that_another_wrote_is_shown_as_plain_text(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its architecture stands in the card, and in the refusal of the library that reads it."""
    folder = Path(shutil.copytree(models()["starter-1m"], home / "base"))
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [EVIL], "model_type": EVIL}), "utf-8")
    text = said(capsys, "models", "show", str(folder))
    assert "architecture ev" in text
    assert not set(text) & OBEYED


def test_the_export_of_a_swarm_is_shown_as_plain_text(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its name and id once it is in, and what is wrong with a file that is none."""
    swarm = SwarmRecord(swarm=EVIL, name=EVIL, open=False, certificate=b"", key=b"", created=0.0)
    whole = SwarmExport(format=FORMAT, version=1, swarm=swarm, members=(), invites=())
    for content, word in (
        (msgspec.msgpack.encode({**msgspec.to_builtins(whole, builtin_types=[bytes]), EVIL: 1}), "not an exported"),
        (msgspec.msgpack.encode(whole), "is in."),
    ):
        (home / "swarm.bin").write_bytes(content)
        text = said(capsys, "swarm", "import", str(home / "swarm.bin"))
        assert word in text
        assert not set(text) & OBEYED


INFO = SwarmInfo(
    swarm="a" * 16,
    name=EVIL,
    protocol=1,
    open=True,
    tasks=(),
    presets=(),
    generator="",
    shards=1,
    epoch=0,
    share_fraction=1.0,
    min_client="",
    limits=Limits(),
    nodes=1,
    time=0.0,
)


@pytest.mark.parametrize(
    ("reply", "code", "word"),
    [
        (http(msgspec.json.encode(INFO)), 0, "In ev"),
        (
            http(msgspec.json.encode(Problem(title="No", status=403, code="banned", detail=EVIL))).replace(
                b"200", b"403", 1
            ),
            2,
            "ev",
        ),
    ],
    ids=["its name", "its refusal"],
)
async def test_what_a_coordinator_says_to_who_contributes_is_shown_as_plain_text(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    reply: bytes,
    code: int,
    word: str,
) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(reply)

    monkeypatch.setattr("sys.stdin", io.StringIO("q\n"))
    capsys.readouterr()
    async with coordinator(answer) as client:
        typed = ["contribute", "--answer", "--join", str(client.invite), "--tasks", "basic_arithmetic"]
        assert await asyncio.to_thread(cli.run_command_line, typed) == code
    found = capsys.readouterr()
    assert word in found.out + found.err
    assert not set(found.out + found.err) & OBEYED
