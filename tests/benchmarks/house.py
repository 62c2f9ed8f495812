"""How easy it is to find one's way in this project, in figures: sizes, names, and the files that four walks go through.

    python tests/benchmarks/house.py [CHECKOUT ...] [--walks silo,swarm,csv,key] [--json]

The static part takes a second (`make check` prints it); each walk runs the product with a profiler. A walk counts the files,
and the functions, of the product that are called: from the end of one round to the end of the next (silo, swarm), for a table
that becomes a task (csv), and for a key press in the dashboard (key); they are printed to standard error. Given several
checkouts, one column each.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOTS = ("app", "swarm", "backends", "assets")
PRODUCT = {"sapo_desktop": "app", "sapo_swarm": "swarm", "sapo_backends": "backends"}
CRUMB = 60
WALKS = ("silo", "swarm", "csv", "key")
QUIET = (
    "--quiet",
    "--model=starter-1m",
    "--trainer=torch",
    "--threads=1",
    "--eval-every=0",
    "--max-new-tokens=24",
    "--rounds=4",
)
CALM = "[limits]\npause_on_battery = false\nmax_celsius = 0\nmin_free_memory = 0\nmin_free_disk = 0\n"
TRACE = """
import collections, sys, threading
MARK = {mark!r}
walk, state, names = set(), {{"last": 0, "on": not MARK}}, {{}}
def module_of(path):
    if path not in names:
        parts = path.replace("\\\\", "/").split("/")
        start = next((i for i, part in enumerate(parts) if part in ("sapo_swarm", "sapo_backends", "sapo_desktop")), None)
        names[path] = None if start is None else "/".join(parts[start:])
    return names[path]
def called(frame, what, _):
    if what != "call":
        return
    code = frame.f_code
    name = module_of(code.co_filename)
    if name is None or not code.co_flags & 2:  # the body of a module or of a class, which an import runs
        return
    if MARK == "round" and code.co_name == "encode_event" and name == "sapo_swarm/events.py":
        event = frame.f_locals["event"]
        if type(event).__name__ == "RoundFinished" and event.round > state["last"]:
            state["last"], state["on"] = event.round, event.round < 2
            if event.round == 1:
                walk.clear()
            if event.round == 2:
                tell()
    if MARK == "key" and code.co_name == "key_is_pressed_now":
        walk.clear()
        state["on"] = True
    if state["on"]:
        walk.add((name, code.co_qualname if hasattr(code, "co_qualname") else code.co_name))
def tell():
    files = collections.Counter(name for name, _ in walk)
    sys.stderr.write("WALK %d %d\\n" % (len(files), len(walk)))
    sys.stderr.write("".join("WALKED %3d %s\\n" % (count, name) for name, count in sorted(files.items())))
    sys.stderr.flush()
threading.setprofile(called)
sys.setprofile(called)
"""
RUN = """
from sapo_desktop.cli import run_command_line
code = run_command_line(sys.argv[1:])
if not MARK:
    tell()
sys.exit(code)
"""
KEY = """
import asyncio
from sapo_desktop.dashboard.app import SapoDashboard
def key_is_pressed_now():
    pass
key_is_pressed_now.__code__ = key_is_pressed_now.__code__.replace(co_filename="sapo_desktop/key.py")
from sapo_desktop.dashboard.feed import ControlFeed
from pathlib import Path
async def press():
    app = SapoDashboard(ControlFeed(Path(sys.argv[1])))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        key_is_pressed_now()
        await pilot.press("2")
        await pilot.pause()
        tell()
asyncio.run(press())
"""


def sources(checkout: Path) -> dict[str, Path]:
    """Path below its root -> file, of every module of the product."""
    return {
        path.relative_to(checkout / root).as_posix(): path
        for root in ROOTS
        for path in sorted((checkout / root).glob("sapo_*/**/*.py"))
        if "sapo_lab" not in path.parts
    }


def public_definitions(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """(name, is a class) of what a module defines at its top level without an underscore."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node.name, isinstance(node, ast.ClassDef)


def is_one_word(name: str) -> bool:
    """A search for it finds everything else too: `find`, `Story`."""
    return len(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)) == 1


def static_figures(checkout: Path) -> dict[str, object]:
    """What can be read off the sources."""
    files = sources(checkout)
    texts = {name: path.read_text("utf-8") for name, path in files.items()}
    lines = {name: len(text.splitlines()) for name, text in texts.items() if not name.endswith("__init__.py") or text}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    defined = {name: list(public_definitions(tree)) for name, tree in trees.items()}
    classes = Counter(label for names in defined.values() for label, is_class in names if is_class)
    figures: dict[str, object] = {
        "files": len(lines),
        "median lines": statistics.median(lines.values()),
        f"files under {CRUMB} lines": sum(count < CRUMB for count in lines.values()),
        "longest file": max(lines.values()),
    }
    for package, part in PRODUCT.items():
        inside = [name for name in lines if name.startswith(package)]
        names = [label for name in inside for label, _ in defined[name]]
        figures[f"lines of {part}"] = sum(lines[name] for name in inside)
        figures[f"one-word public names, {part}"] = _share(sum(map(is_one_word, names)), len(names))
    figures["lines, all"] = sum(lines.values())
    figures["class names used twice"] = _share(sum(n for n in classes.values() if n > 1), classes.total())
    imported = sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    figures["imports, share of lines"] = _share(imported, sum(lines.values()))
    figures["words of docs"] = _words(checkout, lambda page: "lab" not in page.parts)
    figures["words of lab reports"] = _words(checkout, lambda page: "lab" in page.parts)
    figures["dependencies"] = len(
        tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    )
    return figures


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.1f} %"


def _words(checkout: Path, wanted: object) -> int:
    pages = [*checkout.glob("*.md"), *(checkout / "docs").rglob("*.md")]
    assert callable(wanted)
    return sum(len(page.read_text("utf-8").split()) for page in pages if wanted(page.relative_to(checkout)))


def walk(checkout: Path, name: str) -> str:
    """Files and functions that a walk goes through, as "files / functions"; the end of what it printed where it failed."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "config").mkdir()
        (home / "config" / "config.toml").write_text(CALM, "utf-8")
        paths = os.pathsep.join(str(checkout / root) for root in ROOTS)
        environment = {**os.environ, "PYTHONPATH": paths, "SAPO_HOME": folder}
        if name == "swarm":
            return _swarm_walk(home, environment)
        if name == "key":
            return _traced("key", KEY, [str(home / "control.sock")], environment)
        if name == "csv":
            return _traced("", RUN, ["tasks", "new", str(_table(home)), "--name", "t", "--no-model"], environment)
        return _traced("round", RUN, ["node", "--silo", *QUIET], environment)


def _table(folder: Path) -> Path:
    path = folder / "support.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["message", "category"])
        for number in range(60):
            part = ("bill", "parcel", "router")[number % 3]
            writer.writerow([f"Message {number} about the {part}", {"b": "money", "p": "post", "r": "device"}[part[0]]])
    return path


def _traced(mark: str, body: str, arguments: list[str], environment: dict[str, str]) -> str:
    command = [sys.executable, "-c", TRACE.format(mark=mark) + body, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    return _walked(done.stderr)


def _walked(printed: str) -> str:
    if files := re.findall(r"^WALKED .*$", printed, re.MULTILINE):
        print("\n".join(files), file=sys.stderr)
    match = re.search(r"WALK (\d+) (\d+)", printed)
    return f"{match[1]} / {match[2]}" if match else f"failed: {printed.strip()[-300:]}"


def _swarm_walk(home: Path, environment: dict[str, str]) -> str:
    """The second round of a node beside another one, both on the fake engine, at a coordinator of their own."""
    cli = [sys.executable, "-m", "sapo_desktop"]
    homes = [home / name for name in ("host", "friend")]
    for each in homes:
        (each / "config").mkdir(parents=True)
        (each / "config" / "config.toml").write_text(CALM, "utf-8")
    at_host, at_friend = ({**environment, "SAPO_HOME": str(each)} for each in homes)
    host = subprocess.Popen([*cli, "coordinator", "--port=0"], env=at_host, stdout=subprocess.PIPE, text=True)
    friend = None
    try:
        invite = _invite(cli, at_host)
        join = ["node", f"--join={invite}", *(flag for flag in QUIET if not flag.startswith("--rounds"))]
        friend = subprocess.Popen([*cli, *join], env=at_friend, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(10)  # the friend's groups are there before the walk begins
        return _traced("round", RUN, [*join, "--rounds=4"], environment)
    finally:
        for process in filter(None, (friend, host)):
            process.terminate()
            process.wait(30)


def _invite(cli: list[str], environment: dict[str, str]) -> str:
    for _ in range(60):
        done = subprocess.run([*cli, "invite"], env=environment, capture_output=True, text=True, check=False)
        if match := re.search(r"sapo://\S+", done.stdout):
            return match[0]
        time.sleep(1)
    raise SystemExit(f"The coordinator gave no invite: {done.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path(__file__).resolve().parents[2]])
    parser.add_argument("--walks", default="", help=f"of {', '.join(WALKS)}; all (default: none)")
    parser.add_argument("--json", action="store_true", help="one object a checkout")
    options = parser.parse_args()
    chosen = WALKS if options.walks == "all" else tuple(filter(None, options.walks.split(",")))
    columns = []
    for checkout in options.checkouts:
        figures = static_figures(checkout.resolve())
        figures |= {f"walk: {name} (files / functions)": walk(checkout.resolve(), name) for name in chosen}
        columns.append(figures)
    if options.json:
        print("\n".join(map(json.dumps, columns)))
        return
    for figure in columns[0]:
        print(f"| {figure} | {' | '.join(str(column.get(figure, '')) for column in columns)} |")


if __name__ == "__main__":
    main()
