"""A node whose base lies on a hub: watched, paused, stopped and gone on with; the verbs' sentences and exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.hub_server import Hub, hub_server
from tests.support.node_process import environment, node, sapo

import sapo_assets
from sapo_desktop.services import first_run
from sapo_swarm.node.control_api import ControlClient, NodeStatus

ID = "owner/starter-1m"
TRAIN = "--silo --examples off --trainer torch --tasks basic_arithmetic --local-groups 1 --group-size 2".split()
QUICK = (*TRAIN, "--eval-every", "0", "--max-new-tokens", "4", "--precision", "float32")

AT_HALF_A_MEGABYTE = "559 kB of 2.2 MB, 26 %"
"""500,000 bytes of the weights, and the settings and the tokenizer, which are fetched first."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with hub_server() as server:
        server.add(ID, sapo_assets.model_path("starter-1m"))
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield server


async def until(client: ControlClient, wanted: Callable[[NodeStatus], bool]) -> None:
    while True:
        if wanted(await client.status()):
            return
        await asyncio.sleep(0.02)


async def test_a_download_is_watched_paused_and_stopped_and_the_next_node_goes_on(hub: Hub, tmp_path: Path) -> None:
    hub.hold = 500_000
    async with node(tmp_path, "--model", ID, *QUICK) as (client, process):
        await asyncio.to_thread(hub.held.wait)
        await until(client, lambda now: AT_HALF_A_MEGABYTE in now.sentence)
        paused = await asyncio.to_thread(sapo, tmp_path, "pause")
        assert paused.stdout.startswith("Starting"), paused
        await until(client, lambda now: now.state == "paused")
        hub.held.clear()
        hub.hold = 900_000
        await asyncio.to_thread(sapo, tmp_path, "resume")
        await asyncio.to_thread(hub.held.wait)
        stopped = await asyncio.to_thread(sapo, tmp_path, "stop")
        assert stopped.stdout.startswith("Stopped"), stopped
        assert await asyncio.to_thread(process.wait) == 0
    hub.hold = 0
    hub.go.set()
    done = await asyncio.to_thread(sapo, tmp_path, "node", "--rounds", "1", *QUICK)
    assert done.returncode == 0, done.stderr
    spans = hub.starts("model.safetensors")
    assert [int(s.removeprefix("bytes=").rstrip("-")) for s in spans if s and "cdn" not in s][-1] >= 900_000
    assert "download    " in done.stdout
    assert "round    1/1" in done.stdout


def test_ctrl_c_keeps_what_arrived_and_says_how_to_go_on(hub: Hub, tmp_path: Path) -> None:
    hub.hold = 500_000
    command = [sys.executable, "-m", "sapo_desktop", "models", "fetch", ID]
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        command,
        env=environment(tmp_path),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a suite in the background has it ignored
    )
    os.close(terminal)
    text = b""
    while AT_HALF_A_MEGABYTE.encode() not in text:
        text += os.read(screen, 4096)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # the other end closes
        while more := os.read(screen, 4096):
            text += more
    os.close(screen)
    assert process.wait() == 130
    assert f"sapo-desktop models fetch {ID} goes on".encode() in text
    hub.hold = 0
    listed = sapo(tmp_path, "models", "bases")
    assert f"{ID:<38} a part is here: sapo-desktop models fetch {ID}" in listed.stdout
    assert sapo(tmp_path, "models", "fetch", ID).returncode == 0
    assert hub.starts("model.safetensors")[-1] == "bytes=500000-"
    assert "here, fits" in next(line for line in sapo(tmp_path, "models", "bases").stdout.splitlines() if ID in line)


def test_a_base_shows_what_it_asks_of_this_machine_before_anything_is_fetched(hub: Hub, tmp_path: Path) -> None:
    shown = sapo(tmp_path, "models", "show", ID)
    assert shown.returncode == 0, shown.stderr
    for said in (
        "1M parameters, apache-2.0",
        "2.2 MB of 2.2 MB",
        "free",
        "a round of 32 groups of 8",
        "for 200 rounds of practice",
    ):
        assert said in shown.stdout
    assert hub.starts("model.safetensors") == []


def test_a_model_that_always_reasons_has_the_room_for_it_before_it_is_here(hub: Hub, tmp_path: Path) -> None:
    """Its chat template comes with the first look at it, whoever looks, and the first session knows it."""
    plain = sapo(tmp_path, "new", "plain", "--base", ID, *TRAIN[1:])
    assert (plain.returncode, "max new tokens" in plain.stdout) == (0, False), plain.stderr
    longer = json.dumps({**json.loads(hub.files[ID]["config.json"]), "max_position_embeddings": 4096}).encode()
    reasons = {"config.json": longer, "chat_template.jinja": b"{{ messages[0].content }}<think>\n"}
    hub.files |= {"owner/thinker": hub.files[ID] | reasons, "owner/another": hub.files[ID] | reasons}
    made = sapo(tmp_path, "new", "thinker", "--base", "owner/thinker", *TRAIN[1:])
    assert "max new tokens 1024" in made.stdout, made.stderr
    assert hub.starts("model.safetensors") == []
    once = ("--eval-every", "0", "--rounds", "1", "--precision", "float32")
    done = sapo(tmp_path / "b", "node", "--model", "owner/another", *TRAIN, *once)
    assert done.returncode == 0, done.stderr
    (record,) = (tmp_path / "b").glob("data/models/*/model.json")
    assert json.loads(record.read_bytes())["trained"]["max_new_tokens"] == 1024


def test_refusals_of_the_hub_are_sentences_with_exit_codes(hub: Hub, tmp_path: Path) -> None:
    hub.gated[ID] = "right"
    for arguments in (("models", "fetch", ID), ("new", "mine", "--base", ID), ("node", "--model", ID, *QUICK)):
        refused = sapo(tmp_path, *arguments)
        assert refused.returncode == 1, refused
        assert f"{ID} is gated" in refused.stderr
        assert "sapo-desktop login" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert sapo(tmp_path, "models").stdout.startswith("There is no model yet"), "nothing was left behind"
    kept = subprocess.run(
        [sys.executable, "-m", "sapo_desktop", "login"],
        env=environment(tmp_path), input="right\n", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "readable by you only" in kept.stdout
    assert sapo(tmp_path, "models", "fetch", ID).returncode == 0
    assert "forgotten" in sapo(tmp_path, "login", "--out").stdout
    assert not (tmp_path / "hub-token.secret").exists()
    missing = sapo(tmp_path, "new", "mine", "--base", "owner/nothing")
    assert missing.returncode == 1
    assert "no public model 'owner/nothing'" in missing.stderr
    assert sapo(tmp_path, "models", "fetch", "starter").returncode == 2


def test_other_bytes_and_a_full_disk_are_sentences_with_exit_codes(hub: Hub, tmp_path: Path) -> None:
    hub.claim = 1 << 60
    full = sapo(tmp_path, "models", "fetch", ID)
    assert full.returncode == 1, full
    assert "is free" in full.stderr
    assert "HF_HOME" in full.stderr
    shown = sapo(tmp_path, "models", "show", ID)
    assert "free: too little" in shown.stdout
    assert hub.starts("model.safetensors") == []
    hub.claim, hub.lie = 0, True
    changed = sapo(tmp_path, "node", "--model", ID, "--rounds", "1", *QUICK)
    assert changed.returncode == 1, changed
    assert "hash differs, so it was deleted" in changed.stderr
    assert "Traceback" not in changed.stderr
    assert sapo(tmp_path, "models", "show", ID).returncode == 0
    hub.lie = False
    done = sapo(tmp_path, "node", "--model", ID, "--rounds", "1", *QUICK)
    assert done.returncode == 0, done.stderr


async def test_a_typed_id_is_checked_in_the_first_questions(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything starts: whether the hub has it, and whether it fits."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    assert await first_run.wrong_with(ID) == ""
    assert "no public model 'owner/nothing'" in await first_run.wrong_with("owner/nothing")
    hub.claim = 1 << 60
    assert "does not fit" in await first_run.wrong_with(ID)
    assert hub.starts("model.safetensors") == []


def test_without_a_network_the_list_and_what_is_here_still_work(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sapo(tmp_path, "models", "fetch", ID).returncode == 0
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    away = sapo(tmp_path, "models", "fetch", "owner/other")
    assert away.returncode == 1
    assert f"On this disk: {ID}" in away.stderr
    shown = sapo(tmp_path, "models", "show", "Qwen/Qwen2.5-0.5B-Instruct")
    assert "988 MB of 988 MB (by the list that ships" in shown.stdout
    done = sapo(tmp_path, "node", "--model", ID, "--rounds", "1", *QUICK)
    assert done.returncode == 0, done.stderr
