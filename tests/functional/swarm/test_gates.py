"""The coordinator's gates in their quick form; the full figures: python tests/benchmarks/bench_coordinator.py."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

GATES = Path(__file__).parents[2] / "benchmarks" / "coordinator_gates"


@pytest.fixture(autouse=True)
def gates_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gates are scripts: they import one another by name. Their coordinators run in child processes."""
    monkeypatch.syspath_prepend(str(GATES))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


def store_or_skip(store: str) -> str:
    """A missing redis-server is a failure under CI, else a skip with a sentence."""
    if store == "redis" and not (shutil.which("redis-server") or shutil.which("valkey-server")):
        sentence = "redis-server is not installed. Fix: apt-get install redis-server"
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)
    return store


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_rounds_are_served_without_errors(store: str) -> None:
    """Gate 1 without its demands on speed."""
    import load

    gate = load.run(True, store_or_skip(store))
    assert gate.passed, gate


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_no_acknowledged_group_is_lost_by_kill_9(store: str) -> None:
    """Gate 2, two kills of twenty."""
    import crash

    gate = crash.run(True, store_or_skip(store))
    assert gate.passed, gate


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_no_forged_or_replayed_request_is_accepted(store: str) -> None:
    """Gate 3, three hundred of ten thousand."""
    import forgery

    gate = forgery.run(True, store_or_skip(store))
    assert gate.passed, gate


def test_bombs_and_slow_clients_cost_little() -> None:
    """Gate 4, a second of thirty."""
    import bombs

    gate = bombs.run(True, "sqlite")
    assert gate.passed, gate


def test_fuzzed_requests_and_replies_raise_nothing() -> None:
    """Gate 5, four hundred requests of twenty thousand."""
    import fuzz

    gate = fuzz.run(True, "sqlite")
    assert gate.passed, gate


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_draws_are_uniform_and_nothing_scans(store: str) -> None:
    """Gate 6, forty thousand draws of a million."""
    import sampling

    gate = sampling.run(True, store_or_skip(store))
    assert gate.passed, gate


def test_hostile_groups_are_rejected_or_capped() -> None:
    """Gate 7, a small swarm."""
    import poison

    gate = poison.run(True, "sqlite")
    assert gate.passed, gate


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_a_flooder_gets_no_more_than_its_share(store: str) -> None:
    """Gate 8, ten counted rounds of a hundred nodes."""
    import sampling

    gate = sampling.run_flood(True, store_or_skip(store))
    assert gate.passed, gate
