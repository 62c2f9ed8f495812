"""Verbs in processes that need not import the app anew: one process imports it, and each verb is a fork of that.

Its imports take a verb half a second of a processor, with torch over 2 s, and the tests run hundreds of verbs. A fork has its own
environment, current folder and standard streams, and exits as a command does. What a test checks of the start itself is started
as a command: which modules are loaded, what is in other variables, how the process is called.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

OWN_VARIABLES = frozenset({"SAPO_HOME", "PYTEST_CURRENT_TEST"})
"""Variables that may differ from verb to verb; any other may have been read while something was imported."""
START_ANEW = "TESTS_START_VERBS_ANEW"
"""A variable with which every verb is a command."""
TORCH_VERBS = frozenset({"bench", "chat", "compare", "eval", "export", "node", "serve-model"})
APP = ("sapo_desktop.cli", "sapo_swarm.node.setup", "sapo_backends.fake", "aiohttp", "numpy", "psutil")
"""Beside every module of the verbs."""
TORCH = ("jinja2", "numpy", "tokenizers", "torch", "sapo_backends.torch_backend.engine")


class VerbServer:
    """The process that is forked, as the tests' process sees it. It ends when that one does."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = _common(environment)
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-P", __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL
            )

    def can_run(self, arguments: tuple[str, ...], environment: dict[str, str]) -> bool:
        """Whether the verb may be a fork. A coordinator is known by its command line."""
        if START_ANEW in environment or arguments[:1] == ("coordinator",):
            return False
        return self._environment == _common(environment)

    def run(
        self, arguments: tuple[str, ...], environment: dict[str, str], typed: str, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a verb to its end. typed: less than a pipe holds. Raises subprocess.TimeoutExpired."""
        source, keyboard = os.pipe()
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            verb = self._fork(arguments, environment, [source, output.fileno(), errors.fileno()])
            os.close(source)
            with os.fdopen(keyboard, "wb") as stream:
                stream.write(typed.encode())
            try:
                code = verb.wait(timeout)
            except BaseException:
                verb.kill()
                verb.wait()
                raise
            output.seek(0)
            errors.seek(0)
            texts = (output.read().decode(), errors.read().decode())
        return subprocess.CompletedProcess(verb.args, code, *texts)

    def start(self, arguments: tuple[str, ...], environment: dict[str, str]) -> ForkedVerb:
        """A verb that goes on beside the test; only what it says of errors is kept, as far as a pipe holds it."""
        readable, errors = os.pipe()
        nothing = os.open(os.devnull, os.O_RDWR)
        verb = self._fork(arguments, environment, [nothing, nothing, errors])
        os.close(errors)
        os.close(nothing)
        verb.stderr = os.fdopen(readable, "rb")
        return verb

    def _fork(self, arguments: tuple[str, ...], environment: dict[str, str], streams: list[int]) -> ForkedVerb:
        own = {name: environment[name] for name in OWN_VARIABLES if name in environment}
        request = json.dumps({"arguments": arguments, "environment": own, "folder": os.getcwd()}).encode()
        reply, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._requests, [request], [*streams, theirs.fileno()])
        return ForkedVerb(("sapo-desktop", *arguments), reply)


class ForkedVerb:
    """A verb that runs, with what the tests use of subprocess.Popen. stderr: where somebody reads it."""

    stderr: BinaryIO | None = None

    def __init__(self, arguments: tuple[str, ...], reply: socket.socket) -> None:
        self.args = arguments
        self.returncode: int | None = None
        self._reply = reply
        self.pid = int(reply.recv(16))

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._reply.settimeout(timeout)
            try:
                self.returncode = int(self._reply.recv(16))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._reply.close()
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code if it has ended."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def _common(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in OWN_VARIABLES}


def serve(requests: socket.socket) -> None:
    """Fork for each request; returns in the processes that are to run a verb."""
    for name in APP:
        importlib.import_module(name)
    commands = importlib.import_module("sapo_desktop.commands")
    for module in pkgutil.walk_packages(commands.__path__, f"{commands.__name__}."):
        importlib.import_module(module.name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait for a verb
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 1 << 18, 4)
        if not message:
            os._exit(0)
        asked = json.loads(message)
        if TORCH_VERBS & {*asked["arguments"][:1]}:
            for name in TORCH:
                importlib.import_module(name)
        gc.freeze()  # what was imported is neither searched for garbage nor copied for that
        if not os.fork():
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if not (pid := os.fork()):
                _become(asked, descriptors)
                return
            reply = descriptors[-1]
            os.write(reply, str(pid).encode())
            os.write(reply, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(asked: dict[str, Any], descriptors: list[int]) -> None:
    """Make of this process what exec would have made of it."""
    for place, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, place)
    for descriptor in descriptors:
        os.close(descriptor)
    os.chdir(asked["folder"])
    os.environ |= asked["environment"]
    for name in OWN_VARIABLES - set(asked["environment"]):
        os.environ.pop(name, None)
    module = sys.modules["sapo_desktop"].__path__[0]
    sys.path.insert(0, asked["folder"])
    sys.argv = [str(Path(module) / "__main__.py"), *asked["arguments"]]
    sys.orig_argv = [sys.executable, "-m", "sapo_desktop", *asked["arguments"]]
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
    from sapo_desktop.__main__ import main

    sys.exit(main())
