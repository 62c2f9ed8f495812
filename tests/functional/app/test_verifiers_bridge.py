"""The bridge to environments of the verifiers package: another Python, the endpoint, a token that nobody else has.

A small package of that name stands in for the real one (which is half a gigabyte); docs/how-to/own-task.md has the command
that runs the real one.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sapo_backends.base import LoadRequest
from sapo_backends.fake import FakeEngine
from sapo_desktop.commands.tasks.verifiers import parse_environment_args
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.services.models.endpoint import ChatEndpoint, ChatService
from sapo_desktop.services.tasks.bridge.child import MARK
from sapo_desktop.services.tasks.bridge.running import BridgeJob, BridgeMessage, _told, run_environment
from sapo_swarm.node.engine_thread import EngineThread

TOKEN = "a-token-of-the-bridge-s-tests-alone"
PACKAGE = '''
import json, os, urllib.request
__version__ = "0.1.14"


class Sums:
    """Asks sums, in two turns; noise and over-long lines go to stdout, as environments do."""

    def __init__(self, first=1):
        self.first = first

    async def evaluate(self, client, model, sampling_args, num_examples, rollouts_per_example, max_concurrent):
        print("noise " + "x" * 300000)
        outputs = []
        for number in range(self.first, self.first + num_examples):
            messages = [{"role": "user", "content": f"Calculate {number} + 12."}]
            for _ in range(2):
                body = json.dumps({"model": model, "messages": messages, **sampling_args}).encode()
                headers = {"Authorization": "Bearer " + os.environ[client.api_key_var], "Content-Type": "application/json"}
                request = urllib.request.Request(client.api_base_url + "/chat/completions", body, headers)
                reply = json.loads(urllib.request.urlopen(request).read())["choices"][0]["message"]
                messages += [reply, {"role": "user", "content": "Calculate 30 + 4."}]
            told = messages[1:-1]
            outputs.append({"prompt": messages[:1], "completion": told, "reward": float("34" in told[-1]["content"])})
        return {"outputs": outputs}


def load_environment(name, **arguments):
    if name != "sums":
        raise ValueError("no such environment")
    if os.environ.get("A_SECRET"):
        raise ValueError("it sees the person's secrets")
    return Sums(**arguments)
'''
TYPES = "class ClientConfig:\n    def __init__(self, **given):\n        self.__dict__.update(given)\n"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python of its own, with the stand-in and without this app."""
    folder = tmp_path_factory.mktemp("verifiers")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("[Ll]ib/**/site-packages"))
    (site / "verifiers").mkdir()
    (site / "verifiers" / "__init__.py").write_text(PACKAGE)
    (site / "verifiers" / "types.py").write_text(TYPES)
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


@asynccontextmanager
async def job(environment: str, **given: object) -> AsyncIterator[BridgeJob]:
    """A job on the fake engine behind a real endpoint."""
    host = EngineThread()
    await host.load(lambda: FakeEngine(LoadRequest("fake")))
    try:
        async with ChatEndpoint(ChatService(host), "model", TOKEN) as endpoint:
            yield BridgeJob(environment, dict(given), endpoint.url, TOKEN, "model", 3, 1, 0.0, 24)
    finally:
        await host.close()


async def test_an_environment_runs_in_its_own_python_through_the_endpoint(
    python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "of the person's")
    shown: list[BridgeMessage] = []
    async with job("sums", first=5) as wanted:
        found = await run_environment(python, wanted, shown.append, 60.0)
    assert (found.rewards, found.failed, found.version) == ((1.0, 1.0, 1.0), 0, "0.1.14")
    assert "Calculate 5 + 12." in shown[0].prompt
    assert shown[0].completion.splitlines()[0] == "assistant: <answer>17</answer>"


async def test_an_environment_that_does_not_load_is_one_sentence(python: Path) -> None:
    async with job("crossword") as wanted:
        with pytest.raises(AppError, match=r"'crossword' did not run: ValueError: no such environment"):
            await run_environment(python, wanted, lambda _: None, 60.0)


async def test_an_environment_that_never_ends_is_ended(python: Path) -> None:
    async with job("asyncio:sleep") as wanted:
        slow = BridgeJob("time:sleep", {}, wanted.url, TOKEN, "model", 1, 1, 0.0, 8)
        with pytest.raises(AppError, match="did not run: TypeError"):
            await run_environment(python, slow, lambda _: None, 60.0)
        with pytest.raises(AppError, match=r"was not done after 0\.01 s"):
            await run_environment(python, wanted, lambda _: None, 0.01)
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("reward", ["NaN", "Infinity", "1e308", '"1"', "null"])
def test_a_reward_that_is_no_number_is_a_failed_rollout(reward: str) -> None:
    """It was left out in silence, or made the mean infinite; and then the command said that all was well."""
    line = f'{MARK}{{"kind": "rollout", "reward": {reward}}}\n'
    told = _told(line.encode())
    assert told is not None
    assert told.error
    assert _told(b"what an environment prints\n") is None


async def test_without_its_python_the_commands_to_make_it_are_told(tmp_path: Path) -> None:
    async with job("sums") as wanted:
        with pytest.raises(AppError, match=r"There is no Python at .* uv venv .*verifiers==0\.1\.14"):
            await run_environment(tmp_path / "none" / "bin" / "python", wanted, lambda _: None, 1.0)


def test_arguments_are_json_or_text() -> None:
    assert parse_environment_args(["gym=leg_counting", "size=3", 'deep={"a": [1]}']) == {
        "gym": "leg_counting",
        "size": 3,
        "deep": {"a": [1]},
    }
    with pytest.raises(UsageError, match="KEY=VALUE"):
        parse_environment_args(["gym"])
