"""What the systems' own starters read, as pure functions of a command line: a systemd user unit, a launchd property list, a
Windows scheduled task. Each asks for an end with a signal that the node answers by saving, and waits STOP_S for it."""

from __future__ import annotations

import plistlib
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

NAME = "sapo-desktop"
LABEL = "io.github.sapo-desktop.node"
STOP_S = 60
RETRY_S = 60
FINAL_CODES = (2, 3, 4)
"""Exit codes that another start does not mend: usage, node, engine missing."""
_TASK = "http://schemas.microsoft.com/windows/2004/02/mit/task"


def systemd_unit(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """A user unit: started at login, again after a crash, but not for ever."""
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
    """A word of a unit file: specifiers, line ends and, in a command, variables are taken literally."""
    escaped = (
        word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n").replace("\r", "\\r")
    )
    return f'"{escaped.replace("$", "$$") if command else escaped}"'


def launch_agent(command: Sequence[str], environment: Mapping[str, str], log: str) -> bytes:
    """A property list. log: where what it prints goes."""
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
    program, *rest = command
    _add(_add(task, "Actions"), "Exec", Command=program, Arguments=" ".join(map(windows_word, rest)))
    text: bytes = ElementTree.tostring(task, encoding="utf-16", xml_declaration=True)
    return text


def windows_word(word: str) -> str:
    """A word of a Windows command line, in quotes where it needs them."""
    if word and not set(word) & set(' \t"'):
        return word
    from subprocess import list2cmdline

    return list2cmdline([word])


def _add(parent: ElementTree.Element, tag: str, **children: str) -> ElementTree.Element:
    element = ElementTree.SubElement(parent, f"{{{_TASK}}}{tag}")
    for name, text in children.items():
        ElementTree.SubElement(element, f"{{{_TASK}}}{name}").text = text
    return element
