"""The models on this computer as bases: what LM Studio, Ollama, llama.cpp, the hub's cache and Downloads hold, and which fit this
machine.

Each file's header gives its quantisation, architecture and size; no weights are read. Places are scanned in parallel, in
threads that are given SECONDS: a network disk that does not answer loses its own models, not the screen.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from sapo_backends.checkpoints import hub_cache, local_models, locate
from sapo_backends.checkpoints.gguf_header import GgufHeader, read_header
from sapo_backends.checkpoints.gguf_write import FORMS
from sapo_backends.checkpoints.local_models import LocalModel, LocalModelSearch
from sapo_backends.checkpoints.tokenizer import read_json
from sapo_backends.common.round_memory import ModelSize
from sapo_backends.errors import BackendError, size_text
from sapo_backends.measure.precision import model_size, size_from_widths
from sapo_desktop.services.machine import load_request, memory_plan
from sapo_desktop.services.machine.memory_plan import MemoryPlan
from sapo_swarm.config import RunConfig
from sapo_swarm.protocol.safe_text import safe_text

SECONDS = 2.0
"""How long a person waits for the list; models not inspected by then are listed without figures."""
FRESH_S = 20.0
"""A list younger than this is reused."""
SEEN_LANGUAGE = 100_000_000
"""Parameters below which a model is a toy that writes stories at best."""
Fit = Literal["fits", "tight", "too large", ""]
"""tight: smaller rounds fit. "": unknown, for an engine that decides while loading."""
_SUPPORTED = frozenset(form.name for form in FORMS.values())
_ENCODERS = frozenset(
    [
        "bert",
        "nomic-bert",
        "nomic-bert-moe",
        "jina-bert-v2",
        "jina-bert-v3",
        "neo-bert",
        "modern-bert",
        "t5encoder",
        "clip",
    ]
)
"""llama.cpp architectures that do not predict a next token."""
_PLANS = threading.Lock()
"""Only one thread queries a GPU's memory, in a process that imports torch."""


@dataclass(frozen=True, slots=True)
class LocalBase:
    """A model on this computer. reason: why it cannot be trained, "" where it can. plan: memory of its rounds, None where
    unknown."""

    model: LocalModel
    quantisation: str = ""
    architecture: str = ""
    parameters: int = 0
    reason: str = ""
    plan: MemoryPlan | None = None

    @property
    def base(self) -> str:
        """What `--base` takes."""
        return self.model.base

    @property
    def fit(self) -> Fit:
        """Whether its rounds fit this machine's memory."""
        if self.plan is None or self.reason:
            return ""
        return "fits" if self.plan.fits else "tight" if self.plan.smaller is not None else "too large"

    @property
    def short(self) -> str:
        """One line for a list, the most important word first."""
        if self.reason:
            return safe_text(f"cannot be trained: {self.reason}", 160, lines=False)
        parts = [self.fit, size_text(self.model.bytes), self.quantisation, self.model.title]
        return safe_text(", ".join(filter(None, parts)), 160, lines=False)


@dataclass(frozen=True, slots=True)
class LocalBaseListing:
    """bases: trainable ones first, smallest first. notes: what could not be scanned. left_out: models of other kinds (for
    images, for vectors). whole: the scan is complete."""

    bases: tuple[LocalBase, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: int = 0
    whole: bool = True

    @property
    def trainable(self) -> tuple[LocalBase, ...]:
        """The models that training can start from."""
        return tuple(base for base in self.bases if not base.reason)

    @property
    def recommended(self) -> tuple[LocalBase, ...]:
        """Those to try a table on: their rounds fit, and they have seen enough language. Smallest first."""
        return tuple(base for base in self.trainable if base.fit == "fits" and base.parameters >= SEEN_LANGUAGE)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What a person should know besides the list."""
        kinds = f"{self.left_out} more {'is' if self.left_out == 1 else 'are'} not listed: made for pictures, vectors or a cloud."
        return (*(safe_text(note, 300, lines=False) for note in self.notes), *([kinds] if self.left_out else []))


@dataclass
class _Looking:
    """One scan, running or finished. known: what was found about each file so far, None where it is not a model that writes
    text."""

    began: float
    seen: LocalModelSearch
    threads: list[threading.Thread] = field(default_factory=list)
    known: dict[Path, LocalBase | None] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def busy(self) -> bool:
        """Whether a thread is still running."""
        return any(thread.is_alive() for thread in self.threads)

    def listing(self) -> LocalBaseListing:
        """The results so far."""
        busy = self.busy
        with self.lock:
            known = dict(self.known)
        models = local_models.each_once(list(self.seen.models))
        bases = [
            LocalBase(model) if model.path not in known else replace(detail, model=model)
            for model in models
            if (detail := known.get(model.path, LocalBase(model))) is not None
        ]
        notes = list(self.seen.notes)
        if busy:
            notes.append("Looking takes longer than usual: more may be here. Look again in a moment.")
        left_out = self.seen.left_out + len(models) - len(bases)
        return LocalBaseListing(tuple(sorted(bases, key=_order)), tuple(notes), left_out, not busy)


def _order(one: LocalBase) -> tuple[bool, bool, int, str]:
    return bool(one.reason), one.fit == "too large", one.model.bytes, one.base


_last: dict[tuple[str, ...], _Looking] = {}
_starting = threading.Lock()


def scan_local_bases(config: RunConfig, seconds: float = SECONDS, fresh: bool = False) -> LocalBaseListing:
    """The models on this computer, scanned for at most `seconds`. fresh: do not reuse a recent list. Blocks for that long."""
    looking = _looking(config, seconds, fresh)
    until = time.monotonic() + seconds
    for thread in looking.threads:
        thread.join(max(0.0, until - time.monotonic()))
    return looking.listing()


def _looking(config: RunConfig, seconds: float, fresh: bool) -> _Looking:
    """The running or recent scan of the same places for the same kind of run; else a new one."""
    folders = (*local_models.ollama_folders(), *local_models.lm_studio_folders(), *local_models.llama_cpp_folders())
    key = (*map(str, folders), str(hub_cache.hub_cache_folder()), msgspec.json.encode(config).decode())
    with _starting:
        last = _last.get(key)
        if last is not None and (last.busy or (not fresh and time.monotonic() - last.began < FRESH_S)):
            return last
        now = time.monotonic()
        looking = _Looking(now, LocalModelSearch(deadline=now + 30 * seconds))
        for place in local_models.LOOKS:
            work = threading.Thread(target=_look_at, args=(place, config, looking), name=f"look-{place}", daemon=True)
            looking.threads.append(work)
            work.start()
        _last.clear()
        _last[key] = looking
        return looking


def _look_at(place: str, config: RunConfig, looking: _Looking) -> None:
    """List a place, then open each of its models; an error about one is reported with that one."""
    try:
        local_models.LOOKS[place](looking.seen)
    except OSError as error:
        looking.seen.note(f"{local_models.TITLES[place]}: cannot be looked at ({error.strerror or error}).")
    for model in [candidate for candidate in list(looking.seen.models) if candidate.place == place]:
        if time.monotonic() > looking.seen.deadline:
            return
        detail = inspect_local_model(model, config)
        with looking.lock:
            looking.known[model.path] = detail


# One model


def inspect_local_model(model: LocalModel, config: RunConfig) -> LocalBase | None:
    """A model's figures, from its header or its config; None where it does not write text."""
    if model.blocked:
        return LocalBase(model, reason=model.blocked)
    try:
        if model.path.is_dir():
            return _of_folder(model, config)
        about = model.path.stat()
        header = _header(model.path, about.st_size, about.st_mtime_ns)
    except (BackendError, OSError) as error:
        return LocalBase(model, reason=_short(str(error), model.path))
    return None if _other_kind(header) else _of_file(model, header, config)


def _of_file(model: LocalModel, header: GgufHeader, config: RunConfig) -> LocalBase:
    """A model in a GGUF file."""
    base = LocalBase(model, header.quantisation, header.architecture, header.parameters, _why_not(model, header))
    if base.reason:
        return base

    def size(run: RunConfig) -> ModelSize:
        return size_from_widths(
            header.parameters, _widths(header), load_request.build_load_request(run), tied=_is_tied(header)
        )[0]

    return replace(base, plan=_plan(config, size))


def _of_folder(model: LocalModel, config: RunConfig) -> LocalBase:
    """A Hugging Face folder of the hub's cache."""
    locate.validate_model_folder(model.path)
    settings = read_json(model.path / "config.json")
    architectures = settings.get("architectures")
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    kind = str(settings.get("dtype") or settings.get("torch_dtype") or "")
    request = load_request.build_load_request(config)
    parameters = model_size(model.path, request)[0].parameters
    plan = _plan(config, lambda run: model_size(model.path, load_request.build_load_request(run))[0])
    return LocalBase(model, kind, architecture, parameters, plan=plan)


@lru_cache(maxsize=4 * local_models.MODELS)
def _header(path: Path, _size: int, _changed: int) -> GgufHeader:
    """A file that did not change is opened once."""
    return read_header(path)


def _other_kind(header: GgufHeader) -> bool:
    """Whether it is an adapter, an image projector, an importance matrix, or an embedding model."""
    kind = header.text("general.type")
    pooled = header.number(f"{header.architecture}.pooling_type")
    return kind not in ("", "model") or header.architecture in _ENCODERS or pooled > 0


def _why_not(model: LocalModel, header: GgufHeader) -> str:
    """Why it cannot be trained, "" where it can."""
    if header.architecture not in _SUPPORTED:
        return f"the architecture {header.architecture or '(none)'} is not supported"
    if model.parts > 1:
        return f"it is in {model.parts} parts; llama-gguf-split joins them"
    return "" if header.is_whole else "the file is cut off; download it again"


def _widths(header: GgufHeader) -> dict[str, int]:
    """The sizes that memory and time are computed from."""
    hidden, heads = header.of_family("embedding_length"), max(1, header.of_family("attention.head_count"))
    groups = header.of_family("attention.head_count_kv") or heads
    return {
        "layers": header.of_family("block_count"),
        "hidden": hidden,
        "intermediate": header.of_family("feed_forward_length"),
        "key_value": groups * (header.of_family("attention.key_length") or hidden // heads),
        "vocabulary": header.lengths.get("tokenizer.ggml.tokens", 0),
        "heads": heads,
    }


def _is_tied(header: GgufHeader) -> bool:
    return all(tensor.name != "output.weight" for tensor in header.tensors)


def _plan(config: RunConfig, size: Callable[[RunConfig], ModelSize]) -> MemoryPlan | None:
    """The memory of its rounds; None where no engine can tell."""
    with _PLANS, contextlib.suppress(BackendError):
        return memory_plan.plan_round_memory(config, size=size(config))
    return None


def _short(text: str, path: Path) -> str:
    """An error about a file without its path, which the list shows."""
    return text.removeprefix(f"{path} ").removeprefix(f"{path}: ").removesuffix(".") or "it cannot be read"


def as_json(one: LocalBase) -> dict[str, object]:
    """For programs."""
    plan = one.plan
    return {
        "base": one.base,
        "place": one.model.title,
        "name": one.model.name,
        "also": list(one.model.also),
        "path": str(one.model.path),
        "bytes": one.model.bytes,
        "quantisation": one.quantisation,
        "architecture": one.architecture,
        "parameters": one.parameters,
        "memory": {"needed": plan.needed, "available": plan.available} if plan else None,
        "fit": one.fit,
        "reason": one.reason,
    }
