"""How easy this project is to find one's way in, as figures: of this checkout, or of others beside it.

    git worktree add ../before HEAD~1
    python tests/benchmarks/house.py [../before .] [--skip wheel,trace]

Prints a Markdown table, one column a checkout; `--json` for one object a checkout.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOTS = ("app", "swarm", "backends", "assets")
TRACE = """
import sys, threading, os
touched, state = set(), {"rounds": 0}
packages = ("sapo_swarm", "sapo_backends", "sapo_desktop", "sapo_lab")
names = {}
def package_file(path):
    if path not in names:
        parts = path.replace(os.sep, "/").split("/")
        start = next((i for i, part in enumerate(parts) if part in packages), None)
        names[path] = None if start is None else "/".join(parts[start:])
    return names[path]
def called(frame, what, _):
    if what != "call":
        return
    name = package_file(frame.f_code.co_filename)
    if name is None:
        return
    if frame.f_code.co_name == "encode" and name == "sapo_swarm/events.py":
        event = frame.f_locals["event"]
        if type(event).__name__ == "RoundFinished" and event.round > state["rounds"]:
            state["rounds"] = event.round
            if event.round == 1:
                touched.clear()
            if event.round == 2:
                sys.stderr.write("TOUCHED " + " ".join(sorted(touched)) + chr(10))
    touched.add(name)
threading.setprofile(called)
sys.setprofile(called)
from sapo_desktop.cli import run
sys.exit(run(sys.argv[1:]))
"""
"""Runs a node and tells, on stderr, the files in which a function was called from the record of one round to that of the next."""
SETTINGS = {"rounds": 4, "eval-every": 0, "model": "starter", "trainer": "torch", "threads": 1, "max-new-tokens": 24}
ROUND = ["node", "--silo", "--quiet", *(f"--{name}={value}" for name, value in SETTINGS.items())]
CALM = "[limits]\npause_on_battery = false\nmax_celsius = 0\nmin_free_memory = 0\nmin_free_disk = 0\nnice = 0\n"


def environment(checkout: Path, **more: str) -> dict[str, str]:
    """This interpreter's own, with the packages of the checkout first on the path."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(checkout / root) for root in ROOTS), **more}


def modules(checkout: Path) -> dict[str, Path]:
    """Dotted name -> file, of every module of the product."""
    found: dict[str, Path] = {}
    for root in ROOTS:
        for path in sorted((checkout / root).glob("sapo_*/**/*.py")):
            parts = path.relative_to(checkout / root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def entries(found: dict[str, Path]) -> tuple[int, str]:
    """The most entries (modules and packages, private ones aside) on one level, and where."""
    levels: dict[str, int] = {}
    for name in found:
        parent, _, last = name.rpartition(".")
        if parent and not last.startswith("_"):
            levels[parent] = levels.get(parent, 0) + 1
    where = max(levels, key=lambda level: levels[level])
    return levels[where], where


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the project that this one imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & set(known)
            found |= inner or ({node.module} & set(known))
    return found - {name}


def undocumented(path: Path) -> Iterator[str]:
    """Public functions and methods without a docstring."""

    def look(body: list[ast.stmt]) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield from look(node.body)
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and not node.name.startswith("_")
                and ast.get_docstring(node) is None
            ):
                yield node.name

    return look(ast.parse(path.read_text("utf-8")).body)


def lines(found: dict[str, Path]) -> str:
    """Lines of Python by import package."""
    counts: dict[str, int] = {}
    for name, path in found.items():
        package = name.partition(".")[0]
        counts[package] = counts.get(package, 0) + len(path.read_text("utf-8").splitlines())
    return ", ".join(f"{package} {count:,}" for package, count in sorted(counts.items()) if count > 100)


def import_ms(checkout: Path) -> float:
    """Milliseconds from start to a parsed command line, less an empty interpreter's; best of seven, in turns."""
    programs = ("pass", "from sapo_desktop.cli import parser; parser('paths')")
    best = [float("inf")] * 2
    for _ in range(7):
        for place, program in enumerate(programs):
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-c", program], env=environment(checkout), check=True)
            best[place] = min(best[place], time.perf_counter() - begun)
    return round(1000 * (best[1] - best[0]), 1)


def wheel_mb(checkout: Path) -> float:
    """Megabytes of the wheel. pip fetches the build's own requirements."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, str(checkout.resolve())]
        subprocess.run(command, check=True)
        return round(sum(path.stat().st_size for path in Path(folder).glob("*.whl")) / 1e6, 2)


def tests(checkout: Path) -> int:
    """Tests that pytest collects."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"],
        cwd=checkout,
        env=environment(checkout),
        capture_output=True,
        text=True,
        check=False,
    )
    return sum("::" in line for line in done.stdout.splitlines())


def touched(checkout: Path) -> list[str]:
    """The files of the product in which a function is called during one silo round of the starter, in the node's process.

    The app's own (what prints the round) are left out: the round is the swarm's and the engine's.
    """
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "config.toml").write_text(CALM, "utf-8")
        done = subprocess.run(
            [sys.executable, "-c", TRACE, *ROUND],
            env=environment(checkout, SAPO_HOME=home, OMP_NUM_THREADS="1"),
            capture_output=True,
            text=True,
            check=False,
        )
    told = [line for line in done.stderr.splitlines() if line.startswith("TOUCHED ")]
    if not told:
        raise SystemExit(f"{checkout}: the node ended without three rounds:\n{done.stderr[-2000:]}")
    return [name for name in told[0].split()[1:] if not name.startswith("sapo_desktop/")]


def measure(checkout: Path, skip: set[str]) -> dict[str, object]:
    """Every figure of a checkout, in the order of the table."""
    found = modules(checkout)
    level, where = entries(found)
    fan = {name: len(imports(name, path, found)) for name, path in found.items()}
    sizes = [len(path.read_text("utf-8").splitlines()) for path in found.values()]
    slow: dict[str, Callable[[], object]] = {
        "trace": lambda: len(touched(checkout)),
        "import": lambda: import_ms(checkout),
        "wheel": lambda: wheel_mb(checkout),
        "tests": lambda: tests(checkout),
    }
    figures = {name: "-" if name in skip else work() for name, work in slow.items()}
    return {
        "entries on a level, most": f"{level} ({where})",
        "files that a silo round of the starter touches": figures["trace"],
        "modules with more than 8 imports of the project": sum(count > 8 for count in fan.values()),
        "public functions and methods without docstring": sum(1 for p in found.values() for _ in undocumented(p)),
        "lines by package": lines(found),
        "modules; median lines; longest": f"{len(sizes)}; {statistics.median(sizes):.0f}; {max(sizes)}",
        "import of the command line, ms": figures["import"],
        "wheel, MB": figures["wheel"],
        "tests": figures["tests"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path()])
    parser.add_argument("--skip", default="", help="of trace, import, wheel, tests; separated by commas")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--files", action="store_true", help="list the files that a round touches instead")
    args = parser.parse_args()
    if args.files:
        for checkout in args.checkouts:
            print(f"# {checkout}", *touched(checkout), sep="\n")
        return 0
    columns = [measure(checkout, set(args.skip.split(","))) for checkout in args.checkouts]
    if args.json:
        for checkout, column in zip(args.checkouts, columns, strict=True):
            print(json.dumps({"checkout": str(checkout), **column}))
        return 0
    print("| figure |", " | ".join(map(str, args.checkouts)), "|")
    print("|---" * (len(columns) + 1) + "|")
    for name in columns[0]:
        print("|", name, "|", " | ".join(str(column[name]) for column in columns), "|")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
