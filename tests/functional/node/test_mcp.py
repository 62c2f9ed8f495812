"""`mcp`: a client of the protocol's own package watches and steers a real node; without the package there is one sentence."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.node_process import FAKE, calm, environment, node, reaches, sapo

from sapo_desktop import cli
from sapo_swarm.events import RoundFinished


def test_without_the_package_there_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.run_command_line(["mcp"]) == 4
    said = capsys.readouterr().err
    assert said.startswith("sapo-desktop: This needs the package mcp: ")
    assert said.endswith("pip install mcp\n")


@asynccontextmanager
async def client(home: Path) -> AsyncIterator[Any]:
    """A client of a `sapo-desktop mcp` process."""
    mcp = pytest.importorskip("mcp", reason="pip install 'sapo-desktop[mcp]'")
    calm(home)
    command = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "sapo_desktop", "mcp"], env=environment(home), cwd=os.getcwd()
    )
    async with mcp.Client(command) as found:
        yield found


async def said(client: Any, tool: str, **arguments: object) -> str:
    """What a tool that must succeed answered."""
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    return str(answer.content[0].text)


async def refused(client: Any, tool: str, **arguments: object) -> str:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    return str(answer.content[0].text)


async def test_a_program_sees_pauses_and_resumes_a_real_node(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="pip install 'sapo-desktop[mcp]'")
    async with node(tmp_path, *FAKE, "--model", "fake:0.02") as (control, _), client(tmp_path) as program:
        await reaches(control, ("round",), lambda event: isinstance(event, RoundFinished))
        assert json.loads(await said(program, "status"))["state"] == "running"
        assert json.loads(await said(program, "pause"))["state"] == "paused"
        assert (await control.status()).state == "paused"
        assert json.loads(await said(program, "resume"))["state"] == "running"
        assert json.loads((await said(program, "models")).splitlines()[0])["rounds"] >= 1
        assert "silo" in await said(program, "runs")


async def test_it_compares_and_talks_with_progress_and_refuses_in_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="pip install 'sapo-desktop[mcp]'")
    assert sapo(tmp_path, "node", "--quiet", *FAKE, "--rounds", "2").returncode == 0
    progress: list[float] = []

    async def told(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)

    async with client(tmp_path) as program:
        names = {tool.name for tool in (await program.list_tools()).tools}
        assert names == {"status", "pause", "resume", "models", "runs", "evaluate", "chat"}
        assert "base" in await said(program, "chat", question="--json What is 1 + 1?")
        answer = await program.call_tool("evaluate", {"items": 1}, progress_callback=told)
        assert "pass_at_1" in answer.content[0].text
        assert progress[-1] == 200
        assert progress == sorted(set(progress))
        assert "No node is running. Start one: sapo-desktop node" in await refused(program, "status")
        assert "not the name of a model" in await refused(program, "runs", name="--repair")
        assert "There is no model" in await refused(program, "chat", question="x", name="nobody")
