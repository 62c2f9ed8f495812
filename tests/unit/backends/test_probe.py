"""Measuring an engine and the machine, and comparing the two."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from sapo_backends.base import LoadRequest
from sapo_backends.common.round_memory import ModelSize
from sapo_backends.measure import machine_limits, probe
from sapo_backends.measure.choice import WIDTHS, EngineCandidate
from sapo_backends.measure.machine_limits import MachineLimits, most_generated, most_trained

SIZE = ModelSize(1000, 1000, 2, 8, 16, 8, 10, tied=False)
LIMITS = MachineLimits({"float32": 1e6, "bfloat16": 4e6}, read=1e5)


def test_an_engine_is_measured_at_every_width_and_in_training() -> None:
    one = probe.measure_candidate(EngineCandidate("fake"), LoadRequest(model="fake"), seconds=0.2)
    assert set(one.generation) == set(WIDTHS)
    assert min(one.generation.values()) > 0
    assert min(one.first, one.update, one.memory) > 0
    assert (one.hand_over, one.failure) == (0.0, "")


def test_an_engine_that_takes_a_while_is_measured_as_slow_as_it_is() -> None:
    """The imitation sleeps 10 ms a step: at most 100 steps a second at every width."""
    one = probe.measure_candidate(EngineCandidate("fake"), LoadRequest(model="fake:0.01"), seconds=0.2)
    assert all(rate <= 100 * width for width, rate in one.generation.items())
    assert one.generation[64] > one.generation[8] > one.generation[1]


def test_what_only_generates_has_no_training_rate() -> None:
    one = probe.measure_candidate(EngineCandidate("fake"), LoadRequest(model="fake", method="none"), seconds=0.1)
    assert one.update == 0.0


def test_the_limit_of_one_row_is_reading_and_of_many_is_multiplying() -> None:
    """1000 weights, 920 of them multiplied: 40 ms to read in float32, 1.84 ms to multiply with a row."""
    assert most_generated(SIZE, 1, LIMITS, "float32") == pytest.approx(1 / (4000 / 1e5))
    assert most_generated(SIZE, 64, LIMITS, "float32") == pytest.approx(1e6 / (2 * 920))
    assert most_generated(SIZE, 1, LIMITS, "bfloat16") == pytest.approx(1 / (2000 / 1e5))


def test_the_limit_of_training_is_six_products_a_weight_or_four_with_an_adapter() -> None:
    assert most_trained(SIZE, LIMITS, "float32") == pytest.approx(1e6 / (6 * 920))
    adapter = ModelSize(1000, 10, 2, 8, 16, 8, 10)
    assert most_trained(adapter, LIMITS, "bfloat16") == pytest.approx(4e6 / (4 * 1000))


def test_what_was_not_measured_has_no_limit() -> None:
    assert most_generated(SIZE, 8, LIMITS, "float16") == 0.0
    assert most_generated(SIZE, 8, MachineLimits({"float32": 1e6}), "float32") == 0.0
    assert most_trained(SIZE, MachineLimits(), "float32") == 0.0


def test_the_machine_multiplies_and_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """By NumPy, which is always there, with little patience."""
    monkeypatch.setattr(machine_limits, "REPEAT_S", 0.01)
    monkeypatch.setattr(machine_limits, "LARGEST", 256)
    monkeypatch.setattr(machine_limits, "READ_BYTES", 1 << 22)
    found = machine_limits.measure_limits("numpy", 1)
    assert found.multiply["float32"] > 0
    assert found.read > 0


def test_a_machine_that_is_busy_while_it_is_measured_is_not_taken_for_a_slow_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every second product is interrupted for a second; the others run at 1e11 FLOP/s."""
    now, runs = [0.0], itertools.count()
    monkeypatch.setattr(machine_limits, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def product(edge: int) -> Callable[[], None]:
        def work() -> None:
            now[0] += 2 * edge**3 / 1e11 + next(runs) % 2

        return work

    assert machine_limits._multiply(product, lambda: now[0]) == pytest.approx(1e11)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the wall clock counts")
def test_what_others_compute_meanwhile_leaves_the_limits_of_a_processor_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine where everything takes fifty times as long on the clock, in the same seconds of the processor."""
    pytest.importorskip("torch", reason="the torch engine is not installed")
    monkeypatch.setattr(machine_limits, "LARGEST", 256)
    monkeypatch.setattr(machine_limits, "READ_BYTES", 1 << 22)
    quiet = machine_limits.measure_limits("torch", 1, "cpu")
    slow = SimpleNamespace(perf_counter=lambda: 50 * time.perf_counter(), thread_time=time.thread_time)
    monkeypatch.setattr(machine_limits, "time", slow)
    busy = machine_limits.measure_limits("torch", 1, "cpu")
    assert busy.multiply["float32"] > quiet.multiply["float32"] / 5
    assert busy.read > quiet.read / 5


def test_a_gpu_says_in_a_process_of_its_own_what_it_has_free(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="the torch engine is not installed")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 << 30, (8 << 30) + device.index))
    for capability, compute_bytes in ((7, 4), (8, 2)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device, major=capability: (major, 0))
        told = {"free": 3 << 30, "total": (8 << 30) + 1, "compute_bytes": compute_bytes}
        assert probe._answered({"card": "cuda:1"}) == {"card": told}


def test_a_gpu_that_is_not_there_has_no_memory() -> None:
    pytest.importorskip("torch", reason="the torch engine is not installed")
    assert probe.card_memory_in_child("cuda:7") is None
