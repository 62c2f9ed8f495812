"""Install the app into clean environments, one a Python and installer, and use it as a person does: JSON lines.

    python tests/benchmarks/install_matrix.py [--pythons PATH ...] [--installers pip uv-tool uvx pipx clone] [--engine INDEX]

Each line: minutes of installing, megabytes downloaded (on Linux; by the whole machine, loopback left out) and on the disk, what
`doctor --self-test` ends with, how many of two silo rounds on the bundled model were done, and which verb of which group of
`--help` failed; the exit code is 1 where anything did. Everything lies in a folder with a space and letters of other alphabets,
under LANG=C. .github/workflows/release.yml runs it on each system.

--engine adds one by the lines of docs/how-to/install.md: torch from that index (for processors:
https://download.pytorch.org/whl/cpu), or an extra of the wheel as the installer itself resolves it (torch, on Linux mlx). clone:
git clone of this checkout's last commit, then packaging/setup_venv.py, which brings torch by itself and everything that tests
need. --no-compiler hides the machine's and does without pycosat. --read-only: nothing can be written where it was installed. uv
and pipx are taken from PATH. It downloads what an installation downloads.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 1800
ROUNDS = 2
PREFIX = "sapo install é 空 "
SETTINGS = "[limits]\npause_on_battery = false\nmin_free_disk = 0\n"
TRAIN = ("node", "first", "--silo", "--rounds", str(ROUNDS), "--local-groups", "4", "--eval-every", "0", "--json")
VERBS: dict[str, tuple[str, ...]] = {
    "Train": ("new", "first", "--base", "starter-1m"),
    "My models": ("models", "--json"),
    "My tasks": ("tasks", "--json"),
    "Swarm": ("directory",),
    "Machine and experts": ("config", "get", "run.model"),
}
"""One of each group of --help; only the first needs an engine."""
READ_ONLY = ("unshare", "-m", "sh", "-c", 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"')
"""Modes keep everybody from writing but root; a container's root may mount."""


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=LIMIT_S,
        check=False,
    )


def megabytes(folder: Path) -> int:
    """On the disk: uv's cache and its tools are links to the same files."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sum({(file.st_dev, file.st_ino): file.st_size for file in files}.values()) // 10**6


def program(folder: Path, name: str) -> str:
    return str(folder / f"{name}.exe" if os.name == "nt" else folder / name)


def downloaded() -> int:
    """Bytes that this machine has received from others; 0 where the system does not say."""
    table = Path("/proc/net/dev")
    rows = [row.partition(":") for row in table.read_text().splitlines()[2:]] if table.exists() else []
    return sum(int(counts.split()[0]) for name, _, counts in rows if name.strip() != "lo")


def commands(
    installer: str, python: str, wheel: Path, folder: Path, engine: str, stub: Path | None
) -> tuple[list[list[str]], list[str]]:
    """What a person types to install it, and how the program is called afterwards. stub: what takes pycosat's place."""
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    index = engine if "/" in engine else ""
    what = f"{wheel}[{'torch' if index else engine}]" if engine else str(wheel)
    if installer == "clone":
        setup = [python, str(folder / "packaging" / "setup_venv.py"), str(folder / ".venv")]
        inside = folder / ".venv" / scripts.name
        return [["git", "clone", "-q", str(ROOT), str(folder)], setup], [program(inside, "sapo-desktop")]
    if installer in ("uvx", "uv-tool"):
        options = ["-q", "--python", python, *(["--torch-backend", index.rpartition("/")[2]] if index else [])]
        if stub:
            (without := folder.parent / "without.txt").write_text("pycosat ; python_version < '3'\n", "utf-8")
            options += ["--overrides", str(without)]
        if installer == "uvx":
            call = ["uvx", *options, "--from", what, "sapo-desktop"]
            return [[*call, "--version"]], call
        return [["uv", "tool", "install", *options, what]], [program(folder / "bin", "sapo-desktop")]
    from_index = ["torch", "--index-url", index]
    if installer == "pip":
        pip = [program(scripts, "python"), "-m", "pip", "install", "-q"]
        first = [[*pip, *from_index]] if index else []
        last = [[*pip, *([str(stub)] if stub else []), what]]
        return [[python, "-m", "venv", str(folder)], *first, *last], [program(scripts, "sapo-desktop")]
    links = [f"--pip-args=--find-links={shlex.quote(str(stub.parent))}"] if stub else []
    steps = [["pipx", "install", "-q", "--python", python, str(wheel) if index else what, *links]]
    if index:
        runpip = ["pipx", "runpip", "sapo-desktop", "install", "-q"]
        steps += [[*runpip, *from_index], [*runpip, "transformers", "peft"]]
    return steps, [program(folder / "bin", "sapo-desktop")]


def surroundings(name: str, compiler: bool) -> dict[str, str]:
    """The variables of somebody whose home is this folder."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "LC_", "SAPO_")) and key != "VIRTUAL_ENV"
    }
    environment |= {"LANG": "C", "HOME": name, "USERPROFILE": name, "SAPO_HOME": f"{name}/home"}
    environment |= {"UV_TOOL_DIR": f"{name}/env/tools", "UV_TOOL_BIN_DIR": f"{name}/env/bin"}
    environment |= {"UV_CACHE_DIR": f"{name}/env/cache", "UV_PYTHON_DOWNLOADS": "never"}
    environment |= {"PIPX_HOME": f"{name}/env/pipx", "PIPX_BIN_DIR": f"{name}/env/bin"}
    if not compiler:
        programs = Path(name) / "programs"
        programs.mkdir()
        for tool in (
            "git",
            "uv",
            "uvx",
            "pipx",
            "sh",
            "dirname",
            "realpath",
            "mount",
            "unshare",
        ):
            if path := shutil.which(tool):
                (programs / tool).symlink_to(path)
        environment["PATH"] = str(programs)
    return environment


def forbid_writing(folder: Path) -> list[str]:
    """Take away the right to write below the folder; for root, what its commands have to begin with."""
    if (archive := folder / "cache" / "archive-v0").exists() and not (folder / "bin").exists():
        folder = archive  # uvx itself writes into the rest of its cache
    if os.name == "posix" and os.geteuid() == 0:
        return [*READ_ONLY, str(folder)]
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    return []


def allow_writing(folder: Path) -> None:
    """So that it can be removed."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | stat.S_IWUSR)


def use(call: list[str], environment: dict[str, str], engine: str) -> dict[str, object]:
    """What each verb ends with: the sentence of its error where it fails."""
    failed: dict[str, str] = {}
    listed = run([*call, "--help"], environment).stdout
    groups = re.findall(r"^  (\w.*)$", listed.partition("verbs:")[2].partition("sapo-desktop VERB")[0], re.MULTILINE)
    if groups != [*VERBS]:
        failed["--help"] = f"its groups are {groups}"
    for group, verb in VERBS.items():
        done = run([*call, *verb, *(("--trainer", "mlx") if (group, engine) == ("Train", "mlx") else ())], environment)
        if done.returncode:
            failed[verb[0]] = (done.stderr.strip().splitlines() or ["no output"])[-1]
    doctor = run([*call, "doctor", "--self-test", "--json"], environment)
    findings = [json.loads(text) for text in doctor.stdout.splitlines() if text.startswith("{")]
    wrong = [finding["text"] for finding in findings if finding["verdict"] == "fail"]
    train = run([*call, *TRAIN], environment)
    events = [json.loads(text) for text in train.stdout.splitlines() if text.startswith("{")]
    rounds = sum(event["covers"] for event in events if event.get("kind") == "round")
    line: dict[str, object] = {"doctor": wrong or ("green" if findings else doctor.stderr[-300:]), "rounds": rounds}
    if train.returncode:
        line["said"] = train.stderr.strip().splitlines()[-1:]
    return line | ({"failed": failed} if failed else {})


def measure(
    installer: str, python: str, wheel: Path, engine: str, compiler: bool, read_only: bool
) -> dict[str, object]:
    """One line of the table."""
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        folder, environment = Path(name) / "env", surroundings(name, compiler)
        stub = None
        if not compiler:
            made = run([sys.executable, str(ROOT / "packaging" / "no_compiler.py"), name], dict(os.environ))
            stub = Path(made.stdout.strip())
        version = run([python, "-c", "import platform; print(platform.python_version())"], environment).stdout.strip()
        line: dict[str, object] = {"python": version, "installer": installer, "engine": engine or "none"}
        line |= {"compiler": compiler, "read_only": read_only}
        steps, call = commands(installer, python, wheel, folder, engine, stub)
        began, received = time.monotonic(), downloaded()
        for step in steps:
            done = run(step, environment)
            if done.returncode:
                return line | {"failed": " ".join(step[:4]), "said": done.stderr.strip().splitlines()[-3:]}
        line |= {"minutes": round((time.monotonic() - began) / 60, 2), "downloaded": (downloaded() - received) // 10**6}
        line["megabytes"] = megabytes(folder)
        (Path(name) / "home").mkdir(exist_ok=True)
        (Path(name) / "home" / "config.toml").write_text(SETTINGS, "utf-8")
        before = forbid_writing(folder) if read_only else []
        try:
            return line | use([*before, *call], environment, engine)
        finally:
            if read_only and not before:
                allow_writing(folder)


def good(line: dict[str, object]) -> bool:
    """Whether all was done that this line's engine can do."""
    if line["engine"] == "none" and line["installer"] != "clone":
        failed = line.get("failed")
        return isinstance(failed, dict) and [*failed] == ["new"] and "No engine" in failed["new"]
    return "failed" not in line and (line["doctor"], line["rounds"]) == ("green", ROUNDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", nargs="+", default=[sys.executable])
    parser.add_argument("--installers", nargs="+", default=["pip", "uv-tool", "uvx", "pipx"])
    parser.add_argument("--engine", default="", metavar="INDEX or EXTRA")
    parser.add_argument(
        "--wheel", type=Path, help="of this checkout, or its folder; without it one is built (needs the package build)"
    )
    parser.add_argument("--no-compiler", action="store_true")
    parser.add_argument("--read-only", action="store_true")
    args = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as built:
        wheel = args.wheel or Path(built)
        if args.wheel is None:
            build = [sys.executable, "-m", "build", "--wheel", "-o", built, str(ROOT)]
            subprocess.run(build, check=True, stdout=sys.stderr)
        if wheel.is_dir():
            (wheel,) = wheel.glob("*.whl")
        for python in args.pythons:
            for installer in args.installers:
                lines.append(
                    measure(installer, python, wheel.resolve(), args.engine, not args.no_compiler, args.read_only)
                )
                print(json.dumps(lines[-1]), flush=True)
    sys.exit(not all(map(good, lines)))


if __name__ == "__main__":
    main()
