"""The node at login: what each system's starter reads, and install, status and uninstall with a recording systemctl."""

from __future__ import annotations

import configparser
import os
import plistlib
import shlex
import stat
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sapo_desktop import cli
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.machine import login

COMMAND = ["/home/zoë my/bin/python", "-P", "-m", "sapo_desktop", "node", "50% $HOME", "--quiet"]


def test_a_systemd_unit_names_the_command_word_for_word_and_a_clean_stop() -> None:
    text = login.systemd_unit(COMMAND, {"SAPO_HOME": "/media/a b"})
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.read_string(text)
    start = unit["Service"]["ExecStart"].replace("%%", "%").replace("$$", "$")
    assert shlex.split(start) == COMMAND
    assert unit["Service"]["Environment"] == '"SAPO_HOME=/media/a b"'
    assert (unit["Service"]["TimeoutStopSec"], unit["Service"]["KillMode"]) == ("60", "mixed")
    assert unit["Install"]["WantedBy"] == "default.target"


def test_no_path_adds_a_line_to_a_unit() -> None:
    """A folder may be called anything, with quotes and line ends in it."""
    odd = 'a"b\\c\nExecStartPre=/bin/evil\r50% $HOME'
    text = login.systemd_unit(["/usr/bin/python", odd], {"SAPO_HOME": odd})
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.read_string(text)
    assert "ExecStartPre" not in unit["Service"]
    quoted = r"a\"b\\c\nExecStartPre=/bin/evil\r50%% "
    assert unit["Service"]["ExecStart"] == f'"/usr/bin/python" "{quoted}$$HOME"'
    assert unit["Service"]["Environment"] == f'"SAPO_HOME={quoted}$HOME"'


def test_a_launch_agent_starts_at_login_and_not_again_after_a_stop() -> None:
    found = plistlib.loads(login.launch_agent(COMMAND, {"SAPO_HOME": "/a"}, "/logs/service.log"))
    assert found["ProgramArguments"] == COMMAND
    assert (found["RunAtLoad"], found["KeepAlive"], found["ExitTimeOut"]) == (True, {"Crashed": True}, 60)
    assert found["EnvironmentVariables"] == {"SAPO_HOME": "/a"}


def test_a_scheduled_task_runs_at_logon_on_batteries_too_and_without_an_end() -> None:
    task = ElementTree.fromstring(login.scheduled_task(COMMAND, "PC\\zoë"))
    space = {"t": "http://schemas.microsoft.com/windows/2004/02/mit/task"}

    def text(path: str) -> str:
        found = task.find(path, space)
        assert found is not None
        return found.text or ""

    assert text("t:Triggers/t:LogonTrigger/t:UserId") == "PC\\zoë"
    assert text("t:Actions/t:Exec/t:Command") == COMMAND[0]
    assert text("t:Actions/t:Exec/t:Arguments") == '-P -m sapo_desktop node "50% $HOME" --quiet'
    assert text("t:Settings/t:ExecutionTimeLimit") == "PT0S"
    assert text("t:Settings/t:StopIfGoingOnBatteries") == "false"


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_every_platform_has_a_starter_that_runs_this_installation(tmp_path: Path, platform: str) -> None:
    home = Home(tmp_path, tmp_path, tmp_path, tmp_path, tmp_path)
    one = login.login_service(home, "mine", platform)
    content = one.content.decode("utf-16" if platform == "win32" else "utf-8")
    assert sys.executable in content
    assert "mine" in content
    assert one.install
    assert one.remove


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that writes down what it was told, and knows what is enabled; `fail` beside it makes it fail."""
    folder, told = tmp_path / "bin", tmp_path / "told"
    folder.mkdir()
    script = folder / "systemctl"
    script.write_text(
        f"""#!/bin/sh
        [ "$2" = is-active ] || echo "$@" >> "{told}"
        [ -e "{folder}/fail" ] && printf 'no b\\374s\\n' >&2 && exit 1
        case "$2" in
            enable) touch "{folder}/on" ;;
            disable) rm "{folder}/on" ;;
            is-active) [ -e "{folder}/on" ] && echo active ;;
        esac
        """
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "home"))
    return told


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="systemd")
def test_install_status_and_uninstall_leave_nothing_behind(
    systemctl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = tmp_path / "config" / "systemd" / "user" / "sapo-desktop.service"
    assert cli.run_command_line(["service", "status"]) == 0
    assert cli.run_command_line(["service", "uninstall"]) == 0
    assert not systemctl.exists()
    assert cli.run_command_line(["service", "install", "--preset", "eco"]) == 0
    assert f'"SAPO_HOME={tmp_path / "home"}"' in unit.read_text()
    assert "pause_when_active = true" in (tmp_path / "home" / "config.toml").read_text()
    assert cli.run_command_line(["service", "status"]) == 0
    assert "active" in capsys.readouterr().out
    assert cli.run_command_line(["service", "uninstall"]) == 0
    assert not unit.exists()
    assert verbs(systemctl) == ["daemon-reload", "enable", "disable"]


def verbs(told: Path) -> list[str]:
    """What systemctl was told, in order."""
    return [line.split()[1] for line in told.read_text().splitlines()]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="systemd")
def test_a_second_install_ends_the_node_of_the_first(systemctl: Path) -> None:
    """Else it would train the first one's model until the next login, and launchd refuses a second one."""
    assert cli.run_command_line(["service", "install"]) == 0
    assert cli.run_command_line(["service", "install", "--preset", "eco"]) == 0
    assert verbs(systemctl) == ["daemon-reload", "enable", "disable", "daemon-reload", "enable"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="systemd")
def test_what_the_system_has_forgotten_can_be_uninstalled(
    systemctl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run_command_line(["service", "install"]) == 0
    (tmp_path / "bin" / "fail").touch()
    assert cli.run_command_line(["service", "uninstall"]) == 0
    assert "failed: no b" in capsys.readouterr().out
    assert not list((tmp_path / "config").rglob("*.service"))


@pytest.mark.skipif(os.name != "posix", reason="the scripts are shell")
def test_what_still_saves_is_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    """launchctl bootout ends with 36, "in progress", or with 0, before the node is gone."""
    left = tmp_path / "left"
    left.write_text("xxx")
    busy = ("sh", "-c", "echo 'Boot-out failed: 36: Operation now in progress' >&2; exit 36")
    one = login.LoginService(tmp_path / "agent.plist", b"", (), (busy,), ("sh", "-c", f'[ -s "{left}" ]'))
    pauses: list[float] = []

    def shrinks(seconds: float) -> None:
        pauses.append(seconds)
        left.write_text(left.read_text()[1:])

    assert "36: Operation now in progress" in login._end(one, shrinks)
    assert len(pauses) == 3
    left.write_text("x")
    with pytest.raises(AppError, match="in progress"):
        login._end(one, pauses.append)
    assert sum(pauses[3:]) == login.STOP_S


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("gui/501/io.github.sapo-desktop.node = {\n\tactive count = 1\n\tstate = running\n\n\tpid = 7\n}\n", "running"),
        ('"\\sapo-desktop","N/A","Wird ausgeführt"\r\n', "Wird ausgeführt"),
        ("active\n", "active"),
    ],
)
def test_the_state_is_picked_from_what_each_system_says(tmp_path: Path, said: str, state: str) -> None:
    file = tmp_path / "definition"
    file.touch()
    one = login.LoginService(file, b"", (), (), (sys.executable, "-c", f"print({said!r})"))
    assert login.login_service_status(one) == f"The node starts at login ({file}): {state}"


def test_the_node_at_login_finds_the_folders_of_this_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/mnt/data")
    home = Home(tmp_path, tmp_path, tmp_path, tmp_path, tmp_path)
    for platform in ("linux", "darwin"):
        assert "/mnt/data" in login.login_service(home, platform=platform).content.decode()
    monkeypatch.setenv("USERDOMAIN", "PC")
    assert "<UserId>PC\\" in login.login_service(home, platform="win32").content.decode("utf-16")
    assert 'setx XDG_DATA_HOME "/mnt/data"' in login.login_service(home, platform="win32").note, (
        "a task has no variables of its own"
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="systemd")
def test_where_the_system_refuses_nothing_is_installed_and_the_sentence_says_what_to_do(
    systemctl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin" / "fail").touch()
    assert cli.run_command_line(["service", "install"]) == 1
    said = capsys.readouterr().err
    assert "no b\N{REPLACEMENT CHARACTER}s" in said
    assert "Nothing was installed" in said
    assert not list((tmp_path / "config").rglob("*.service"))
    assert cli.run_command_line(["service", "install", "no-such-model"]) != 0


def test_the_node_at_login_outlives_an_update_of_homebrew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/homebrew/Cellar/sapo-desktop/0.1.0/libexec/bin/python3.12")
    one = login.login_service(Home(tmp_path, tmp_path, tmp_path, tmp_path, tmp_path), platform="darwin")
    started = plistlib.loads(one.content)["ProgramArguments"][0]
    assert started == "/opt/homebrew/opt/sapo-desktop/libexec/bin/python3.12"
