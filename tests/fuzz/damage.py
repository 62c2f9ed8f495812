"""Every kind of file that a node or a coordinator reads, truncated or with one bit flipped, at so many places.

python tests/fuzz/damage.py [--places 200] [--seed N] [--only NAME]. A reader may raise only what a verb says in one sentence;
what it returns must be what was written, or less of it. The exit code is 1 where something else happened.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec
from tests.support.faults import scenarios as written
from tests.support.faults import single_files
from tests.support.records import finished
from tests.support.stores import NOW, SWARM, invite, member, round_of

from sapo_backends.base import LoadRequest
from sapo_backends.fake import FakeBackend
from sapo_desktop.errors import exit_code_of
from sapo_desktop.paths import Home
from sapo_desktop.services.models.recording import load_recording
from sapo_desktop.services.swarms import hosting
from sapo_swarm.coordinator.admin import export_swarm, import_swarm
from sapo_swarm.coordinator.store.sqlite import SQLiteStore
from sapo_swarm.node import aha_trail
from sapo_swarm.node.checkpoints import CheckpointInfo, CheckpointStore
from sapo_swarm.node.journal import Journal, check_journal, read_only
from sapo_swarm.node.resume_log import UpdateLog
from sapo_swarm.tasks.own.import_rows import read_table

PYARROW = importlib.util.find_spec("pyarrow") is not None
RECORDING = Path(__file__).resolve().parents[2] / "assets" / "sapo_assets" / "tour" / "swarm.jsonl"


@dataclass(frozen=True)
class Kind:
    """make(folder) writes whole files; read(folder) reads them as the app does, and raises AssertionError for what is wrong."""

    name: str
    make: Callable[[Path], None]
    read: Callable[[Path], object]


def journal_make(folder: Path) -> None:
    journal = Journal(folder / "journal.db")
    journal.append([finished(n) for n in range(40)])
    journal.close()


def journal_read(folder: Path) -> None:
    for look in (check_journal, read_only):
        try:
            look(folder / "journal.db")
        except Exception as error:
            require_a_sentence(error)


def checkpoints_make(folder: Path) -> None:
    engine = FakeBackend().load(LoadRequest(model="fake:0.002"))
    checkpoints = CheckpointStore(folder / "checkpoints", 2)
    for number in (1, 2):
        checkpoints.write(engine, CheckpointInfo(number, "time"))


def checkpoints_read(folder: Path) -> None:
    found, said = CheckpointStore(folder / "checkpoints", 2).newest_intact()
    assert found is not None, "one of the two is whole"
    assert found[1].rounds_done in (1, 2)
    assert found[1].rounds_done == 2 or said


def log_make(folder: Path) -> None:
    log = UpdateLog(folder)
    log.start(written.HEADER)
    for number in range(6):
        log.append(written.update(number))
    log.close()


def log_read(folder: Path) -> None:
    for number, found in enumerate(UpdateLog(folder).read(written.HEADER)):
        assert found == written.update(number), "what is read is what was written"


def store_make(folder: Path) -> None:
    written.store_work(folder, lambda call: call() is None, lambda _what: None)


def store_read(folder: Path) -> None:
    async def run() -> None:
        store = SQLiteStore(folder / "s.sqlite")
        await store.open()
        try:
            await store.stats(NOW, 10)
            await store.exchange(round_of("one", [9], want=4))
        finally:
            await store.close()

    asyncio.run(run())


def export_make(folder: Path) -> None:
    async def run() -> None:
        store = SQLiteStore(folder / "from.sqlite")
        await store.open()
        await store.found(SWARM)
        await store.add_invite(invite("h"))
        await store.admit(member("one", "h"), NOW)
        (folder / "export").write_bytes(await export_swarm(store))
        await store.close()

    asyncio.run(run())
    for path in folder.glob("from.*"):
        path.unlink()


def export_read(folder: Path) -> None:
    async def run() -> None:
        store = SQLiteStore(folder / "to.sqlite")
        await store.open()
        try:
            await import_swarm(store, (folder / "export").read_bytes())
        finally:
            await store.close()

    asyncio.run(run())


def recording_make(folder: Path) -> None:
    journal = [line for line in RECORDING.read_bytes().splitlines() if line.strip()]
    (folder / "r.jsonl").write_bytes(b"\n".join(journal[:60]) + b"\n")


def hosting_make(folder: Path) -> None:
    state = hosting.HostedCoordinator(pid=1, name="s", open=False, admin="x", born="1")
    (folder / "coordinator.json").write_bytes(msgspec.json.encode(state))


def hosting_read(folder: Path) -> None:
    hosting.find_coordinator(Home(folder, folder, folder, folder, folder))


def parquet_make(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    columns = {"question": [f"{n} + 1?" for n in range(99)], "answer": [str(n + 1) for n in range(99)]}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "rows.parquet")


def of(scenario: str, read: Callable[[Path], object], number: int = 3) -> Kind:
    """A file that a fault scenario writes too."""
    keep = {
        "phrases": single_files.keep_phrases,
        "in flight": single_files.keep_in_flight,
        "model.json": single_files.keep_record,
    }
    keep |= {
        "settings": single_files.keep_setting,
        "invite": single_files.keep_invite,
        "admin access": single_files.keep_access,
    }
    keep |= {"own task": single_files.keep_task}
    return Kind(scenario, lambda folder: keep[scenario](folder, number), read)


KINDS = (
    Kind("journal", journal_make, journal_read),
    Kind("checkpoints", checkpoints_make, checkpoints_read),
    Kind("update log", log_make, log_read),
    Kind("coordinator's store", store_make, store_read),
    Kind("exported swarm", export_make, export_read),
    Kind("recording", recording_make, lambda folder: load_recording(folder / "r.jsonl")),
    Kind("where a coordinator runs", hosting_make, hosting_read),
    Kind("node key", lambda folder: single_files.key_of(folder) and None, single_files.key_of),
    of("phrases", lambda folder: aha_trail.load_swarm_memory(folder)),
    of("in flight", single_files.kept_in_flight),
    of("model.json", single_files.kept_record),
    of("settings", single_files.kept_setting),
    of("invite", single_files.kept_invite),
    of("admin access", single_files.kept_access),
    of("own task", single_files.kept_task),
    *([Kind("Parquet table", parquet_make, lambda folder: read_table(folder / "rows.parquet"))] if PYARROW else []),
)


def require_a_sentence(error: Exception) -> None:
    """Raises what is no answer to a person."""
    said = str(error)
    if exit_code_of(error) is None or "\n" in said or not 10 <= len(said) <= 800:
        raise error


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Cut somewhere, or one bit flipped."""
    place = rng.randrange(max(1, len(data)))
    if rng.random() < 0.5 or not data:
        return data[:place]
    return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]


def findings(kind: Kind, places: int, seed: int) -> Iterator[str]:
    """A traceback for every place where something else than one sentence came of it."""
    rng = random.Random(f"{seed}/{kind.name}")
    with tempfile.TemporaryDirectory() as room:
        whole, work = Path(room) / "whole", Path(room) / "work"
        whole.mkdir()
        kind.make(whole)
        files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
        for _ in range(places):
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(whole, work)
            name = rng.choice(files)
            (work / name).write_bytes(damaged((whole / name).read_bytes(), rng))
            try:
                try:
                    kind.read(work)
                except Exception as error:
                    require_a_sentence(error)
            except Exception:
                yield f"{kind.name}, {name}: {traceback.format_exc()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--places", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    bad: Counter[str] = Counter()
    for kind in KINDS:
        if args.only in kind.name:
            for said in findings(kind, args.places, args.seed):
                bad[kind.name] += 1
                if bad[kind.name] <= 3:
                    print(said)
            print(f"{kind.name}: {args.places} places, {bad[kind.name]} findings", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
