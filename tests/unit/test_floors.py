"""The floors of the house: who may import whom, and what a light process must not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "mlx", "llama_cpp", "transformers", "reasoning_gym", "peft"}


def modules_after(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after the statement."""
    code = f"import sys\n{statement}\nprint(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import sapo_desktop.dashboard.app, sapo_desktop.dashboard.feed, sapo_desktop.commands.nodes.dashboard",
        "import sapo_swarm.coordinator.server",
        "import sapo_swarm.node.control_api, sapo_swarm.events",
        "import sapo_backends.base, sapo_backends.registry",
        "from sapo_desktop.services.first_run import detect_choices; detect_choices()",
    ],
)
def test_light_processes_load_no_engine_and_no_task(statement: str) -> None:
    assert not modules_after(statement) & HEAVY


def test_the_command_line_loads_nothing_slow_before_a_verb_is_known() -> None:
    loaded = modules_after("from sapo_desktop.cli import build_parser; build_parser('paths')")
    assert not loaded & (HEAVY | {"textual", "aiohttp", "keyring", "numpy"})


def test_a_coordinator_starts_without_numpy() -> None:
    """A third of the processor time of its start: members wait for it after a crash."""
    loaded = modules_after("import sapo_swarm.coordinator.host, sapo_desktop.commands.swarms.coordinator")
    assert not loaded & (HEAVY | {"numpy", "textual", "keyring"})


def test_backends_know_nothing_of_swarm_and_app() -> None:
    loaded = modules_after("import sapo_backends.base, sapo_backends.fake, sapo_backends.torch_backend")
    assert not loaded & {"sapo_swarm", "sapo_desktop", "textual"}


def test_swarm_and_backends_never_load_textual() -> None:
    assert "textual" not in modules_after("import sapo_swarm.node.loop, sapo_swarm.node.control_server")
