"""Finished runs, small enough to be saved beside the report: a table can grow by seeds that ran elsewhere or long ago, and
anybody can check its figures after the journals (hundreds of megabytes) are gone.

TO/runs.msgpack.zst    settings and sapo_lab.report.results.RunResult of every run
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zstandard

from sapo_lab.report.results import Floats, RunResult
from sapo_lab.running.run import ResumeSettings, convert_settings, run_folder, settings_digest, settings_of
from sapo_lab.schema import BadExperiment, Experiment
from sapo_swarm.types import UNREADABLE
from sapo_swarm.whole_file import write_atomically

FILE = "runs.msgpack.zst"
ROUNDED = np.dtype("<f4")
"""For the values measured each round: seven digits."""
_LEVEL = 19


class SavedRun(msgspec.Struct, frozen=True):
    """One run: its settings, and what its journals said."""

    settings: ResumeSettings
    result: RunResult

    @property
    def key(self) -> tuple[str, int]:
        """(arm, seed)."""
        return self.settings.arm.name, self.settings.seed


class _Pack(msgspec.Struct, frozen=True):
    runs: tuple[SavedRun, ...]
    format: int = 1


def save_runs(found: Mapping[str, Sequence[RunResult]], out: Path, to: Path) -> list[Path]:
    """Add the finished runs whose journals are in `out` to the saved ones; returns the file if it changed.

    Raises BadExperiment if the saved file is damaged, OSError, msgspec.MsgspecError.
    """
    new: list[SavedRun] = []
    for run in (run for runs in found.values() for run in runs):
        folder = run_folder(out, run.arm, run.seed)
        if (folder / "done.json").exists() and run.last is not None:
            new.append(SavedRun(convert_settings(msgspec.json.decode((folder / "arm.json").read_bytes())), run))
    if not new:
        return []
    content = encode_saved_runs([*read_saved_runs(to), *new])
    path = to / FILE
    if path.exists() and path.read_bytes() == content:
        return []
    write_atomically(path, content)
    return [path]


def with_saved_runs(
    experiment: Experiment, found: Mapping[str, Sequence[RunResult]], to: Path
) -> dict[str, list[RunResult]]:
    """The runs from journals, and the saved runs that are not among them; by arm in the experiment's order, then by seed.

    A saved run takes precedence over an unfinished one. A run of this experiment whose arm is gone is left out: the setting
    that the arm was about no longer exists. Raises BadExperiment for a damaged file, and for a run of another experiment or of
    other settings.
    """
    arms = {arm.name for arm in experiment.arms}
    runs = {
        saved.key: _checked(saved, experiment, to)
        for saved in read_saved_runs(to)
        if saved.settings.arm.name in arms or saved.settings.experiment != experiment.name
    }
    runs |= {
        (run.arm, run.seed): run
        for some in found.values()
        for run in some
        if run.finished or (run.arm, run.seed) not in runs
    }
    names = [arm.name for arm in experiment.arms if any(name == arm.name for name, _ in runs)]
    return {name: [runs[key] for key in sorted(runs) if key[0] == name] for name in names}


def legacy_scoring_note(found: Mapping[str, Sequence[RunResult]]) -> str:
    """Which runs the library's rule judged, in a sentence; "" if all were judged exactly. A finished run without verdicts
    dates from when that was the only rule (decision 37)."""
    runs = {name: [run for run in some if run.last is not None and run.finished] for name, some in found.items()}
    old = {name: [run.seed for run in some if not run.verdicts] for name, some in runs.items()}
    if not any(old.values()):
        return ""
    arms = [f"{name} ({', '.join(map(str, seeds))})" for name, seeds in old.items() if seeds]
    whose = (
        f"The runs of {', '.join(arms)}"
        if any(run.verdicts for some in runs.values() for run in some)
        else "These runs"
    )
    return (
        f"{whose} were judged by the library's rule, which accepts some wrong values in decimal_arithmetic; new runs are "
        "judged exactly."
    )


def encode_saved_runs(runs: Iterable[SavedRun]) -> bytes:
    """The content of FILE: the last of runs with the same arm and seed, sorted, so that equal runs give equal bytes."""
    latest = {run.key: run for run in runs}
    pack = _Pack(tuple(latest[key] for key in sorted(latest)))
    return zstandard.ZstdCompressor(level=_LEVEL).compress(msgspec.msgpack.encode(pack, enc_hook=_bytes))


def read_saved_runs(to: Path) -> tuple[SavedRun, ...]:
    """All runs saved beside a report. Raises BadExperiment for a damaged file, OSError."""
    path = to / FILE
    if not path.exists():
        return ()
    try:
        content = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(path.read_bytes()))
        for saved in content["runs"]:
            saved["settings"] = msgspec.to_builtins(convert_settings(saved["settings"]))
        return msgspec.convert(content, _Pack, dec_hook=_array).runs
    except (OSError, zstandard.ZstdError, ValueError, LookupError, TypeError, AttributeError, *UNREADABLE) as error:
        raise BadExperiment(f"{path} holds no saved runs ({error}). Move it away, and run its rows again.") from error


def _checked(saved: SavedRun, experiment: Experiment, to: Path) -> RunResult:
    """The result; the device is not compared, everything else is."""
    arm = experiment.arm(saved.settings.arm.name)
    ran = msgspec.structs.replace(arm, run=msgspec.structs.replace(arm.run, device=saved.settings.arm.run.device))
    if settings_digest(saved.settings) != settings_digest(settings_of(experiment, ran, saved.settings.seed)):
        raise BadExperiment(
            f"{to}: {arm.name} with seed {saved.settings.seed} was run with other settings. Move {FILE} away, or report "
            "elsewhere with --to."
        )
    return saved.result


def _bytes(value: object) -> bytes:
    assert isinstance(value, np.ndarray)
    return value.astype(ROUNDED).tobytes()


def _array(_kind: type, value: Any) -> Floats:
    return np.frombuffer(value, ROUNDED).astype(np.float64)
