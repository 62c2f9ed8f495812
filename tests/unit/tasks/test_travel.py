"""A task as canonical bytes: one version however the folder was written, and nothing but a task on the other side."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import resource
import time
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hostile_tasks import HOSTILE
from tests.support.own_tasks import library_in, sums, task_of, write_folder

from sapo_swarm.protocol.wire import TaskOffer, TaskUpload, build_task_upload, decompress_body, unpack_task
from sapo_swarm.tasks.own import folder as travel
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import HEADER, build_task, read_task, write_task
from sapo_swarm.tasks.own.import_rows import RowTable
from sapo_swarm.tasks.own.spec import (
    BadTask,
    EnvironmentVerifier,
    ExactVerifier,
    FunctionVerifier,
    JsonSchema,
    NumberVerifier,
    PythonTests,
    RegexVerifier,
    SqlVerifier,
    TaskSpec,
)

READ_S = 10.0
MEMORY = 600 * 2**20
CELLS = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Cf", "Zl", "Zp"), exclude_characters="\ufffd"), min_size=1
)


@given(
    rows=st.lists(st.tuples(CELLS.filter(str.strip), CELLS.filter(str.strip)), min_size=1, max_size=8),
    dress=st.integers(0, 2**16),
)
def test_equal_content_has_one_version_whatever_line_ends_key_order_and_byte_order_mark(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], dress: int
) -> None:
    chance = random.Random(dress)
    folders = [tmp_path_factory.mktemp(name) / "same" for name in ("plain", "dressed")]
    for place, folder in enumerate(folders):
        folder.mkdir()
        for name in ("train.jsonl", "heldout.jsonl"):
            lines = []
            for question, answer in rows:
                row = [("question", question), ("answer", answer)]
                if place:
                    chance.shuffle(row)
                blank = "\n" * chance.randrange(2) if place else ""
                lines.append(json.dumps(dict(row), ensure_ascii=bool(place)) + ("\r\n" if place else "\n") + blank)
            mark = b"\xef\xbb\xbf" if place and chance.random() < 0.5 else b""
            (folder / name).write_bytes(mark + "".join(lines).encode())
        toml = ['name = "same"', 'prompt = "{question}"', 'description = "a"']
        text = ("\r\n" if place else "\n").join(chance.sample(toml, 3) if place else toml)
        (folder / "task.toml").write_bytes(text.encode())
    plain, dressed = map(read_task, folders)
    assert plain.digest == dressed.digest
    assert travel.task_to_bytes(plain, True) == travel.task_to_bytes(dressed, True)


@given(
    rows=st.lists(st.tuples(CELLS.filter(str.strip), CELLS.filter(str.strip)), min_size=1, max_size=5),
    held_out=st.booleans(),
)
def test_what_arrives_is_what_left_and_its_hash_is_the_tasks_version(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], held_out: bool
) -> None:
    records = [{"question": question, "answer": answer} for question, answer in rows]
    task = read_task(write_folder(tmp_path_factory.mktemp("t") / "mine", 'licence = "CC0"\n', records, records))
    upload = build_task_upload(task, held_out)
    arrived = unpack_task(upload.offer, upload.packed)
    assert arrived.digest == upload.offer.hash == (task.digest if held_out else task.train_digest)
    assert hashlib.sha256(travel.task_to_bytes(task, held_out)).hexdigest() == upload.offer.hash
    assert (arrived.spec, arrived.train) == (task.spec, task.train)
    assert arrived.held_out == (task.held_out if held_out else ())
    again = tmp_path_factory.mktemp("again") / "mine"
    write_task(arrived, again)
    assert read_task(again, need_held_out=held_out).digest == arrived.digest


def test_a_schema_and_a_fixture_travel_too_and_held_out_rows_only_when_the_host_says_so() -> None:
    task = task_of(JsonSchema(), schema={"type": "object"})
    assert unpack_task(*_both(build_task_upload(task, False))).schema == {"type": "object"}
    query = task_of(SqlVerifier(), row={"question": "q", "answer": "select 1"}, fixture=b"SQLite")
    assert unpack_task(*_both(build_task_upload(query, True))).fixture == b"SQLite"
    secret = task_of(NumberVerifier(), row={"question": "secret question", "answer": "1"})
    assert travel.task_to_bytes(secret, True).count(b"secret question") == 2
    assert travel.task_to_bytes(secret, False).count(b"secret question") == 1


def _both(upload: TaskUpload) -> tuple[TaskOffer, bytes]:
    return upload.offer, upload.packed


def test_nothing_that_runs_travels(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "mine", '[[verifier]]\nkind = "function"\n', [{"question": "q"}], [{"question": "p"}]
    )
    (folder / "reward.py").write_text("def reward(completions, **_):\n    return [1.0]\n")
    with pytest.raises(BadTask, match="nothing that runs is sent"):
        build_task_upload(read_task(folder), False)
    for kind in ("function", "environment", "python_tests"):
        with pytest.raises(BadTask, match="never comes from a swarm"):
            travel.task_from_bytes(_bytes(spec=json.dumps({"verifier": [{"kind": kind}]}).encode()), "mine")
    with pytest.raises(BadTask, match="parts that this version does not know"):
        travel.task_from_bytes(_bytes() + b"code 1\nx", "mine")
    for part in (FunctionVerifier(), EnvironmentVerifier(), PythonTests()):
        with pytest.raises(BadTask, match="nothing that runs"):
            build_task_upload(task_of(part, row={"question": "Double a number.", "answer": "double(4) == 8"}), False)


def _bytes(
    spec: bytes = b"{}", train: bytes = b'{"answer":"1","question":"q"}', heldout: bytes = b"", **_: bytes
) -> bytes:
    parts = {"spec": spec, "train": train, "heldout": heldout, "schema": b"", "fixture": b""}
    return HEADER + b"".join(f"{name} {len(part)}\n".encode() + part for name, part in parts.items())


def test_these_bytes_are_a_task() -> None:
    assert travel.task_from_bytes(_bytes(), "mine").train == ({"answer": "1", "question": "q"},)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        HEADER,
        HEADER + b"spec 99999999999\n{}",
        HEADER + b"spec 00002\n{}",
        HEADER + b"spec -1\n{}",
        HEADER + b"train 2\n{}",
        _bytes(spec=b"[]"),
        _bytes(spec=b'{"name":"other"}'),
        _bytes(spec=b"[" * 60_000),
        _bytes(spec=b'{"prompt":"no column"}'),
        _bytes(spec=b'{"extract":"tags"}'),
        _bytes(train=b""),
        _bytes(train=b'{"question":"q","answer":"1"}'),
        _bytes(train=b'{"answer":"1","question":"q"}\n'),
        _bytes(train=b'{"answer":1,"question":"q"}'),
        _bytes(train=b'{"answer":"1","more":"x","question":"q"}'),
        _bytes(train=b'[{"answer":"1","question":"q"}]'),
        _bytes(train=b'{"answer":"1","question":"\xff"}'),
        _bytes(train=b'{"answer":"1","question":"\x1b[2J"}'),
        _bytes(heldout=b"{}"),
        _bytes(train=b'\xef\xbb\xbf{"answer":"1","question":"q"}'),
    ],
    ids=range(21),
)
def test_bytes_that_are_not_canonical_are_refused_in_a_sentence(data: bytes) -> None:
    with pytest.raises(BadTask) as refused:
        travel.task_from_bytes(data, "mine")
    assert 15 < len(str(refused.value)) < 600


REGEX = b'{"verifier":[{"kind":"regex"}]}'
WIDE = "(?i)" + "[a-\uffff]" * 5
HEAVY: dict[str, bytes] = {
    "classes of all letters": REGEX,
    "more classes than a pattern may have": REGEX,
    "short patterns": REGEX,
    "a schema": b'{"verifier":[{"kind":"json_schema"}]}',
}


@pytest.mark.parametrize("name", HEAVY)
def test_a_task_whose_patterns_take_hours_to_compile_is_refused_at_once_in_a_sentence(name: str) -> None:
    """Looking at a task compiles its patterns: a few kilobytes of them stood the viewer still for over an hour."""
    pattern = {"more classes than a pattern may have": f"{WIDE}{WIDE[4:] * 9}", "short patterns": "a"}.get(name, WIDE)
    rows = [{"answer": f"{pattern}{n}", "question": f"q{n}"} for n in range(10_900 if len(pattern) > 1 else 30_000)]
    train = "\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows).encode()
    schema = json.dumps({"patternProperties": {f"{WIDE}{n}": True for n in range(800)}}).encode()
    data = _bytes(spec=HEAVY[name], train=train)
    if name == "a schema":
        data = _bytes(spec=HEAVY[name]).replace(b"schema 0\n", f"schema {len(schema)}\n".encode() + schema)
    began = time.process_time()
    with pytest.raises(BadTask, match="hold too many characters" if len(pattern) > 100 else "all that are checked"):
        travel.task_from_bytes(data, "mine")
    assert time.process_time() - began < READ_S


def test_equal_patterns_are_checked_once_and_honest_ones_are_many() -> None:
    rows = [{"question": f"q{n}", "answer": f"(?i)[A-Z]{{3}}-{n}|no\\."} for n in range(4000)]
    table = RowTable(rows=rows * 3, numbers=[*range(1, 12_001)])
    assert not build_task(TaskSpec(name="t", verifier=(RegexVerifier(),)), table, table).problems


@given(data=st.data())
def test_a_task_with_a_changed_byte_is_refused(data: st.DataObject) -> None:
    """In its canonical bytes; in the frame around them a byte may mean nothing, then the task is what it was."""
    upload = build_task_upload(task_of(ExactVerifier(case=True), row={"question": "Which?", "answer": "This."}), True)
    raw, body = bytearray(decompress_body(upload.packed)), bytearray(upload.packed)
    for changed in (raw, body):
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadTask, match="its hash is another one"):
        unpack_task(upload.offer, zstandard.compress(bytes(raw)))
    with contextlib.suppress(BadTask):
        assert unpack_task(upload.offer, bytes(body)).digest == upload.offer.hash


@given(junk=st.binary(max_size=400))
def test_any_other_bytes_are_refused(junk: bytes) -> None:
    offer = build_task_upload(task_of(ExactVerifier()), True).offer
    with pytest.raises(BadTask):
        unpack_task(offer, junk)
    with pytest.raises(BadTask):
        travel.task_from_bytes(HEADER + junk, "mine")


def test_a_task_with_the_name_of_one_of_the_apps_is_refused(tmp_path: Path) -> None:
    task = read_task(sums(tmp_path / "basic_arithmetic"))
    upload = build_task_upload(task, False)
    with pytest.raises(BadTask, match="must rename it"):
        unpack_task(upload.offer, upload.packed)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(HOSTILE)), ids=[str(name)[:60] for name in HOSTILE])
def test_a_hostile_folder_does_no_harm_on_its_way_through_a_swarm(number: int, tmp_path: Path) -> None:
    """What the reader of folders lets pass is text within its bounds; it comes out as the same text, in bounded time and room."""
    name = f"hostile_{number}"
    list(HOSTILE.values())[number](tmp_path / name)
    began, used = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with library_in(tmp_path):
        with contextlib.suppress(BadTask, KeyError):
            task = library.load_task(name)
            upload = build_task_upload(task, True)
            assert unpack_task(upload.offer, upload.packed).digest == task.digest
        raw = {
            part: (tmp_path / name / file).read_bytes()[: 2**23]
            for part, file in _RAW.items()
            if _plain(tmp_path / name / file)
        }
        with pytest.raises(BadTask):  # a host that sends the files as they lie, without reading them first
            travel.task_from_bytes(_bytes(**raw), name)
    assert time.process_time() - began < READ_S
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used) * 1024 < MEMORY


_RAW = {"train": "train.jsonl", "heldout": "heldout.jsonl"}


def _plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size < 2**26
