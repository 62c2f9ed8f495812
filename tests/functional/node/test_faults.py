"""Faults in the style of the databases: writes that fail or are cut once, and files that lie damaged on the disk.

A sample of each, by a fixed seed; everything: `python tests/benchmarks/faults.py` and `python tests/fuzz/damage.py`.
"""

from __future__ import annotations

import os
import shutil
import sys

import pytest
from tests.benchmarks.faults import faults
from tests.fuzz import damage

TRIALS, PLACES = 8, 25
NO_COMPILER = "The shim that lets writes fail needs a C compiler. Fix: apt-get install gcc"


@pytest.mark.skipif(sys.platform != "linux", reason="the shim is preloaded, and finds files through /proc")
def test_a_write_that_fails_or_is_cut_loses_nothing_promised_and_says_one_sentence() -> None:
    """Journal, update log, checkpoints, records, settings, invites, keys, tasks, the coordinator's store: every write, fsync,
    rename and creation may meet a full disk, an I/O error, half of itself, or a kill."""
    if shutil.which("cc") is None:
        if os.environ.get("CI") == "true":
            pytest.fail(NO_COMPILER)
        pytest.skip(NO_COMPILER)
    said, findings = faults(TRIALS, seed=1)
    assert findings == 0, said


@pytest.mark.parametrize("kind", damage.KINDS, ids=lambda kind: kind.name)
def test_a_damaged_file_is_one_sentence_or_less_of_what_it_held(kind: damage.Kind) -> None:
    """Truncated, or one bit flipped: never a traceback, never something that was not written."""
    assert list(damage.findings(kind, PLACES, seed=1)) == []
