"""Every field of a model's JSON files, of its weights' header and of GGUF files, changed: `models show` of each.

python tests/fuzz/model_files.py [--mutations 300] [--seed N] [--only FILE]. Each must end within 20 s and 2 GB, with an exit code
of the app's own and one sentence, or with the card. One in ten goes through a command line of its own, the rest through a fork
(see shown_models); of the GGUF files that were shown an engine loads a sample. The exit code is 1 where something else happened;
the figures are printed.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz.gguf_mutations import ATTACKS, attack_gguf, mutate_gguf
from tests.fuzz.shown_models import COMMAND, ENGINE, FORK, Outcome, load_by_fork, prepare, show_by_command, show_by_fork
from tests.support.gguf_files import whole_model

SOURCE = Path(__file__).resolve().parents[2] / "assets" / "sapo_assets" / "models" / "starter-1m"
JSON_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
WEIGHTS = "model.safetensors"
GGUF = "gguf"
FAMILIES = ("qwen2", "llama", "gemma3", "phi3")
FOR_REAL = (
    "one in another's place",
    "an end below 0",
    "kinds of no kind",
    "a million merges",
    "a template that repeats",
)
"""Attacks on the header of a real file, too."""
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 3, 10**9, 2**31, 2**63, 10**30, -(10**30), 0.5, -1.5, 1e308, float("inf"), float("nan"), "", "x",
    "\x1b[2J\nFROM evil", "\ud800", "a" * 100_000, [], [[]], [None] * 1000, {}, {"x": {"y": []}}, [1e9] * 3, "1e9",
    "{{ 'x'.center(3000000000) }}", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
)  # fmt: skip
"""What a field becomes."""


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


class Models:
    """Changed models, one after another: every attack on every kind of GGUF file once, the rest at random.

    The real file counts by its header alone: its weights are zeros that take no room on the disk.
    """

    def __init__(self, rng: random.Random, only: str, real: Path | None) -> None:
        self._rng, self._only = rng, only
        self._gguf = {family: whole_model(family) for family in FAMILIES}
        if real is not None:
            self._gguf[real.stem] = real.read_bytes()
        self._attacks = [(name, family) for name in ATTACKS for family in FAMILIES]
        self._attacks += [(name, real.stem) for name in ATTACKS if real is not None and name in FOR_REAL]
        rng.shuffle(self._attacks)
        self._count = 0

    def next(self, place: Path) -> tuple[str, Path]:
        """(what was changed, the file or folder)."""
        self._count += 1
        chosen = self._only or (GGUF if self._count % 5 < 3 else (*JSON_FILES, WEIGHTS)[self._count // 5 % 5])
        if chosen != GGUF:
            folder = model_copy(place / "model")
            mutate(folder, chosen, self._rng)
            return chosen, folder
        file = place / "model.gguf"
        if self._attacks and self._rng.random() < 0.4:
            name, family = self._attacks.pop()
            attack_gguf(file, self._gguf[family], name)
            return f"{GGUF} {family} attack: {name}", file
        family = self._rng.choices([*self._gguf], [24 if name in FAMILIES else 4 for name in self._gguf])[0]
        return f"{GGUF} {family} {mutate_gguf(file, self._gguf[family], self._rng)}", file


def real_gguf() -> Path | None:
    """SmolLM2 where it was fetched before (see packaging/real_models.py)."""
    file = Path.home() / ".cache" / "sapo-real-models" / "SmolLM2-135M-Instruct-Q4_1.gguf"
    return file if file.is_file() else None


class Tally:
    """What came of all of them."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, int]] = Counter()
        self.wrong: list[str] = []
        self.seconds, self.memory = 0.0, 0

    def add(self, what: str, outcome: Outcome) -> None:
        """One more; printed at once where it is wrong."""
        kind = " ".join(word for word in what.partition(" attack")[0].split()[:1])
        self.counts[outcome.way, kind, outcome.code] += 1
        self.seconds, self.memory = max(self.seconds, outcome.seconds), max(self.memory, outcome.memory)
        if outcome.wrong:
            self.wrong.append(what)
            print(f"{what}, {outcome.way}: {outcome.wrong}", flush=True)

    def lines(self) -> list[str]:
        """For the end."""
        lines = []
        for way in (COMMAND, FORK, ENGINE):
            here = {key: count for key, count in self.counts.items() if key[0] == way}
            codes = ", ".join(f"{kind} {code}: {count}" for (_, kind, code), count in sorted(here.items()))
            lines.append(f"{way}: {sum(here.values())} ({codes})")
        return [*lines, f"{len(self.wrong)} wrong; slowest {self.seconds:.1f} s, most {self.memory / 1e9:.2f} GB"]


def main() -> int:
    """Run so many mutations; 1 where one ended in another way than it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=(*JSON_FILES, WEIGHTS, GGUF), default="")
    parser.add_argument("--every", type=int, default=10, help="one in so many goes through a command line of its own")
    parser.add_argument(
        "--loads", type=int, default=100, help="so many of the GGUF files that are shown are loaded, too"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="begin none after so long")
    parser.add_argument("--keep", type=Path, help="a folder for the models that were handled wrongly")
    given = parser.parse_args()
    rng, tally = random.Random(given.seed), Tally()
    models = Models(rng, given.only, real_gguf())
    with tempfile.TemporaryDirectory() as scratch:
        home, shown = Path(scratch) / "home", Path(scratch) / "shown"  # one home for all: the machine is measured once
        shown.mkdir()
        good = shown.parent / "good.gguf"
        good.write_bytes(whole_model())
        prepare(good, home)
        until = time.monotonic() + 60 * given.minutes
        for number in range(given.mutations):
            if time.monotonic() > until:
                break
            place = Path(scratch) / "now"
            place.mkdir()
            what, model = models.next(place)
            outcome = show_by_command(model, home) if number % given.every == 0 else show_by_fork(model)
            tally.add(what, outcome)
            if outcome.wrong and given.keep:
                shutil.copytree(place, given.keep / f"{number}", dirs_exist_ok=True)
            if model.suffix == ".gguf" and outcome.code == 0 and model.stat().st_size < 5_000_000:
                model.rename(shown / f"{number} {what.replace(' ', '_').replace('/', '')}.gguf")
            shutil.rmtree(place)
        accepted = sorted(shown.iterdir())
        if accepted and given.loads:
            load_by_fork(good)  # compiles its kernels, once
        for file in rng.sample(accepted, min(given.loads, len(accepted))):
            tally.add(f"{GGUF} {file.stem}", load_by_fork(file))
            if tally.wrong and tally.wrong[-1].endswith(file.stem) and given.keep:
                shutil.copy(file, given.keep)
    print("\n".join([*tally.lines(), f"GGUF files that were shown: {len(accepted)}"]))
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
