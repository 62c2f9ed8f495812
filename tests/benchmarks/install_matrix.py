"""Install the app into clean environments, one a Python and installer, and see what a person sees: JSON lines.

    python tests/benchmarks/install_matrix.py [--pythons PATH ...] [--installers pip uv-tool pipx clone] [--torch INDEX]

Each line: minutes of installing, megabytes on the disk, what `doctor` ends with, and how many of five silo rounds were done
or the sentence instead. uv and pipx are taken from PATH. --torch adds the engine as docs/how-to/install.md does: from that
index alone (the CPU build: https://download.pytorch.org/whl/cpu), or a wheel of torch on this disk. clone: git clone of this
checkout's last commit, then packaging/setup_venv.py, which brings torch by itself and everything that tests need.
--no-compiler hides the machine's and takes the wheel of packaging/no_compiler.py. It downloads what an installation
downloads.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 1800
ROUNDS = 5


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL, check=False
    )


def megabytes(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink()) // 10**6


def commands(
    installer: str, python: str, wheel: Path, folder: Path, torch: str, stub: Path | None
) -> tuple[list[list[str]], Path]:
    """What a person types, and where the program is afterwards. stub: what takes pycosat's place."""
    binary = folder / "bin" / "sapo-desktop"
    if installer == "clone":
        setup = [python, str(folder / "packaging" / "setup_venv.py"), str(folder / ".venv")]
        return [["git", "clone", "-q", str(ROOT), str(folder)], setup], folder / ".venv" / "bin" / "sapo-desktop"
    if installer == "pip":
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q"]
        first = [[python, "-m", "venv", str(folder)], [*pip, *([str(stub)] if stub else []), str(wheel)]]
    elif installer == "uv-tool":
        pip = ["uv", "pip", "install", "-q", "--python", str(folder / "tools" / "sapo-desktop")]
        first = [
            ["uv", "tool", "install", "-q", "--python", python, str(wheel), *(["--with", str(stub)] if stub else [])]
        ]
    else:
        pip = ["pipx", "runpip", "sapo-desktop", "install", "-q"]
        links = [f"--pip-args=--find-links={shlex.quote(str(stub.parent))}"] if stub else []
        first = [["pipx", "install", "-q", "--python", python, str(wheel), *links]]
    engine = [torch] if torch.endswith(".whl") else ["torch", "--index-url", torch]
    return [*first, *([[*pip, *engine], [*pip, "transformers", "peft"]] if torch else [])], binary


def measure(installer: str, python: str, wheel: Path, torch: str, compiler: bool) -> dict[str, object]:
    """One line of the table."""
    with tempfile.TemporaryDirectory(prefix="sapo install é ") as name:  # a space and an accent, as homes have them
        folder = Path(name) / "env"
        paths = {
            "UV_TOOL_DIR": name + "/env/tools",
            "UV_TOOL_BIN_DIR": name + "/env/bin",
            "PIPX_HOME": name + "/env/pipx",
        }
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        environment |= paths | {"PIPX_BIN_DIR": name + "/env/bin", "SAPO_HOME": name + "/home", "HOME": name}
        stub = None
        if not compiler:
            stub = Path(
                run([sys.executable, str(ROOT / "packaging" / "no_compiler.py"), name], environment).stdout.strip()
            )
            environment["PATH"] = name + "/programs"
            Path(environment["PATH"]).mkdir()
            for program in ("git", "uv", "pipx"):
                if found := shutil.which(program):
                    (Path(environment["PATH"]) / program).symlink_to(found)
        version = run([python, "-c", "import platform; print(platform.python_version())"], environment).stdout.strip()
        line: dict[str, object] = {
            "python": version,
            "installer": installer,
            "engine": "torch" if torch or installer == "clone" else "none",
            "compiler": compiler,
        }
        steps, binary = commands(installer, python, wheel, folder, torch, stub)
        begun = time.monotonic()
        for step in steps:
            done = run(step, environment)
            if done.returncode:
                return line | {"failed": " ".join(step[:4]), "said": done.stderr.strip().splitlines()[-3:]}
        line |= {"minutes": round((time.monotonic() - begun) / 60, 2), "megabytes": megabytes(folder)}
        doctor = run([str(binary), "doctor", "--json"], environment)
        findings = [json.loads(text) for text in doctor.stdout.splitlines()]
        line["doctor"] = "green" if not doctor.returncode else [f["text"] for f in findings if f["verdict"] == "fail"]
        calm = "[limits]\npause_on_battery = false\nmin_free_disk = 0\n"
        (Path(name) / "home").mkdir(exist_ok=True)
        (Path(name) / "home" / "config.toml").write_text(calm)
        train = run(
            [str(binary), "node", "--silo", "--rounds", str(ROUNDS), "--eval-every", "0", "--json"], environment
        )
        rounds = sum('"kind":"round"' in text.replace(" ", "") for text in train.stdout.splitlines())
        return (
            line | {"rounds": rounds} | ({"said": train.stderr.strip().splitlines()[-1:]} if train.returncode else {})
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", nargs="+", default=[sys.executable])
    parser.add_argument("--installers", nargs="+", default=["pip", "uv-tool", "pipx"])
    parser.add_argument("--torch", default="", metavar="INDEX or WHEEL")
    parser.add_argument(
        "--wheel", type=Path, help="of this checkout; without it one is built (needs the package build)"
    )
    parser.add_argument("--no-compiler", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as built:
        wheel = args.wheel
        if wheel is None:
            subprocess.run(
                [sys.executable, "-m", "build", "--wheel", "-o", built, str(ROOT)], check=True, stdout=sys.stderr
            )
            (wheel,) = Path(built).glob("*.whl")
        for python in args.pythons:
            for installer in args.installers:
                print(
                    json.dumps(measure(installer, python, wheel.resolve(), args.torch, not args.no_compiler)),
                    flush=True,
                )


if __name__ == "__main__":
    main()
