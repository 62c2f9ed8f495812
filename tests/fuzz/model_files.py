"""Every field of a model's JSON files and of its weights' header, changed, through the command line: `models show FOLDER`.

python tests/fuzz/model_files.py [--mutations 300] [--seed N] [--only FILE]. Each must end within 20 s and 2 GB, with an exit code
of the app's own and one sentence, or with the card. The exit code is 1 where something else happened; the figures are printed.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "assets" / "sapo_assets" / "models" / "starter-1m"
JSON_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
WEIGHTS = "model.safetensors"
SECONDS, MEMORY = 20.0, 2_000_000_000
CODES = (0, 1, 2, 3, 4)
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 3, 10**9, 2**31, 2**63, 10**30, -(10**30), 0.5, -1.5, 1e308, float("inf"), float("nan"), "", "x",
    "\x1b[2J\nFROM evil", "\ud800", "a" * 100_000, [], [[]], [None] * 1000, {}, {"x": {"y": []}}, [1e9] * 3, "1e9",
    "{{ 'x'.center(3000000000) }}", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
)  # fmt: skip
"""What a field becomes."""


@dataclass(frozen=True)
class Outcome:
    """What the command line did with a damaged folder. wrong: what it should not have done, "" for nothing."""

    code: int
    seconds: float
    memory: int
    wrong: str


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the fields of a JSON value are, those in long lists at their ends only."""
    if path:
        yield path
    if isinstance(value, dict):
        keys = list(value)
        for key in keys if len(keys) <= 200 else (*keys[:3], *keys[-3:]):
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(len(value)) if len(value) <= 8 else (0, 1, len(value) // 2, len(value) - 1):
            yield from places(value[index], (*path, index))


def mutated(data: Any, rng: random.Random) -> Any:
    """One field is another value, gone, or there in another form."""
    data = copy.deepcopy(data)
    path = rng.choice(list(places(data)))
    parent = data
    for step in path[:-1]:
        parent = parent[step]
    kind = rng.random()
    old = parent[path[-1]]
    if kind < 0.15:
        del parent[path[-1]]
    elif kind < 0.3 and isinstance(old, (int, float)) and not isinstance(old, bool):
        parent[path[-1]] = old * rng.choice((-1, 2, 1000, 10**6, 10**12)) + rng.choice((-1, 0, 1))
    elif kind < 0.4:
        parent[path[-1]] = [old, old] if rng.random() < 0.5 else {"content": old}
    else:
        parent[path[-1]] = rng.choice(VALUES)
    return data


def header_of(file: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a file of weights, and what lies behind it."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def mutate(folder: Path, name: str, rng: random.Random) -> None:
    """Change one field, or now and then the bytes, of one of the folder's files."""
    file = folder / name
    if rng.random() < 0.1:
        data = bytearray(file.read_bytes())
        place = rng.randrange(min(len(data), 4096))
        if rng.random() < 0.5:
            del data[place:]
        else:
            data[place] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
    elif name == WEIGHTS:
        header, rest = header_of(file)
        content = json.dumps(mutated(header, rng)).encode()
        length = len(content) if rng.random() < 0.8 else rng.choice((0, 1, 2**31, 2**63, len(content) + 1))
        file.write_bytes(length.to_bytes(8, "little") + content + rest)
    else:
        file.write_text(json.dumps(mutated(json.loads(file.read_text(encoding="utf-8")), rng)), encoding="utf-8")


def model_copy(folder: Path) -> Path:
    """A model like the starter whose tokenizer is not the bundled one's, so that a child reads it."""
    shutil.copytree(SOURCE, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "fuzzed": True}), encoding="utf-8")
    return folder


def sentence_wrong(code: int, output: str, errors: str) -> str:
    """What is wrong with what a command said."""
    if code not in CODES:
        return f"exit code {code}"
    if "Traceback" in errors or "panicked" in errors:
        return "a traceback"
    lines = [line for line in errors.splitlines() if line.strip()]
    if code and (len(lines) != 1 or not 10 <= len(lines[0]) <= 1000):
        return f"{len(lines)} lines of errors"
    if "\x1b[2J" in output + errors:
        return "what a terminal obeys"
    return ""


def show(folder: Path, home: Path) -> Outcome:
    """`models show` of the folder, in a process of its own, with what it and its children took."""
    environment = {**os.environ, "SAPO_HOME": str(home), "NO_COLOR": "1"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "sapo_desktop", "models", "show", str(folder)],
            stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment,
        )  # fmt: skip
        peak, ended = peak_until_end(process, start + 3 * SECONDS)
        seconds = time.monotonic() - start
        out.seek(0)
        err.seek(0)
        output, errors = (file.read().decode("utf-8", "replace") for file in (out, err))
    wrong = sentence_wrong(process.returncode, output, errors) if ended else "no end"
    if seconds > SECONDS:
        wrong = wrong or f"{seconds:.0f} s"
    if peak > MEMORY:
        wrong = wrong or f"{peak / 1e9:.1f} GB"
    return Outcome(process.returncode, seconds, peak, f"{wrong}: {errors[-1500:]}" if wrong else "")


def peak_until_end(process: subprocess.Popen[bytes], until: float) -> tuple[int, bool]:
    """The most memory that the process and its children held together, and whether it ended by itself."""
    import psutil

    peak = 0
    while process.poll() is None:
        try:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            peak = max(peak, sum(member.memory_info().rss for member in family))
        except psutil.Error:
            pass
        if time.monotonic() > until:
            process.kill()
            process.wait()
            return peak, False
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    return peak, True


def main() -> int:
    """Run so many mutations; 1 where one ended in another way than it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=(*JSON_FILES, WEIGHTS), default="")
    given = parser.parse_args()
    rng = random.Random(given.seed)
    codes: Counter[str] = Counter()
    wrong, seconds, memory = [], 0.0, 0
    home = Path(tempfile.mkdtemp())  # one for all: the machine is measured once
    for number in range(given.mutations):
        name = given.only or (*JSON_FILES, WEIGHTS)[number % 5]
        with tempfile.TemporaryDirectory() as place:
            folder = model_copy(Path(place) / "model")
            mutate(folder, name, rng)
            outcome = show(folder, home)
            codes[f"{name} {outcome.code}"] += 1
            seconds, memory = max(seconds, outcome.seconds), max(memory, outcome.memory)
            if outcome.wrong:
                wrong.append(outcome)
                print(f"{number} {name}: {outcome.wrong}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    print(f"{given.mutations} mutations, {len(wrong)} wrong; slowest {seconds:.1f} s, most {memory / 1e9:.2f} GB")
    print(", ".join(f"{name}: {count}" for name, count in sorted(codes.items())))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
