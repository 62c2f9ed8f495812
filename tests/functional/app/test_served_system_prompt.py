"""A served model is asked under the system prompt that it was trained under, unless the client says another."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.support.node_process import environment, sapo
from tests.support.own_tasks import write_folder

from sapo_backends.fake import FakeTokenizer

SYSTEM = "Reply with the number alone."
USER = {"role": "user", "content": "1 + 1?"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a model of one round on a task with a system prompt of its own."""
    home = tmp_path_factory.mktemp("home")
    rows = [{"question": f"{n} + 1?", "answer": n + 1} for n in range(40)]
    toml = f'system = "{SYSTEM}"\n[[verifier]]\nkind = "number"\n'
    write_folder(home / "data" / "tasks" / "brief", toml, rows[:30], rows[30:])
    fake = ("--silo", "--trainer", "fake", "--model", "fake", "--tasks", "brief", "--eval-every", "0")
    ran = sapo(home, "node", *fake, "--rounds", "1", "--local-groups", "2", "--quiet")
    assert ran.returncode == 0, ran.stderr
    return home


def asked(*messages: dict[str, str]) -> int:
    """Tokens of a conversation."""
    return len(FakeTokenizer().encode_chat(messages))


@pytest.mark.parametrize("checkpoint", ["latest", "base"])
def test_the_trained_model_is_asked_under_its_tasks_system_prompt_and_its_base_as_it_came(
    home: Path, checkpoint: str
) -> None:
    command = [sys.executable, "-m", "sapo_desktop", "serve-model", "--port", "0", "--checkpoint", checkpoint]
    with subprocess.Popen(command, env=environment(home), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(4)]
        key = Path(told[2].split(" in ", 1)[1].strip()).read_text().strip()

        def tokens(*messages: dict[str, str]) -> int:
            body = json.dumps({"messages": messages, "max_tokens": 1}).encode()
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            request = urllib.request.Request(f"{told[1].split()[-1]}/chat/completions", body, headers)
            with urllib.request.urlopen(request, timeout=60) as reply:
                return int(json.loads(reply.read())["usage"]["prompt_tokens"])

        try:
            ours = [{"role": "system", "content": SYSTEM}] if checkpoint == "latest" else []
            assert tokens(USER) == asked(*ours, USER)
            for role in ("system", "developer"):
                other = {"role": role, "content": "Be short."}
                assert tokens(other, USER) == asked({**other, "role": "system"}, USER)
        finally:
            process.send_signal(signal.SIGTERM)
