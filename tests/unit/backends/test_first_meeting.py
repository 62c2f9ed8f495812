"""The check of a device that was never met before, on the processor, which stands for every other one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the torch engine is not installed")

from sapo_backends.base import BackendUnavailable  # noqa: E402
from sapo_backends.torch_backend import first_meeting, runtime  # noqa: E402
from sapo_backends.torch_backend.decode import session  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where there are no kernels compiled for the processor, and nothing is known yet."""
    monkeypatch.setattr("sapo_backends.torch_backend.paths.kernels", lambda: None)
    monkeypatch.setattr(runtime, "_FAILED", set())
    monkeypatch.setattr(runtime, "_FOUND", {})
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))


def broken(step: Callable[..., Any]) -> Callable[..., Any]:
    """A decode step whose logits are wrong."""
    return lambda *given: step(*given) * 1.5


@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_a_sound_device_passes_once_and_is_remembered(compute: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first_meeting.ensure(CPU, compute)
    monkeypatch.setattr(first_meeting, "meet", lambda *_: pytest.fail("it was met before"))
    first_meeting.ensure(CPU, compute)
    assert runtime.fallbacks() == {}


def test_a_path_that_computes_something_else_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, and, without another check, in the next."""

    def step(function: Callable[..., Any], tokens: Any) -> Callable[..., Any]:
        return function if runtime.is_left_out("torchscript") else broken(function)

    monkeypatch.setattr(session, "on_cpu", step)
    first_meeting.ensure(CPU, torch.float32)
    assert "computes sampling" in runtime.fallbacks()["torchscript"]
    assert not runtime.is_left_out("onednn")
    monkeypatch.setattr(runtime, "_FAILED", set())
    monkeypatch.setattr(first_meeting, "meet", lambda *_: pytest.fail("it was met before"))
    first_meeting.ensure(CPU, torch.float32)
    assert runtime.is_left_out("torchscript")


def test_a_device_that_computes_wrongly_whatever_the_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "on_cpu", lambda function, tokens: broken(function))
    for _ in range(2):  # and is not remembered as met
        with pytest.raises(BackendUnavailable, match=r"computes wrongly: sampling .*--device cpu"):
            first_meeting.ensure(CPU, torch.float32)
    assert not any(map(runtime.is_left_out, runtime.PATHS))


def test_a_damaged_record_is_no_record(tmp_path: Path) -> None:
    first_meeting.ensure(CPU, torch.float32)
    (record,) = tmp_path.rglob("met-*.json")
    record.write_text("{", encoding="utf-8")
    first_meeting.ensure(CPU, torch.float32)
    assert json.loads(record.read_text(encoding="utf-8")) == []
