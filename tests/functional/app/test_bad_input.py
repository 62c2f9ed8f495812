"""Whatever a person gets wrong ends in one sentence that says what to do, the right exit code, and nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.node_process import FAKE, calm, environment, sapo

LIMIT = 1_000_000
"""Bytes of a file: checkpoints fit, and the journal's log of writes gets there after some thirty rounds."""
LONG = (*FAKE, "--local-groups", "4", "--rounds", "50")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--tasks", "calendar_arithmetik"], 2, "Did you mean 'calendar_arithmetic'?"),
        (["--preset", "starte"], 2, "Did you mean 'starter'?"),
        (["--algorithm", "grpoo"], 2, "Did you mean 'grpo'?"),
        (["--sampling", "uniform_nonzer"], 2, "Did you mean 'uniform_nonzero'?"),
        (["--trainer", "torhc"], 2, "Did you mean 'torch'?"),
        (["--rounds", "many"], 2, "run.rounds"),
        (["--group-size", "1"], 2, "run.group_size"),
        (["--local-groups", "-1"], 2, "run.local_groups"),
        (["--tasks", ","], 2, "sapo-desktop tasks"),
        (["--model", "/no/such/folder", "--trainer", "torch"], 1, "/no/such/folder"),
    ],
)
def test_a_wrong_setting_of_a_node_is_named(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    done = sapo(tmp_path, "node", *FAKE, *arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[run]\nround = 3\n", "Did you mean 'run.rounds'?"),
        ("[runs]\nrounds = 3\n", "run.rounds"),
        ("[run]\nrounds = -1\n", "run.rounds"),
        ("[run\n", "not valid TOML"),
        ("run = 3\n", "run"),
        ("[colours]\n", "no setting 'colours'"),
    ],
)
def test_a_wrong_settings_file_is_refused_and_left_as_it_is(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    done = sapo(tmp_path, "node", *FAKE)
    assert done.returncode == 2
    assert said in done.stderr
    assert path.read_text() == text


def test_config_set_refuses_what_it_would_not_read(tmp_path: Path) -> None:
    assert sapo(tmp_path, "config", "set", "run.rounds", "12").stdout == "run.rounds = 12\n"
    done = sapo(tmp_path, "config", "set", "run.rounds", "-3")
    assert done.returncode == 2
    assert sapo(tmp_path, "config", "get", "run.rounds").stdout == "12\n"


STRANGE = """\
[run]
round = 3
group_size = 6

[colours]
sky = "blue"
"""


def test_config_works_over_a_file_with_unknown_keys_names_the_nearest_and_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(STRANGE)
    got = sapo(tmp_path, "config", "get", "run.group_size")
    assert (got.returncode, got.stdout) == (0, "6\n")
    assert "no setting 'run.round'. Did you mean 'run.rounds'?" in got.stderr
    assert "sapo-desktop config reset run.round" in got.stderr
    assert sapo(tmp_path, "config", "get").returncode == 0
    assert sapo(tmp_path, "config", "path").stdout == f"{path}\n"
    assert sapo(tmp_path, "config", "set", "run.rounds", "9").stdout == "run.rounds = 9\n"
    assert sapo(tmp_path, "config", "reset", "run.group_size").returncode == 0
    assert "round = 3" in path.read_text()
    assert 'sky = "blue"' in path.read_text()


def test_config_reset_takes_an_unknown_key_out_after_which_the_file_is_good(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(STRANGE)
    for key in ("run.round", "colours.sky"):
        assert sapo(tmp_path, "config", "reset", key).stdout == f"{key} was taken out\n"
    assert sapo(tmp_path, "config", "get", "run.group_size").stderr == ""


def test_a_section_that_is_none_is_named_by_config_and_can_be_taken_out(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("run = 3\n")
    done = sapo(tmp_path, "config", "set", "run.rounds", "5")
    assert done.returncode == 2
    assert "sapo-desktop config reset run" in done.stderr
    assert sapo(tmp_path, "config", "reset", "run").returncode == 0
    assert sapo(tmp_path, "config", "set", "run.rounds", "5").returncode == 0


@pytest.mark.parametrize("verb", ["status", "pause", "resume", "finish", "stop", "snooze", "run-anyway"])
def test_without_a_node_a_control_verb_exits_with_3(tmp_path: Path, verb: str) -> None:
    done = sapo(tmp_path, verb)
    assert done.returncode == 3
    assert "No node is running" in done.stderr


def test_a_time_that_is_none_is_explained(tmp_path: Path) -> None:
    done = sapo(tmp_path, "pause", "--for", "soon")
    assert done.returncode == 2
    assert "15m" in done.stderr


def test_without_any_trainer_the_exit_code_is_4_and_the_command_is_given(tmp_path: Path) -> None:
    """An installation without torch and mlx, imitated by a finder that hides them."""
    hide = (
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in {'torch', 'mlx', 'llama_cpp'}: raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hide())\n"
        "from sapo_desktop.cli import run_command_line\n"
        "sys.exit(run_command_line(['node', '--silo']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", hide], env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 4, done.stderr
    assert "pip install torch" in done.stderr


def test_a_read_only_home_is_named(tmp_path: Path) -> None:
    """Root writes past permissions, so for root the kernel's own read-only tree stands in."""
    home = Path("/sys/sapo") if os.geteuid() == 0 else tmp_path / "home"
    tmp_path.chmod(0o500)
    done = sapo(home, "node", *FAKE)
    tmp_path.chmod(0o700)
    assert done.returncode == 1
    assert "SAPO_HOME" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A file where the home should be refuses everybody, root too."""
    (tmp_path / "home").write_text("not a folder")
    done = sapo(tmp_path / "home", "node", *FAKE)
    assert done.returncode == 1
    assert "SAPO_HOME" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_eval_of_nothing_says_how_to_begin(tmp_path: Path) -> None:
    done = sapo(tmp_path, "eval")
    assert done.returncode == 2
    assert "sapo-desktop new my-model" in done.stderr


def test_a_recording_with_a_broken_line_is_named(tmp_path: Path) -> None:
    recording = tmp_path / "run.jsonl"
    recording.write_text('{"kind":"log","level":"info","text":"x"}\n{"kind":\n')
    done = sapo(tmp_path, "replay", str(recording))
    assert done.returncode == 2
    assert "line 2" in done.stderr


def test_a_full_disk_pauses_the_run_and_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the full disk: the write fails the same way, in the same place."""
    calm(tmp_path)
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, -1))\n"
        "from sapo_desktop.cli import run_command_line\n"
        f"sys.exit(run_command_line(['node', *{LONG!r}]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "Paused" in line:
            break
    status = sapo(tmp_path, "status")
    sapo(tmp_path, "stop")
    with process.stdout:
        lines.append(process.stdout.read())
    assert process.wait() == 0, lines
    assert "Paused" in status.stdout, lines
    assert "disk" in status.stdout.lower() or "file too large" in status.stdout.lower()
    done = sapo(tmp_path, "node", *LONG)
    assert done.returncode == 0
    assert "50/50" in done.stdout
