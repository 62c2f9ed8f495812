"""From a LoadRequest to a LlamaCppEngine: folder, GGUF file, precision, threads, and a first decode in a child process."""

from __future__ import annotations

import hashlib
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from sapo_backends.base import EngineInfo, LoadRequest, Progress
from sapo_backends.checkpoints.gguf_header import read_header
from sapo_backends.checkpoints.gguf_view import gguf_of
from sapo_backends.checkpoints.gguf_write import Kind, cached_gguf, context_length, read_spec
from sapo_backends.checkpoints.hub_cache import cache_folder
from sapo_backends.checkpoints.locate import resolve_model, weight_files
from sapo_backends.checkpoints.tokenizer import HfTokenizer
from sapo_backends.child_process import AnswerStream, ChildProcess, child_environment
from sapo_backends.common import hardware, round_memory
from sapo_backends.errors import BackendError, BackendUnavailable
from sapo_backends.llamacpp_backend.engine import LiveAdapter, LlamaCppEngine
from sapo_backends.llamacpp_backend.native import F16, F32, GgufModel

# One decode in a child process before llama.cpp is used in this process: if a kernel crashes, only the child dies.
#
# Known case: quantised weights with repacked buffers on processors with AMX (llama-cpp-python 0.3.36, gcc 12).

SECONDS = 120
"""Seconds after which the probe counts as hung."""
TOKENS, ROWS = 48, 3


def decode_once(path: str, threads: int) -> None:
    """Compute a prompt and one step of several rows, the shapes that generation uses."""
    from sapo_backends.llamacpp_backend.engine import prefill_prompt
    from sapo_backends.llamacpp_backend.native import LlamaContext

    AnswerStream()  # what the library prints goes to standard error: nobody reads the other stream
    model = GgufModel(Path(path))
    context = LlamaContext(model, 256, ROWS, 64, threads, F16)
    prefill_prompt(context, 0, [i % model.vocabulary for i in range(TOKENS)])
    for row in range(1, ROWS):
        context.share(0, row)
    context.decode([1] * ROWS, [TOKENS] * ROWS, range(ROWS), [True] * ROWS)
    context.close()
    model.close()


def _run(path: Path, threads: int) -> int | None:
    """Exit code of decode_once in a child process, None if it hangs."""
    call = f"from {__name__} import decode_once; import sys; decode_once(sys.argv[1], int(sys.argv[2]))"
    with ChildProcess([sys.executable, "-P", "-c", call, str(path), str(threads)], child_environment()) as child:
        return child.code if child.ends_within(SECONDS) else None


def require_working(path: Path, kind: str, architecture: str, threads: int, cache: Path) -> None:
    """Raise BackendUnavailable unless a decode succeeds; a success is remembered in `cache` for this machine and
    processor."""
    state = f"{version('llama-cpp-python')} {kind} {architecture} {hardware.processor_name()} {platform.node()}"
    marker = cache / f"probed-{hashlib.sha256(state.encode()).hexdigest()[:16]}"
    if marker.is_file() or getattr(sys, "frozen", False):  # a bundle's executable is the app and cannot run our code
        return
    code = _run(path, threads)
    if code != 0:
        how = "hangs" if code is None else f"crashes (code {code})"
        raise BackendUnavailable(
            f"llama.cpp {how} on this computer with {kind} weights.", "use --precision float16, or --trainer torch"
        )
    cache.mkdir(parents=True, exist_ok=True)
    marker.touch()


# From a LoadRequest to a LlamaCppEngine: folder, GGUF file, precision, threads.

KINDS: dict[str, Kind] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
QUANTISE_ABOVE = 200_000_000
"""precision "auto": bytes of the weight files above which 8-bit weights are read faster than 16-bit ones."""


def default_cache() -> Path:
    """The default folder for GGUF files."""
    return cache_folder() / "gguf"


def pick_kind(precision: str, folder: Path) -> Kind:
    """The GGUF type for a precision. Raises BackendError for an unknown one."""
    if precision == "auto":
        size = sum(file.stat().st_size for file in weight_files(folder))
        return "Q8_0" if size > QUANTISE_ABOVE else "F16"
    if precision not in KINDS:
        raise BackendError(f"There is no precision {precision!r}. Use auto, {', '.join(KINDS)}.")
    return KINDS[precision]


def load_engine(request: LoadRequest, cache: Path, progress: Progress | None = None) -> LlamaCppEngine:
    """Raises ModelNotFound, BackendUnavailable, BackendError, OutOfMemory."""
    if request.method == "full":
        raise BackendUnavailable("llama.cpp does not train.", "use --trainer llamacpp+torch")
    if request.device not in ("auto", "cpu"):
        raise BackendUnavailable(
            f"llama.cpp runs on the processor here, not on {request.device}.", "sapo-desktop node NAME --device auto"
        )
    folder = resolve_model(request.model, progress)
    spec = read_spec(folder)
    own = gguf_of(folder) if request.precision == "auto" else None
    round_memory.require_memory(sum(f.stat().st_size for f in weight_files(folder)), "Choose a smaller model.")
    threads = request.threads or hardware.default_threads()
    if own is None:
        kind: str = pick_kind(request.precision, folder)
        file = cached_gguf(folder, pick_kind(request.precision, folder), cache, progress)
    else:  # the person's own file, mapped and never copied
        file, kind = own, read_header(own).quantisation
    require_working(file, kind, spec.architecture, threads, default_cache())
    model = GgufModel(file)
    lora = request.method == "lora"
    adapter = LiveAdapter(spec, model, request.lora_rank, request.lora_alpha) if lora else None
    info = EngineInfo(
        backend="llamacpp",
        model=request.model,
        device="cpu",
        precision=kind.lower(),
        parameters=model.parameters,
        trainable=0,
        vocabulary=model.vocabulary,
        context_length=context_length(spec),
        method="lora" if lora else "none",
    )
    if progress is not None:
        progress(1.0, "loaded")
    return LlamaCppEngine(
        model, adapter, HfTokenizer(folder, request.thinking), info, threads, F32 if kind == "F32" else F16
    )
