"""From a LoadRequest to a LlamaCppEngine: folder, GGUF file, precision, threads."""

from __future__ import annotations

from pathlib import Path

from sapo_backends.base import BackendError, BackendUnavailable, EngineInfo, LoadRequest, Progress
from sapo_backends.cache_folder import cache_folder
from sapo_backends.checkpoints.gguf.forms import context_length
from sapo_backends.checkpoints.gguf.writer import Kind, cached_gguf, read_spec
from sapo_backends.checkpoints.gguf_base.header import read_header
from sapo_backends.checkpoints.gguf_base.view import gguf_of
from sapo_backends.checkpoints.locate import resolve, weight_files
from sapo_backends.checkpoints.tokenizer import HfTokenizer
from sapo_backends.common import hardware, round_memory
from sapo_backends.llamacpp_backend.engine import LlamaCppEngine
from sapo_backends.llamacpp_backend.live_adapter import LiveAdapter
from sapo_backends.llamacpp_backend.native import F16, F32, Model
from sapo_backends.llamacpp_backend.probe import require_working

KINDS: dict[str, Kind] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
QUANTISE_ABOVE = 200_000_000
"""precision "auto": bytes of the weight files above which 8 bits are read faster than 16."""


def default_cache() -> Path:
    """Where GGUF files are kept."""
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
    folder = resolve(request.model, progress)
    spec = read_spec(folder)
    own = gguf_of(folder) if request.precision == "auto" else None
    round_memory.require(sum(f.stat().st_size for f in weight_files(folder)), "Choose a smaller model.")
    threads = request.threads or hardware.default_threads()
    if own is None:
        kind: str = pick_kind(request.precision, folder)
        file = cached_gguf(folder, pick_kind(request.precision, folder), cache, progress)
    else:  # the person's own file, mapped and never copied
        file, kind = own, read_header(own).quantisation
    require_working(file, kind, spec.architecture, threads, default_cache())
    model = Model(file)
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
        progress(1.0, "ready")
    return LlamaCppEngine(
        model, adapter, HfTokenizer(folder, request.thinking), info, threads, F32 if kind == "F32" else F16
    )
