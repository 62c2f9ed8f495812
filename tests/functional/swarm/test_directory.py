"""Directories over real sockets: what a host that lies, lags or grows can do to a reader, and a coordinator's own list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.support.served_file import ServedFile, served
from tests.unit.swarm.test_directory import JOIN, KEEPER, LIST, NOW

from sapo_desktop import settings
from sapo_desktop.cli import run_command_line
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.swarms import directories
from sapo_desktop.services.swarms.interface import SwarmDirectory
from sapo_swarm.coordinator.host import launch_coordinator
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.protocol.client import NodeClient
from sapo_swarm.protocol.directory import BadDirectory, fetch_directory, parse_address, sign_directory, verify_directory
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import parse_invite


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "me"))
    found = Home.find()
    found.prepare()
    return found


async def look(home: Home, fresh: bool = False, now: float = NOW + 5) -> SwarmDirectory:
    (found,) = await directories.read_directories(home, fresh, lambda: now)
    return found


@asynccontextmanager
async def listed(home: Home, body: bytes | None = None) -> AsyncIterator[ServedFile]:
    """A directory in this home's settings."""
    async with served(sign_directory(LIST, KEEPER) if body is None else body) as file:
        directories.follow_directory(home, f"{file.url}#key={KEEPER.node}")
        yield file


async def test_a_directory_is_read_once_in_six_hours_and_then_from_the_disk(home: Home) -> None:
    async with listed(home) as file:
        found = await look(home)
        assert [one.join for one in found.swarms] == [JOIN]
        assert (found.name, found.note, file.asked) == ("friends", "", 1)
        assert (await look(home, now=NOW + 3600)).read == NOW + 5
        assert file.asked == 1
        assert (await look(home, now=NOW + 3600, fresh=True)).read == NOW + 3600
        assert (await look(home, now=NOW + 9 * 3600)).read == NOW + 9 * 3600
        assert file.asked == 3


async def test_without_a_network_the_copy_is_shown_and_said_to_be_one(home: Home) -> None:
    async with listed(home):
        await look(home)
    found = await look(home, now=NOW + 8 * 3600)
    assert found.swarms
    assert found.read == NOW + 5
    assert "cannot be reached: nothing listens there" in found.note
    assert "expired" not in found.note
    gone = await look(home, now=LIST.expires + 1)
    assert gone.swarms == ()


async def test_a_copy_that_was_edited_on_the_disk_is_no_copy(home: Home) -> None:
    async with listed(home):
        await look(home)
    (copy,) = (home.cache / "directories").iterdir()
    copy.write_bytes(copy.read_bytes().replace(b"evenings", b"mornings"))
    assert (await look(home)).swarms == ()


async def test_a_host_cannot_bring_an_older_list_back(home: Home) -> None:
    async with listed(home, sign_directory(msgspec.structs.replace(LIST, issued=NOW + 60, swarms=()), KEEPER)) as file:
        await look(home, now=NOW + 90)
        file.body = sign_directory(LIST, KEEPER)
        found = await look(home, fresh=True, now=NOW + 120)
        assert found.swarms == ()
        assert "older list" in found.note


async def test_a_host_cannot_bring_an_older_list_back_when_the_newer_one_has_expired(home: Home) -> None:
    async with listed(
        home, sign_directory(msgspec.structs.replace(LIST, issued=NOW + 60, expires=NOW + 100), KEEPER)
    ) as file:
        await look(home, now=NOW + 90)
        file.body = sign_directory(LIST, KEEPER)
        found = await look(home, now=NOW + 120)
        assert found.swarms == ()
        assert "older list" in found.note
        file.body = sign_directory(msgspec.structs.replace(LIST, issued=NOW + 61), KEEPER)
        assert (await look(home, now=NOW + 120)).swarms


WRONG: dict[str, tuple[dict[str, object], str]] = {
    "forged": ({"body": sign_directory(LIST, KEEPER).replace(b"evenings", b"mornings")}, "signature does not hold"),
    "another's": ({"body": sign_directory(LIST, Identity.generate())}, "another key"),
    "stale": (
        {"body": sign_directory(msgspec.structs.replace(LIST, issued=NOW - 90_000, expires=NOW - 80_000), KEEPER)},
        "expired",
    ),
    "unsigned": ({"body": msgspec.json.encode(LIST)}, "not signed"),
    "huge": ({"body": b" " * 70_000}, "70,000 bytes"),
    "huge by its word": ({"length": 10**12}, "1,000,000,000,000 bytes"),
    "of unknown size": ({"length": -1}, "does not say how large"),
    "cut off": ({"length": 60_000}, "cannot be reached"),
    "of wrong types": ({"body": b'{"list": [], "key": 7, "signature": null}'}, "no directory of swarms"),
    "a page": ({"body": b"<html>"}, "does not read as JSON"),
    "moved": ({"status": "302 Found", "headers": {"Location": "http://127.0.0.1:1/"}}, "redirects are not followed"),
    "missing": ({"status": "404 Not Found"}, "answers 404"),
    "compressed": ({"headers": {"Content-Encoding": "gzip"}}, "compressed"),
}


@pytest.mark.parametrize("what", WRONG)
async def test_what_is_wrong_with_a_directory_is_one_sentence(home: Home, what: str) -> None:
    changes, said = WRONG[what]
    async with listed(home) as file:
        for name, value in changes.items():
            setattr(file, name, value)
        found = await look(home)
        assert found.swarms == ()
        assert said in found.note
        assert found.note.endswith(".")
        assert "\n" not in found.note


async def test_a_host_that_says_nothing_is_left_after_a_while() -> None:
    async with served(b"{}") as file:
        file.silent = True
        with pytest.raises(BadDirectory, match="does not answer in time"):
            await fetch_directory(parse_address(file.url, need_key=False), timeout_s=0.3)


HERE = (
    *("127.0.0.1", "127.1", "127.8.9.10", "0", "0.0.0.0", "2130706433", "0x7f.1", "0177.0.0.1", "127.0.0.1."),
    *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:0.0.0.0]", "[0:0:0:0:0:0:0:1]", "[::1%25lo]"),
    *(
        "localhost",
        "LOCALHOST",
        "localhost.",
        "foo.localhost",
        "a.b.localhost.",
        "localhost.localdomain",
        "localhost4",
        "localhost6",
        "localhost4.localdomain4",
        "localhost6.localdomain6",
        "ip6-localhost",
    ),
)


async def test_an_entry_of_the_network_never_sends_a_reader_to_its_own_machine() -> None:
    for host in HERE:
        here = msgspec.structs.replace(LIST.swarms[0], join=f"sapo://{host}:22/#fp={'a' * 64}&s={'b' * 16}")
        assert directories.listed_swarm(here, here=False).join == "", host
        assert directories.listed_swarm(here, here=True).join
    for host in ("localhost.example.org", "128.0.0.1", "10.0.0.1", "[2001:db8::1]", "[::ffff:10.0.0.1]", "1.example"):
        away = msgspec.structs.replace(LIST.swarms[0], join=f"sapo://{host}:22/#fp={'a' * 64}&s={'b' * 16}")
        assert directories.listed_swarm(away, here=False).join, host


def test_the_line_to_join_with_is_written_anew_and_holds_nothing_for_a_shell() -> None:
    odd = msgspec.structs.replace(LIST.swarms[0], join=JOIN.replace("/#", "/';touch${IFS}x;'#"))
    assert directories.listed_swarm(odd, here=False).join == JOIN


def test_texts_of_a_directory_are_made_safe() -> None:
    odd = msgspec.structs.replace(LIST.swarms[0], name="a\x1b[2J\u202eb", trains="x\ny", checks="\x07")
    one = directories.listed_swarm(odd, here=False)
    assert (one.name + one.trains + one.checks).isprintable()


async def test_a_coordinator_lists_itself_with_its_own_figures(tmp_path: Path) -> None:
    """Over TLS with its own certificate, which the line pins; the invite's token is not in it."""
    made = CoordinatorSettings(host="127.0.0.1", port=0, tls=True, store=f"sqlite:{tmp_path}/s", open=True, list=True)
    hosted = await launch_coordinator(made)
    try:
        address = parse_address(hosted.directory)
        listing = verify_directory(await fetch_directory(address), address.key, hosted.coordinator.clock())
        (entry,) = listing.swarms
        assert (entry.name, entry.who, entry.nodes) == ("swarm", "anyone", 0)
        assert parse_invite(entry.join) == hosted.invite
        async with NodeClient(parse_invite(entry.join), Identity.generate()) as client:
            await client.join("Ada", "starter")
        wrong = parse_address(str(address).replace(address.fingerprint, "0" * 64))
        with pytest.raises(BadDirectory, match="another certificate"):
            await fetch_directory(wrong)
        with pytest.raises(BadDirectory, match="vouches"):
            await fetch_directory(parse_address(address.url, need_key=False))
    finally:
        await hosted.stop()
    again = await launch_coordinator(made)
    assert parse_address(again.directory).key == address.key
    await again.stop()


async def test_a_coordinator_by_invite_lists_whom_to_ask_and_no_address(tmp_path: Path) -> None:
    made = CoordinatorSettings(port=0, store=f"sqlite:{tmp_path}/s", list=True, contact="ada@example.org")
    hosted = await launch_coordinator(made)
    try:
        address = parse_address(hosted.directory)
        (entry,) = verify_directory(await fetch_directory(address), address.key, hosted.coordinator.clock()).swarms
        assert (entry.who, entry.join, entry.ask) == ("invited", "", "ada@example.org")
        assert hosted.invite.token
    finally:
        await hosted.stop()


@pytest.mark.parametrize("public", ["Swarm.example.org", "192.0.2.7", "2001:db8::1"])
async def test_a_coordinator_is_listed_at_the_name_or_number_that_the_host_gave(tmp_path: Path, public: str) -> None:
    made = CoordinatorSettings(port=0, tls=True, store=f"sqlite:{tmp_path}/s", open=True, list=True, public=public)
    hosted = await launch_coordinator(made)
    try:
        address = parse_address(hosted.directory)
        here = replace(address, url=f"https://127.0.0.1:{hosted.port}/directory.json")
        (entry,) = verify_directory(await fetch_directory(here), address.key, hosted.coordinator.clock()).swarms
        assert parse_invite(entry.join).host == public.lower()
    finally:
        await hosted.stop()


async def test_a_coordinator_lists_nothing_unless_asked_to(tmp_path: Path) -> None:
    hosted = await launch_coordinator(CoordinatorSettings(port=0, store=f"sqlite:{tmp_path}/s"))
    try:
        assert hosted.directory == ""
        with pytest.raises(BadDirectory, match="404"):
            await fetch_directory(parse_address(f"{hosted.url}/directory.json", need_key=False))
    finally:
        await hosted.stop()


def test_a_list_is_written_signed_edited_and_signed_anew_by_the_verb(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "swarms.json")
    assert run_command_line(["directory", "new", path]) == 0
    assert run_command_line(["directory", "sign", path, "--days", "7"]) == 0
    signed = capsys.readouterr().out
    assert "Signed 1 swarm for 7 days" in signed
    key = signed.rpartition("#key=")[2].strip()
    text = Path(path).read_text()
    Path(path).write_text(text.replace('"example"', '"evenings"'))
    assert run_command_line(["directory", "show", path]) == 2
    assert "signature does not hold" in capsys.readouterr().err
    assert run_command_line(["directory", "sign", path]) == 0
    assert run_command_line(["directory", "show", path]) == 0
    said = capsys.readouterr().out
    assert "evenings: 0 nodes" in said
    assert key in said
    assert run_command_line(["directory", "new", path]) == 2
    assert run_command_line(["directory"]) == 0
    assert "none is built in" in capsys.readouterr().out


def test_a_setting_that_is_no_directory_is_refused(home: Home) -> None:
    assert run_command_line(["config", "set", "swarm.directories", "https://example.org/a.json"]) == 2
    with pytest.raises(UsageError, match="needs #key="):
        directories.follow_directory(home, "https://example.org/a.json")
    assert settings.load_settings(home.settings).swarm.directories == ()
