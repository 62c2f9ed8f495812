"""Unit tests of generated Python: what passes, what no trick makes pass, and what such code cannot reach."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.own_tasks import library_in, write_folder

from sapo_swarm.scoring.declared_verifiers import literal_value, same_value
from sapo_swarm.scoring.python_runner import PythonRunner
from sapo_swarm.scoring.scorer import ScoredTexts, Scorer, ScoringFailed
from sapo_swarm.scoring.verify import DeadlineExceeded
from sapo_swarm.tasks.catalogue import held_out
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import read_task
from sapo_swarm.tasks.own.spec import BadTask, unit_tests
from sapo_swarm.types import RewardRule

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="generated Python is only run where the kernel contains it"
)

TOML = 'extract = "whole"\n[[verifier]]\nkind = "python_tests"\n'
TESTS = "double(4) == 8\ndouble('ab') == 'abab'\nassert double([1]) == [1, 1]"
ROW = {"question": "Write double(x).", "answer": TESTS}
RIGHT = "def double(x):\n    return x + x"


@pytest.fixture
async def scorer(tmp_path: Path) -> AsyncIterator[Scorer]:
    """A scorer over one task, after the person's yes."""
    folder = tmp_path / "tasks"
    write_folder(folder / "t", TOML, [ROW], [ROW])
    with library_in(folder):
        library.allow_task_code(library.consent_bytes(read_task(folder / "t")))
        async with Scorer(margin_s=30.0) as started:
            yield started


async def rewards(scorer: Scorer, *texts: str, partial: bool = False) -> tuple[float, ...]:
    found = await scorer.score(held_out("t", "own", 0), texts, RewardRule(partial=partial))
    assert isinstance(found, ScoredTexts)
    return found.rewards


async def test_code_that_passes_all_tests_is_right_fenced_or_not(scorer: Scorer) -> None:
    fenced = f"Here it is:\n```python\n{RIGHT}\n```\nIt adds."
    wrong = "def double(x):\n    return 2 * x if isinstance(x, int) else x"
    assert await rewards(scorer, RIGHT, fenced, wrong, "no code at all (") == (1.0, 1.0, 0.0, 0.0)
    assert await rewards(scorer, wrong, partial=True) == (pytest.approx(1 / 3),)


async def test_an_answer_with_a_dataclass_passes_its_tests(scorer: Scorer) -> None:
    code = "from dataclasses import dataclass\n@dataclass\nclass Twice:\n    of: int = 2\n" + RIGHT
    assert await rewards(scorer, code, f"from __future__ import annotations\n{code}") == (1.0, 1.0)


async def test_code_between_fences_is_found_however_the_language_is_written(scorer: Scorer) -> None:
    crlf = f"```python\n{RIGHT}\n```".replace("\n", "\r\n")
    assert await rewards(scorer, f"```Python\n{RIGHT}\n```", f"```py3\n{RIGHT}\n```", crlf) == (1.0, 1.0, 1.0)


def test_a_deadline_amid_an_answer_leaves_nothing_of_it_to_the_next() -> None:
    """The worker's alarm may ring at any instruction; the reply on its way is read first."""
    (asked, requests), (replies, answers) = os.pipe(), os.pipe()
    length, worker = struct.Struct("<I"), threading.get_ident()

    def late(*_: object) -> None:
        raise DeadlineExceeded

    def starter() -> None:
        for said in (b'["first"]', b'["second"]'):
            os.read(asked, *length.unpack(os.read(asked, length.size)))
            if said == b'["first"]':
                signal.pthread_kill(worker, signal.SIGPROF)
            os.write(answers, length.pack(len(said)) + said)

    thread, runner = threading.Thread(target=starter), PythonRunner(requests, replies)
    before = signal.signal(signal.SIGPROF, late)
    thread.start()
    try:
        with pytest.raises(DeadlineExceeded):
            runner.values("", ["1"])
        assert runner.values("", ["1"]) == ["second"]
    finally:
        thread.join()
        signal.signal(signal.SIGPROF, before)
        for descriptor in (asked, requests, replies, answers):
            os.close(descriptor)


ATTACKS = {
    "leaves": "import os\nos._exit(0)",
    "exits": "raise SystemExit(0)",
    "forks": "import os\nos.fork()\n",
    "forks under another name": "import _posixsubprocess, os\nos.posix_spawn('/bin/true', ['true'], {})",
    "starts a program": "import subprocess\nsubprocess.run(['touch', '{canary}'])",
    "writes a file": "open('{canary}', 'w').write('x')",
    "reads the task": "text = open('{tasks}/t/heldout.jsonl').read()\ndef double(x):\n    return eval(text)",
    "opens a socket": "import socket\nsocket.create_connection(('127.0.0.1', 9))",
    "kills its parent": "import os\nos.kill(os.getppid(), 9)",
    "never ends": "while True: pass",
    "sleeps": "import time\ntime.sleep(60)",
    "takes memory": "x = bytearray(10**10)",
    "takes memory slowly": "x = []\nwhile True: x.append(bytearray(10**6))",
    "recurses": "def double(x):\n    return double(x)",
    "is always equal": "class E:\n    def __eq__(self, o): return True\n    __hash__ = None\ndef double(x): return E()",
    "patches built-ins": "import builtins\nbuiltins.repr = lambda v: '8'\nbuiltins.eval = lambda *a: 8\ndef double(x): return 0",
    "patches json": 'import json\njson.dumps = lambda v: \'["8", "", ""]\'\ndef double(x): return 0',
    "patches the checker": "import sys\nm = sys.modules['sapo_swarm.scoring.python_runner']\n"
    "m._write = m._read = None\ntry:\n    g = sys.modules['sapo_swarm.scoring.declared_verifiers']\n"
    "    g.same = lambda *a: True\nexcept KeyError:\n    pass\ndef double(x): return 0",
    "answers for the tests": 'import os\nos.write(3, b\'["True", "True", "True"]\')\nos._exit(0)',
    "says too much": "import os\nwhile True: os.write(3, b'x' * 65536)",
    "closes everything": "import os\nos.closerange(0, 4096)\ndef double(x): return x + x",
    "eats the alarm": "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: pass",
    "looks at the caller": "import sys\nf = sys._getframe(1)\ndef double(x): return f.f_locals.get('expected', 0)",
    "threads": "import threading\nthreading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()\nwhile True: pass",
    "deep answer": "def double(x):\n    y = []\n    for _ in range(100000): y = [y]\n    return y",
    "null byte": "x = 1\0",
    "surrogates": "x = '\ud800'",
}


async def test_no_trick_passes_and_the_next_answer_is_judged_as_ever(scorer: Scorer, tmp_path: Path) -> None:
    for name, attack in ATTACKS.items():
        canary = tmp_path / "canary"
        text = attack.replace("{canary}", str(canary)).replace("{tasks}", str(library.task_folder()))
        assert await rewards(scorer, text, RIGHT) == (0.0, 1.0), name
        assert not canary.exists(), name


READS = """
import os
assert open(os.__file__).read(1)
def double(x):
    for place in {places}:
        try:
            os.listdir(place) if os.path.isdir(place) else open(place).read()
        except OSError:
            continue
        return None
    return x + x
"""


async def test_an_answer_reads_neither_keys_nor_rows_where_the_current_folder_is_the_apps_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node runs in the data folder, and what started it may have put that, or the home, on the import path."""
    data = tmp_path / "home" / "data"
    write_folder(data / "tasks" / "t", TOML, [ROW], [ROW])
    (data / "identity").mkdir()
    (data / "identity" / "node.key").write_text("secret")
    monkeypatch.chdir(data)
    monkeypatch.syspath_prepend(str(data))
    monkeypatch.syspath_prepend(str(data.parent))
    secrets = ("identity/node.key", "tasks/t/train.jsonl", "tasks/t/heldout.jsonl", "tasks", "identity", "", "..")
    with library_in(data / "tasks"):
        library.allow_task_code(library.consent_bytes(read_task(data / "tasks" / "t")))
        async with Scorer(margin_s=30.0) as started:
            for secret in secrets:
                text = READS.replace("{places}", repr([str(data / secret)]))
                assert await rewards(started, text) == (1.0,), secret


async def test_nothing_of_the_worker_is_left_when_it_ends(tmp_path: Path) -> None:
    write_folder(tmp_path / "t", TOML, [ROW], [ROW])
    previous = library.task_folder()
    try:
        with library_in(tmp_path):
            library.allow_task_code(library.consent_bytes(read_task(tmp_path / "t")))
            async with Scorer(margin_s=30.0) as started:
                assert await rewards(started, RIGHT) == (1.0,)
                before = mine()
                assert len(before) >= 2, "the worker and the starter"
            await asyncio.to_thread(ended, before)
    finally:
        library.set_task_folder(previous)


def ended(processes: list[int]) -> None:
    """Wait for them to be gone; the test's own time-out bounds it."""
    while set(mine()) & set(processes):
        time.sleep(0.02)


def mine() -> list[int]:
    """Scorer workers whose environment names the task folder in force."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(library.task_folder()).encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


async def test_it_never_runs_before_a_yes_and_not_where_it_cannot_be_contained(tmp_path: Path) -> None:
    with library_in(tmp_path):
        async with Scorer(margin_s=30.0) as started:  # it started before there was such a task: it has no starter
            await started.questions([])
            write_folder(tmp_path / "t", TOML, [ROW], [ROW])
            with pytest.raises(BadTask, match="--allow-code"):
                library.load_task("t")
            library.allow_task_code(library.consent_bytes(read_task(tmp_path / "t")))
            assert library.load_task("t")
            ref = held_out("t", "own", 0)
            (found,) = await started.score_many([(ref, (RIGHT,))])
            if isinstance(found, ScoringFailed):
                assert "start the node anew" in found.reason
            else:
                assert found.rewards == (1.0,), "the worker starts with its first job"


@pytest.mark.parametrize("file", ["task.toml", "train.jsonl"])
def test_a_task_that_changed_since_the_yes_asks_again(tmp_path: Path, file: str) -> None:
    path = write_folder(tmp_path / "t", TOML, [ROW], [ROW]) / file
    with library_in(tmp_path):
        library.allow_task_code(library.consent_bytes(read_task(path.parent)))
        assert library.load_task("t")
        path.write_text(path.read_text("utf-8").replace("whole", "last_line").replace("double", "twice"), "utf-8")
        library.set_task_folder(tmp_path)
        with pytest.raises(BadTask, match="--allow-code"):
            library.load_task("t")


@pytest.mark.parametrize(
    ("cell", "word"),
    [
        ("double(4) = 8", "no Python"),
        ("double(4)", "no comparison"),
        ("double(4) > 8", "no comparison"),
        ("double(4) == other(4)", "plain value"),
        ("", "0 tests"),
        ("f(1) == 1\n" * 40, "40 tests"),
        ("f(1) == '" + "x" * 5000 + "'", "characters"),
        ("(" * 500, "no Python"),
    ],
)
def test_a_row_whose_tests_cannot_be_read_is_told_of(cell: str, word: str, tmp_path: Path) -> None:
    with pytest.raises(BadTask, match=word):
        unit_tests(cell)
    if cell:
        task = read_task(write_folder(tmp_path / "t", TOML, [ROW, {**ROW, "answer": cell}], [ROW]))
        assert any(line.startswith("train.jsonl: Row 2: ") and word in line for line in task.problems)


def values(leaves: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    )


EXACT: st.SearchStrategy[object] = st.none() | st.booleans() | st.integers() | st.text(max_size=8)


@given(values(EXACT | st.floats(allow_nan=False, allow_infinity=False)))
@settings(max_examples=100)
def test_a_value_is_the_same_as_itself_when_it_was_written_and_read(one: object) -> None:
    assert same_value(literal_value(repr(one)), one)
    assert not same_value(literal_value("Evil()"), one)


@given(values(EXACT), values(EXACT))
@settings(max_examples=100)
def test_a_value_is_the_same_as_no_other_value(one: object, other: object) -> None:
    assert same_value(one, other) == (
        repr(one) == repr(other) or (one == other and sorted(repr(one)) == sorted(repr(other)))
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (True, 1),
        ([1], (1,)),
        ("1", 1),
        ({1}, [1]),
        (1.0001, 1),
        ({True, 2}, {1, 2}),
        ({(0, True)}, {(0, 1)}),
        ({True: 1}, {1: 1}),
    ],
)
def test_values_of_other_kinds_are_not_the_same(one: object, other: object) -> None:
    assert not same_value(one, other)
