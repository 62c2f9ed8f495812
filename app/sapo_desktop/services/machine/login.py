"""Starting the node at login, checking whether that is set up, and undoing it, with each system's own means: a systemd unit,
a launch agent, a scheduled task. Nothing is installed unless the person asks for it.
"""

from __future__ import annotations

import getpass
import os
import plistlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home, own_command

# The definitions that each system's service starter reads, as pure functions of a command line: a systemd user unit, a
# launchd property list, a Windows scheduled task. Each stops the node with a signal at which it saves, and waits STOP_S
# for it.

NAME = "sapo-desktop"
LABEL = "io.github.sapo-desktop.node"
STOP_S = 60
RETRY_S = 60
FINAL_CODES = (2, 3, 4)
"""Exit codes that restarting does not fix: usage, node, engine missing."""
_TASK = "http://schemas.microsoft.com/windows/2004/02/mit/task"


def systemd_unit(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """A user unit: started at login and restarted after a crash, but not for ever."""
    lines = [f"Environment={_quoted(f'{key}={value}')}" for key, value in environment.items()]
    return "\n".join(
        [
            "[Unit]",
            "Description=sapo-desktop trains a small language model in the background",
            "StartLimitIntervalSec=3600",
            "StartLimitBurst=5",
            "",
            "[Service]",
            f"ExecStart={' '.join(_quoted(word, command=True) for word in command)}",
            *lines,
            "KillMode=mixed",
            f"TimeoutStopSec={STOP_S}",
            "Restart=on-failure",
            f"RestartSec={RETRY_S}",
            f"RestartPreventExitStatus={' '.join(map(str, FINAL_CODES))}",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def _quoted(word: str, command: bool = False) -> str:
    """A word of a unit file: specifiers, line ends and, in a command, variables are escaped."""
    escaped = (
        word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n").replace("\r", "\\r")
    )
    return f'"{escaped.replace("$", "$$") if command else escaped}"'


def launch_agent(command: Sequence[str], environment: Mapping[str, str], log: str) -> bytes:
    """A property list. log: the file for its output."""
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": list(command),
            "EnvironmentVariables": dict(environment),
            "RunAtLoad": True,
            "KeepAlive": {"Crashed": True},
            "ThrottleInterval": RETRY_S,
            "ExitTimeOut": STOP_S,
            "ProcessType": "Background",
            "StandardOutPath": log,
            "StandardErrorPath": log,
        }
    )


def scheduled_task(command: Sequence[str], user: str) -> bytes:
    """A task in UTF-16, as schtasks reads it. The governor, not the scheduler, decides about batteries and idleness."""
    ElementTree.register_namespace("", _TASK)
    task = ElementTree.Element(f"{{{_TASK}}}Task", version="1.2")
    _add(task, "RegistrationInfo", Description="sapo-desktop trains a small language model in the background")
    _add(_add(task, "Triggers"), "LogonTrigger", Enabled="true", UserId=user)
    _add(_add(task, "Principals"), "Principal", UserId=user, LogonType="InteractiveToken", RunLevel="LeastPrivilege")
    settings = _add(
        task,
        "Settings",
        MultipleInstancesPolicy="IgnoreNew",
        DisallowStartIfOnBatteries="false",
        StopIfGoingOnBatteries="false",
        AllowHardTerminate="true",
        ExecutionTimeLimit="PT0S",
        Priority="7",
    )
    _add(settings, "RestartOnFailure", Interval=f"PT{RETRY_S}S", Count="5")
    program, *arguments = command
    _add(_add(task, "Actions"), "Exec", Command=program, Arguments=" ".join(map(windows_word, arguments)))
    text: bytes = ElementTree.tostring(task, encoding="utf-16", xml_declaration=True)
    return text


def windows_word(word: str) -> str:
    """A word of a Windows command line, quoted where necessary."""
    if word and not set(word) & set(' \t"'):
        return word
    from subprocess import list2cmdline

    return list2cmdline([word])


def _add(parent: ElementTree.Element, tag: str, **children: str) -> ElementTree.Element:
    element = ElementTree.SubElement(parent, f"{{{_TASK}}}{tag}")
    for name, text in children.items():
        ElementTree.SubElement(element, f"{{{_TASK}}}{name}").text = text
    return element


# Start the node at login, check whether that is set up, and undo it. Nothing is installed unless the person asks for
# it.

_LIMIT_S = STOP_S + 30.0
_POLL_S = 0.5
PASSED_ON = (
    *("SAPO_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "SAPO_WITHOUT"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE"),
)
"""Variables that decide where files are or come from: the started node gets this terminal's values."""
_STATE = re.compile(r'^\s*state = (?P<launchd>.+)$|^"[^"]*","[^"]*","(?P<windows>[^"]*)"\s*$', re.MULTILINE)
"""The state in the output of launchctl and schtasks."""


class LoginService(NamedTuple):
    """How a system starts programs at login. file: the definition. ask: a command that fails where the system has no such
    service. note: what the person should know."""

    file: Path
    content: bytes
    install: tuple[tuple[str, ...], ...]
    remove: tuple[tuple[str, ...], ...]
    ask: tuple[str, ...]
    note: str = ""


def login_service(home: Home, name: str = "", platform: str = sys.platform) -> LoginService:
    """This system's login service. name: of the model to train; "" is the newest."""
    words = [_lasting(word) for word in own_command()]
    command = [*words, "node", *([name] if name else []), "--quiet", "--as-left"]
    environment = {key: os.environ[key] for key in PASSED_ON if key in os.environ}
    if platform == "darwin":
        file = Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        content = launch_agent(command, environment, str(home.logs / "service.log"))
        domain = f"gui/{_user_number()}"
        target = f"{domain}/{LABEL}"
        return LoginService(
            file,
            content,
            (("launchctl", "bootstrap", domain, str(file)),),
            (("launchctl", "bootout", target),),
            ("launchctl", "print", target),
        )
    if platform == "win32":
        file = home.data / "service.xml"
        quiet = Path(words[0]).with_name("pythonw.exe")  # python.exe opens a window
        user = "\\".join(filter(None, (os.environ.get("USERDOMAIN"), getpass.getuser())))
        content = scheduled_task([str(quiet if quiet.exists() else words[0]), *command[1:]], user)
        task = NAME
        create = ("schtasks", "/create", "/f", "/tn", task, "/xml", str(file))
        return LoginService(
            file,
            content,
            (create, ("schtasks", "/run", "/tn", task)),
            (("schtasks", "/delete", "/f", "/tn", task), (*words, "stop")),  # the scheduler cannot end it gracefully
            ("schtasks", "/query", "/tn", task, "/fo", "csv", "/nh"),
            _of_the_account(environment),
        )
    base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    unit = f"{NAME}.service"
    systemctl = ("systemctl", "--user")
    return LoginService(
        base / "systemd" / "user" / unit,
        systemd_unit(command, environment).encode(),
        ((*systemctl, "daemon-reload"), (*systemctl, "enable", "--now", unit)),
        ((*systemctl, "disable", "--now", unit),),
        (*systemctl, "is-active", unit),
    )


def _of_the_account(environment: Mapping[str, str]) -> str:
    """A scheduled task gets the account's variables, not this terminal's."""
    commands = [f'setx {name} "{value}"' for name, value in environment.items()]
    return f" Write this too, once, or it looks elsewhere: {'; '.join(commands)}" if commands else ""


def _lasting(word: str) -> str:
    """The program's path that survives an update: Homebrew removes the folder of the old version."""
    return re.sub(r"/Cellar/([^/]+)/[^/]+/", r"/opt/\1/", word)


def starts_at_login(home: Home) -> bool:
    """Whether a node of this home starts at login, as far as the definition tells: an account has one definition, and a
    custom home (SAPO_HOME) counts only where the definition lies in it."""
    file = login_service(home).file
    return file.exists() and (home.data in file.parents or not os.environ.get("SAPO_HOME"))


def install_login_service(one: LoginService) -> str:
    """Start the node now and at every login; returns the sentence to print. Raises AppError, and then nothing is installed."""
    before = one.file.read_bytes() if one.file.exists() else None
    try:
        if _known(one):  # launchd refuses a second one, systemd leaves the first one running
            _end(one)
        one.file.parent.mkdir(parents=True, exist_ok=True)
        one.file.write_bytes(one.content)
        for command in one.install:
            _run(command)
    except (AppError, OSError) as error:
        _put_back(one.file, before)
        raise AppError(f"{error} Nothing was installed. Without it: sapo-desktop node") from error
    return f"The node starts now and whenever you log in ({one.file}). To end that: sapo-desktop service uninstall{one.note}"


def uninstall_login_service(one: LoginService) -> str:
    """Stop the node, within STOP_S seconds, and no longer start it at login; what it learned stays. Raises AppError."""
    if not one.file.exists():
        return "The node does not start at login: there is nothing to remove."
    refusal = _end(one)
    one.file.unlink(missing_ok=True)
    return f"The node starts no more by itself. Models and settings are as they were.{refusal and f' ({refusal})'}"


def login_service_status(one: LoginService) -> str:
    """Whether the node starts at login and the state that the system reports. Raises OSError."""
    if not one.file.exists():
        return "The node does not start at login. To change that: sapo-desktop service install"
    try:
        output = _run(one.ask).strip() or "installed"
    except AppError as error:
        return f"Installed ({one.file}), but not active. {error}"
    state = match[match.lastgroup or 0] if (match := _STATE.search(output)) else output.splitlines()[0]
    return f"The node starts at login ({one.file}): {state}"


def _end(one: LoginService, pause: Callable[[float], None] = time.sleep) -> str:
    """Have the system stop the node and remove the service; launchd returns before it has. Returns the refusal where it does
    not matter: the system has no such service (any more). Raises AppError."""
    refused = []
    for command in one.remove:
        try:
            _run(command)
        except AppError as error:
            refused.append(str(error))
    waited = 0.0
    while _known(one):
        if waited >= STOP_S:
            raise AppError(refused[0] if refused else f"The node did not end within {STOP_S} s.")
        pause(_POLL_S)
        waited += _POLL_S
    return " ".join(refused)


def _known(one: LoginService) -> bool:
    try:
        _run(one.ask)
    except AppError:
        return False
    return True


def _run(command: Sequence[str]) -> str:
    """The command's output. Raises AppError with its message when it fails."""
    encoding = "oem" if sys.platform == "win32" else None  # the encoding of Windows console programs
    try:
        process = subprocess.run(
            command,
            capture_output=True,
            text=True,
            encoding=encoding,
            errors="replace",
            timeout=_LIMIT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError as error:
        raise AppError(f"There is no {command[0]} here, which starts programs at login.") from error
    except subprocess.TimeoutExpired as error:
        raise AppError(f"{' '.join(command)} did not come to an end within {_LIMIT_S:.0f} s.") from error
    if process.returncode:
        lines = (process.stderr or process.stdout).strip().splitlines()
        raise AppError(f"{' '.join(command)} failed: {lines[-1] if lines else f'exit code {process.returncode}'}.")
    return process.stdout


def _put_back(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink(missing_ok=True)
    else:
        file.write_bytes(content)


def _user_number() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0
