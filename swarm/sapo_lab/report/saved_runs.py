"""Finished runs, small enough to lie beside the report: a table grows by seeds that ran elsewhere or long ago, and anybody can
check its figures, when the journals (hundreds of megabytes) are gone.

TO/runs/<arm>-seed-1.msgpack.gz        settings and sapo_lab.report.results.RunResult of one run
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sapo_lab.report.results import Floats, RunResult
from sapo_lab.running.run import Settings, digest, run_folder, settings_of
from sapo_lab.schema import BadExperiment, Experiment

FOLDER = "runs"
ROUNDED = np.dtype("<f4")
"""Of what each round measured: seven digits."""


class SavedRun(msgspec.Struct, frozen=True):
    settings: Settings
    result: RunResult


def keep(found: Mapping[str, Sequence[RunResult]], out: Path, to: Path) -> list[Path]:
    """Write the finished runs whose journals are in out; gives the files that changed. Raises OSError, msgspec.MsgspecError."""
    written: list[Path] = []
    for run in (run for runs in found.values() for run in runs):
        folder = run_folder(out, run.arm, run.seed)
        if not (folder / "done.json").exists() or run.last is None:
            continue
        kept = SavedRun(msgspec.json.decode((folder / "arm.json").read_bytes(), type=Settings), run)
        path = to / FOLDER / f"{run.arm}-seed-{run.seed}.msgpack.gz"
        content = gzip.compress(msgspec.msgpack.encode(kept, enc_hook=_bytes), mtime=0)
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            partial.write_bytes(content)
            partial.replace(path)
            written.append(path)
    return written


def with_saved_runs(
    experiment: Experiment, found: Mapping[str, Sequence[RunResult]], to: Path
) -> dict[str, list[RunResult]]:
    """What was found in journals, and the kept runs that are not among them; by arm in the experiment's order, then by seed.

    A kept run counts before one that has not finished. Raises BadExperiment for a file that is none of this experiment's runs.
    """
    runs = {
        (run.arm, run.seed): run
        for path in sorted((to / FOLDER).glob("*.msgpack.gz"))
        for run in [_read(path, experiment)]
    }
    runs |= {
        (run.arm, run.seed): run
        for some in found.values()
        for run in some
        if run.finished or (run.arm, run.seed) not in runs
    }
    names = [arm.name for arm in experiment.arms if any(name == arm.name for name, _ in runs)]
    return {name: [runs[key] for key in sorted(runs) if key[0] == name] for name in names}


def _read(path: Path, experiment: Experiment) -> RunResult:
    try:
        kept = msgspec.msgpack.decode(gzip.decompress(path.read_bytes()), type=SavedRun, dec_hook=_array)
    except (OSError, EOFError, zlib.error, ValueError, msgspec.MsgspecError) as error:
        raise BadExperiment(f"{path} is no kept run ({error}). Move it away, and run that row again.") from error
    arm = experiment.arm(kept.settings.arm.name)
    ran = msgspec.structs.replace(arm, run=msgspec.structs.replace(arm.run, device=kept.settings.arm.run.device))
    if digest(kept.settings) != digest(settings_of(experiment, ran, kept.settings.seed)):
        raise BadExperiment(f"{path} was run with other settings. Move it away, or report elsewhere with --to.")
    return kept.result


def _bytes(value: object) -> bytes:
    assert isinstance(value, np.ndarray)
    return value.astype(ROUNDED).tobytes()


def _array(_kind: type, value: Any) -> Floats:
    return np.frombuffer(value, ROUNDED).astype(np.float64)
