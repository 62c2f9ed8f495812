"""The one place where the torch engine chooses what computes a model, and that falling back is never silent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="the torch engine is not installed")

from sapo_assets import model_path  # noqa: E402
from sapo_backends.base import LoadRequest  # noqa: E402
from sapo_backends.checkpoints.spec import decoder_spec  # noqa: E402
from sapo_backends.checkpoints.tokenizer import read_json  # noqa: E402
from sapo_backends.errors import OutOfMemory  # noqa: E402
from sapo_backends.torch_backend import TorchBackend, engine, native, paths, runtime  # noqa: E402
from sapo_backends.torch_backend.generation import drops_rows  # noqa: E402
from sapo_backends.torch_backend.runtime import free_memory  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing fell back yet, and what was found out about this machine is found out again."""
    monkeypatch.setattr(runtime, "_FOUND", {})
    native.checked_kernels.cache_clear()
    runtime.packing_works.cache_clear()
    yield
    native.checked_kernels.cache_clear()
    runtime.packing_works.cache_clear()


def choose(dtype: torch.dtype, parameters: int = 10**6, device: torch.device = CPU) -> paths.ComputePaths:
    spec = decoder_spec(read_json(model_path("starter-1m") / "config.json"))
    return paths.choose_paths(spec, device, dtype, parameters)


def test_small_float32_models_are_computed_by_the_compiled_kernels() -> None:
    assert str(choose(torch.float32)) == "own decoder, compiled C kernels"


@pytest.mark.parametrize(("dtype", "parameters"), [(torch.float32, 10**9), (torch.bfloat16, 10**6)])
def test_others_are_computed_by_torch(dtype: torch.dtype, parameters: int) -> None:
    """In bfloat16, the kernels compute attention beside packed weights where the processor has bfloat16 products."""
    found = choose(dtype, parameters)
    assert found.kernels is None
    beside = dtype == torch.bfloat16 and runtime.packs_bfloat16()
    assert (found.attention is not None) == beside
    assert str(found).startswith(f"own decoder, {'compiled C kernels beside' if beside else 'TorchScript'}")


def test_what_an_engine_computes_with_is_told() -> None:
    engine = TorchBackend().load(LoadRequest("starter-1m", precision="float32", device="cpu", threads=1))
    assert engine.info.extra["computed_by"] == "own decoder, compiled C kernels"
    engine.close()


def test_kernels_that_do_not_compile_are_noted_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise subprocess.CalledProcessError(1, ["cc"])

    monkeypatch.setattr(native, "compile_library", broken)
    assert choose(torch.float32).kernels is None
    native.checked_kernels.cache_clear()
    assert choose(torch.float32).kernels is None
    assert len(caplog.records) == 1
    assert "compiled C kernels cannot be used here" in caplog.text
    assert paths.check_fast_paths().keys() == {"native"}


def test_private_functions_that_a_torch_lacks_are_noted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What a later version of torch may do: leave a private function out."""

    class Without:
        @staticmethod
        def _is_mkldnn_bf16_supported() -> bool:
            return True

    monkeypatch.setattr(torch.ops, "mkldnn", Without())
    assert choose(torch.bfloat16).layout == "as stored"
    assert "oneDNN's packed bfloat16 weights cannot be used here" in caplog.text


def test_functions_that_torchscript_does_not_compile_run_as_they_are_and_are_noted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def generator(x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield x

    assert runtime.script_function(generator) is generator
    assert "TorchScript cannot be used here (generator: " in caplog.text


def test_paths_can_be_left_out_on_purpose_without_a_warning() -> None:
    """SAPO_WITHOUT is read once, so in a process of its own."""
    program = (
        "import os; os.environ['SAPO_WITHOUT'] = 'native,torchscript,onednn'\n"
        "from sapo_backends.torch_backend import paths\n"
        "from sapo_backends.torch_backend.native import load_kernels\n"
        "from sapo_backends.torch_backend import runtime\n"
        "print(load_kernels(), runtime.packs_bfloat16(), runtime.torchscript_works(), paths.check_fast_paths())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("None False False {}", "")


def test_paths_that_were_used_before_can_be_left_out_and_taken_again() -> None:
    def seen() -> tuple[bool, str, bool]:
        return choose(torch.float32).kernels is not None, choose(torch.bfloat16).layout, runtime.torchscript_works()

    before = seen()
    with runtime.without_paths("native", "onednn", "torchscript"):
        assert seen() == (False, "as stored", False)
    assert seen() == before
    assert before[2]


def test_a_gpu_whose_memory_ran_out_says_what_it_has_free_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 << 30, 8 << 30))
    with pytest.raises(OutOfMemory, match=r"3\.22 GB is free"), engine._memory(torch.device("cuda:0"), "Use less."):
        raise torch.OutOfMemoryError
    assert free_memory(torch.device("cpu")) not in (0, 3 << 30)


@pytest.mark.parametrize(("device", "copies"), [("cpu", 11), ("cuda", 5)])
def test_rows_that_end_one_by_one_are_dropped_less_often_where_each_time_is_a_new_capture(
    device: str, copies: int
) -> None:
    rows, done = 64, 0
    for living in range(rows - 1, 0, -1):
        if drops_rows(living, rows, torch.device(device)):
            rows, done = living, done + 1
    assert done == copies
