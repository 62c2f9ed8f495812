"""Peers: processes in an environment of their own that do their work once each time they are asked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Peer:
    """A script that prints a line of JSON when it is ready, and one for each line that it reads."""

    def __init__(self, python: str, script: str, request: Mapping[str, Any]) -> None:
        path = Path(__file__).with_name(script)
        self._process = subprocess.Popen(
            [python, str(path), json.dumps(request)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("The peer ended early; its message is above.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def step(self) -> dict[str, float]:
        """Seconds, tokens generated, and the peak of the process's memory in bytes."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
