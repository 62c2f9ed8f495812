"""Trials of bases that were made before, on disk: a model's first run does not repeat what `tasks new` or another run has
measured under the same conditions.

One JSON file per trial, named by a hash of everything that decides it: the weights, the version of each task, what decides an
answer and its verdict, and the versions of the packages. A changed table or model, or an update, has another name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sapo_swarm.config import RunConfig
from sapo_swarm.events import TrialMeasured
from sapo_swarm.node.checkpoints import package_versions
from sapo_swarm.tasks.catalogue import generator_of, new_tokens, preset_of
from sapo_swarm.types import UNREADABLE
from sapo_swarm.whole_file import write_atomically

KEPT = 64
"""Trials on disk; the oldest beyond that are deleted."""


@dataclass(frozen=True)
class StoredTrials:
    """folder: of the files, made when needed. model_id: identifies the base's weights, read from its files; raises what
    reading them raises. version: of the app, whose wording of the questions counts."""

    folder: Path
    model_id: Callable[[], str]
    version: str

    def find(self, config: RunConfig, swarm: str) -> TrialMeasured | None:
        """The counts of such a trial, if one was made; `time` says when. Takes some file reads. Raises UnknownTask, BadTask."""
        try:
            counts = msgspec.json.decode(self._file(config, swarm).read_bytes(), type=TrialMeasured)
        except (OSError, *UNREADABLE):
            return None
        return counts if counts.questions else None

    def store(self, config: RunConfig, swarm: str, counts: TrialMeasured, now: float) -> None:
        """Store a trial, made at `now` (Unix seconds). A disk that refuses costs another trial, and nothing else. Raises
        UnknownTask, BadTask."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            dated = msgspec.structs.replace(counts, time=now)
            write_atomically(self._file(config, swarm), msgspec.json.encode(dated))
            files = sorted(self.folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
            for file in files[:-KEPT]:
                file.unlink(missing_ok=True)
        except OSError:
            return

    def _file(self, config: RunConfig, swarm: str) -> Path:
        """Raises OSError if the model's files cannot be read."""
        return self.folder / f"{trial_key(config, swarm, self.model_id(), self.version)}.json"


def trial_key(config: RunConfig, swarm: str, model_id: str, version: str) -> str:
    """Equal for trials of which one stands for the other. Precision is taken as it is set: what "auto" becomes on this
    machine is no reason to try a base twice. Raises UnknownTask, BadTask."""
    tasks = [
        (task, preset_of(task, config.preset), generator_of(task, swarm), new_tokens(config, task))
        for task in config.tasks
    ]
    conditions = {
        "model": model_id,
        "tasks": sorted(tasks),
        "temperature": config.temperature,
        "group_size": config.group_size,
        "answer_format": config.answer_format,
        "thinking": "on" if config.thinking == "on" else "off",
        "judge": config.judge_model,
        "engine": [config.trainer, config.precision, config.method],
        "versions": [version, sorted(package_versions(config.trainer).items())],
    }
    return hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:32]
