"""The check of a device that was never met before, on the processor, which stands for every other one too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the torch engine is not installed")

from sapo_backends.base import LoadRequest  # noqa: E402
from sapo_backends.errors import BackendUnavailable  # noqa: E402
from sapo_backends.torch_backend import (  # noqa: E402
    TorchBackend,
    decode_session,
    device_check,
    native,
    runtime,
)
from sapo_desktop.services.machine import doctor  # noqa: E402

CPU = torch.device("cpu")
LOAD_KERNELS = native.load_kernels


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where there are no kernels compiled for the processor, and nothing is known yet."""
    for module in ("native", "paths", "device_check"):
        monkeypatch.setattr(f"sapo_backends.torch_backend.{module}.load_kernels", lambda: None)
    monkeypatch.setattr(runtime, "_FAILED", set())
    monkeypatch.setattr(runtime, "_FOUND", {})
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))


def broken(step: Callable[..., Any]) -> Callable[..., Any]:
    """A decode step whose logits are wrong."""
    return lambda *given: step(*given) * 1.5


@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_a_sound_device_passes_once_and_is_remembered(compute: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        device_check.ensure_device_checked(CPU, compute)
        assert torch.get_num_threads() == threads + 1, "what another engine computes with"
    finally:
        torch.set_num_threads(threads)
    monkeypatch.setattr(device_check, "check_device", lambda *_: pytest.fail("it was met before"))
    device_check.ensure_device_checked(CPU, compute)
    assert runtime.list_fallbacks() == {}


def test_a_path_that_computes_something_else_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, and, without another check, in the next."""

    def step(function: Callable[..., Any], tokens: Any) -> Callable[..., Any]:
        return function if runtime.is_left_out("torchscript") else broken(function)

    monkeypatch.setattr(decode_session, "on_cpu", step)
    device_check.ensure_device_checked(CPU, torch.float32)
    assert "computes sampling" in runtime.list_fallbacks()["torchscript"]
    assert not runtime.is_left_out("onednn")
    monkeypatch.setattr(runtime, "_FAILED", set())
    monkeypatch.setattr(device_check, "check_device", lambda *_: pytest.fail("it was met before"))
    device_check.ensure_device_checked(CPU, torch.float32)
    assert runtime.is_left_out("torchscript")


def test_a_device_that_computes_wrongly_whatever_the_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_session, "on_cpu", lambda function, tokens: broken(function))
    for _ in range(2):  # and is not remembered as met
        with pytest.raises(BackendUnavailable, match="computes wrongly: sampling"):
            device_check.ensure_device_checked(CPU, torch.float32)
    assert not any(map(runtime.is_left_out, runtime.PATHS))


def test_the_doctor_tells_of_a_processor_that_computes_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_session, "on_cpu", lambda function, tokens: broken(function))
    (found,) = doctor._fallbacks()
    assert (found.verdict, found.what) == ("fail", "torch")
    assert "computes wrongly: sampling" in found.text

    def step(function: Callable[..., Any], tokens: Any) -> Callable[..., Any]:
        return function if runtime.is_left_out("torchscript") else broken(function)

    monkeypatch.setattr(decode_session, "on_cpu", step)
    for _ in range(2):  # what is remembered is told, too
        (found,) = doctor._fallbacks()
        assert (found.verdict, found.what) == ("note", "torch")
        assert "slower than it could be: TorchScript cannot be used here" in found.text
        monkeypatch.setattr(runtime, "_FAILED", set())
        monkeypatch.setattr(runtime, "_FOUND", {})


def test_a_damaged_record_is_no_record(tmp_path: Path) -> None:
    device_check.ensure_device_checked(CPU, torch.float32)
    (record,) = tmp_path.rglob("met-*.json")
    record.write_text("{", encoding="utf-8")
    device_check.ensure_device_checked(CPU, torch.float32)
    assert json.loads(record.read_text(encoding="utf-8")) == []


def test_a_home_that_takes_no_record_takes_a_model_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "file"))
    device_check.ensure_device_checked(CPU, torch.float32)


def computed_by(precision: str = "float32") -> str:
    engine = TorchBackend().load(LoadRequest("starter-1m", precision=precision, device="cpu", threads=1))
    engine.close()
    return engine.info.extra["computed_by"]


def test_the_first_model_on_a_processor_checks_it_and_the_next_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[Any] = []
    meet = device_check.check_device

    def counted(*given: Any) -> device_check.DeviceCheckResult:
        met.append(given)
        return meet(*given)

    monkeypatch.setattr(device_check, "check_device", counted)
    for precision in ("float32", "bfloat16", "float32", "bfloat16"):
        computed_by(precision)
    assert met == [(CPU, torch.float32), (CPU, torch.bfloat16)]


def test_c_kernels_that_compute_something_else_than_float64_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process; and the record is for these kernels: others are met anew."""
    monkeypatch.delenv("SAPO_HOME")
    if LOAD_KERNELS() is None:
        pytest.skip("no C compiler")
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    for module in ("native", "paths", "device_check"):
        monkeypatch.setattr(f"sapo_backends.torch_backend.{module}.load_kernels", LOAD_KERNELS)
    assert computed_by() == "own decoder, compiled C kernels"
    (record,) = tmp_path.rglob("met-*.json")
    record.unlink()
    sample = native.NativeKernels.sample

    def wrong(self: native.NativeKernels, *given: Any) -> tuple[Any, Any]:
        tokens, logprobs = sample(self, *given)
        return tokens, logprobs * 1.1

    monkeypatch.setattr(native.NativeKernels, "sample", wrong)
    assert computed_by() == "own decoder, TorchScript"
    assert "computes sampling" in runtime.list_fallbacks()["native"]
    assert json.loads(record.read_text(encoding="utf-8")) == ["native"]


def test_a_check_without_some_paths_says_nothing_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[Any] = []
    monkeypatch.setattr(
        device_check, "check_device", lambda *given: met.append(given) or device_check.DeviceCheckResult("")
    )
    with runtime.without_paths("torchscript"):
        device_check.ensure_device_checked(CPU, torch.float32)
    device_check.ensure_device_checked(CPU, torch.float32)
    device_check.ensure_device_checked(CPU, torch.float32)
    assert len(met) == 2
