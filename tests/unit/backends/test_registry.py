"""Engines by name: one whose library is missing says so and hinders no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sapo_backends import packages, registry
from sapo_backends.base import LoadRequest
from sapo_backends.packages import install_command


@pytest.mark.parametrize(
    ("package", "engine", "remedy"),
    [("torch", "torch", "pip install torch"), ("llama_cpp", "llamacpp", "needs a C++ compiler")],
)
def test_a_missing_package_is_named_with_its_remedy(package: str, engine: str, remedy: str) -> None:
    """Without its library an engine says what to install, and the others go on working."""
    script = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from sapo_backends import registry\n"
        "from sapo_backends.base import BackendUnavailable\n"
        f"assert 'fake' in registry.installed_backends() and {engine!r} not in registry.installed_backends()\n"
        "registry.get_backend('fake').check()\n"
        f"try: registry.get_backend({engine!r}).check()\n"
        "except BackendUnavailable as error: print(error.fix_command)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert remedy in done.stdout


@pytest.mark.parametrize(
    ("prefix", "command"),
    [
        ("/home/ada/sapo/.venv", "pip install zeroconf 'redis[hiredis]'"),
        ("/usr", "pip install zeroconf 'redis[hiredis]'"),
        ("/home/ada/.local/share/pipx/venvs/sapo-desktop", "pipx inject sapo-desktop zeroconf 'redis[hiredis]'"),
        (
            "/home/ada/.local/share/uv/tools/sapo-desktop",
            "uv pip install --python \"$(uv tool dir)/sapo-desktop\" zeroconf 'redis[hiredis]'",
        ),
        (
            "/home/ada/.cache/uv/archive-v0/x",
            "uvx --with zeroconf --with 'redis[hiredis]' --from WHEEL sapo-desktop",
        ),
    ],
)
def test_a_hint_installs_into_the_environment_that_runs_and_names_no_home(prefix: str, command: str) -> None:
    said = install_command("zeroconf", "redis[hiredis]", prefix=prefix)
    assert said.endswith(command)
    assert "ada" not in said


@pytest.mark.parametrize(
    ("system", "nvidia", "build"),
    [
        ("linux", False, "cpu"),
        ("linux", True, ""),
        ("darwin", False, ""),
        ("win32", False, ""),
        ("win32", True, "cu130"),
    ],
)
def test_a_hint_names_pytorchs_index_where_pypis_torch_is_not_the_build_for_the_machine(
    monkeypatch: pytest.MonkeyPatch, system: str, nvidia: bool, build: str
) -> None:
    """On Linux without an NVIDIA driver it brings gigabytes for one, on Windows with one it is without CUDA."""
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(packages, "has_nvidia", lambda: nvidia)
    first = f"pip install torch --index-url https://download.pytorch.org/whl/{build} && pip install peft"
    assert install_command("torch", "peft", prefix="/usr") == (first if build else "pip install torch peft")
    assert install_command("zeroconf", prefix="/usr") == "pip install zeroconf"


@pytest.mark.parametrize(("receipt", "begins"), [("uv-receipt.toml", "uv pip install"), ("pipx_metadata.json", "pipx")])
def test_uv_and_pipx_are_known_wherever_they_keep_their_tools(tmp_path: Path, receipt: str, begins: str) -> None:
    """On Windows that is %APPDATA%\\uv\\data\\tools; UV_TOOL_DIR and PIPX_HOME name any folder."""
    (tmp_path / receipt).touch()
    assert install_command("torch", prefix=str(tmp_path)).startswith(begins)


def test_the_torch_engine_takes_every_precision_that_it_names() -> None:
    torch = pytest.importorskip("torch", reason="the torch engine is not installed")
    from sapo_backends.torch_backend.loading import PRECISIONS, pick_place

    named = registry.get_backend("torch").PRECISIONS
    assert {name for name in named if not name.startswith("4bit")} == set(PRECISIONS)
    places = [pick_place(LoadRequest(method="lora", precision=name, device="cpu")) for name in named]
    assert {place.compute for place in places} <= {torch.float32, torch.bfloat16}
