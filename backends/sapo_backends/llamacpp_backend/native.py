"""llama.cpp's C interface with Python ownership: a model, a context, a batch, adapters. Nothing is printed."""

from __future__ import annotations

import atexit
import ctypes
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp._utils
import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from sapo_backends.common import hardware, round_memory
from sapo_backends.errors import BackendError, OutOfMemory

LARGEST_SEQUENCES = 256
"""LLAMA_MAX_SEQ of llama.cpp."""
F32, F16 = 0, 1
"""ggml_type of the key-value cache."""
_ERROR = 4
_lock = threading.Lock()
_complaints: list[str] = []


@llama.llama_log_callback  # type: ignore[untyped-decorator]
def _keep_errors(level: int, text: bytes, _data: object) -> None:
    """Collects errors: by default llama.cpp writes to stderr, which belongs to the dashboard's terminal driver."""
    if level == _ERROR:
        _complaints.append(text.decode("utf-8", "replace").strip())
        del _complaints[:-5]


def initialise_llamacpp() -> None:
    """Silence the library and initialise it; repeated calls are harmless."""
    with _lock:
        llama.llama_log_set(_keep_errors, ctypes.c_void_p(0))
        llama.llama_backend_init()
        for name in ("outnull_file", "errnull_file"):  # llama_cpp opens them and leaves them to the garbage collector
            file = getattr(llama_cpp._utils, name, None)
            if file is not None:
                atexit.register(file.close)


def take_last_errors() -> str:
    """The library's last errors, for a message to a person."""
    text = "; ".join(_complaints) or "it gave no reason"
    _complaints.clear()
    return text


def quantise_gguf(source: Path, target: Path, file_type: int) -> None:
    """Write a 16- or 32-bit GGUF file with the types of a llama_ftype, such as 15 for Q4_K_M. Raises BackendError."""
    initialise_llamacpp()
    params = llama.llama_model_quantize_default_params()
    params.ftype = file_type
    if llama.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)) != 0:
        raise BackendError(
            f"llama.cpp cannot write {target.name} in that quantisation: {take_last_errors()}. Use --quant q8_0."
        )


class GgufModel:
    """Weights of one GGUF file."""

    def __init__(self, path: Path) -> None:
        """Raises BackendError when llama.cpp cannot load the file."""
        initialise_llamacpp()
        params = llama.llama_model_default_params()
        # The repacked buffers crash on CPUs with AMX for Q8_0 and Q4_0 (llama-cpp-python 0.3.36, gcc 12).
        params.use_extra_bufts = False
        params.n_gpu_layers = 0
        self.pointer: Any = llama.llama_model_load_from_file(str(path).encode(), params)
        if not self.pointer:
            raise BackendError(f"llama.cpp cannot load {path}: {take_last_errors()}. Delete that file and load again.")
        vocabulary: Any = llama.llama_model_get_vocab(self.pointer)
        self.vocabulary = int(llama.llama_vocab_n_tokens(vocabulary))
        self.parameters = int(llama.llama_model_n_params(self.pointer))
        self._cell = (
            2 * llama.llama_model_n_layer(self.pointer) * llama.llama_model_n_head_kv(self.pointer) * self._head()
        )

    def _head(self) -> int:
        """Values per key of one head: as the file says, else hidden / heads."""
        key_length = self._told(f"{self._told('general.architecture')}.attention.key_length")
        return (
            int(key_length)
            if key_length.isdigit()
            else llama.llama_model_n_embd(self.pointer) // llama.llama_model_n_head(self.pointer)
        )

    def _told(self, key: str) -> str:
        """A value of the file's metadata; "" if there is none."""
        text = ctypes.create_string_buffer(256)
        length = llama.llama_model_meta_val_str(self.pointer, key.encode(), text, len(text))
        return text.value.decode(errors="replace") if length >= 0 else ""

    def cache_bytes(self, cells: int, cache_type: int) -> int:
        """Bytes of keys and values of that many tokens."""
        return int(self._cell) * cells * (4 if cache_type == F32 else 2)

    def close(self) -> None:
        """Free it; a second call does nothing."""
        if self.pointer:
            llama.llama_model_free(self.pointer)
            self.pointer = None


class GgufAdapter:
    """A LoRA adapter loaded from a GGUF adapter file."""

    def __init__(self, model: GgufModel, path: Path) -> None:
        """Raises BackendError when the file does not fit the model."""
        self.pointer: Any = llama.llama_adapter_lora_init(model.pointer, str(path).encode())
        if not self.pointer:
            raise BackendError(f"llama.cpp refuses the adapter: {take_last_errors()}.")

    def close(self) -> None:
        """Free it; a second call does nothing."""
        if self.pointer:
            llama.llama_adapter_lora_free(self.pointer)
            self.pointer = None


class LlamaContext:
    """A key-value cache of `cells` tokens shared by `sequences` sequences, and the batch that fills it."""

    def __init__(self, model: GgufModel, cells: int, sequences: int, batch: int, threads: int, cache_type: int) -> None:
        """Raises OutOfMemory when the cache cannot be allocated."""
        needed = model.cache_bytes(cells, cache_type)
        round_memory.require_memory(needed, "Lower group_size or max_new_tokens.")
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_seq_max = cells, sequences
        params.n_batch = params.n_ubatch = batch
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = cache_type
        if cache_type == F32:
            params.flash_attn_type = (
                0  # on processors it computes partly in half precision: log-probs were off by 5e-3, now 7e-6
            )
        params.kv_unified = True  # one cache for all sequences, so that it holds a shared prompt once
        params.no_perf = True
        self.cells, self.sequences, self.batch = cells, sequences, batch
        self.pointer: Any = llama.llama_init_from_model(model.pointer, params)
        if not self.pointer:
            raise OutOfMemory(
                needed, hardware.available_memory(), f"llama.cpp: {take_last_errors()}. Lower group_size."
            )
        self._memory: Any = llama.llama_get_memory(self.pointer)
        self._vocabulary = model.vocabulary
        self._batch: Any = llama.llama_batch_init(batch, 0, 1)

    def decode(
        self, tokens: Sequence[int], positions: Sequence[int], owners: Sequence[int], wanted: Sequence[bool]
    ) -> NDArray[np.float32]:
        """Append tokens to sequences `owners`; returns logits (number wanted, V) in the order of the tokens.

        The array is llama.cpp's own memory, valid until the next call. Raises OutOfMemory, BackendError.
        """
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, (token, position, owner, want) in enumerate(zip(tokens, positions, owners, wanted, strict=True)):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, want
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = owner
        status = llama.llama_decode(self.pointer, batch)
        if status == 1:
            raise OutOfMemory(
                0, hardware.available_memory(), "The context is full: lower max_new_tokens or group_size."
            )
        if status != 0:
            raise BackendError(f"llama.cpp could not compute a step (code {status}): {take_last_errors()}.")
        rows = sum(wanted)
        if not rows:
            return np.empty((0, self._vocabulary), np.float32)
        # All wanted rows are consecutive in batch order; row i is what llama_get_logits_ith gives for the
        # i-th wanted token. Taking "the last logits" for every sequence would sample them all from one row.
        return np.ctypeslib.as_array(llama.llama_get_logits(self.pointer), (rows, self._vocabulary))

    def share(self, source: int, target: int) -> None:
        """Let an empty sequence continue another one's tokens without copying them."""
        llama.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def drop(self, sequence: int) -> None:
        """Drop a sequence's tokens; those that others share stay."""
        llama.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def clear(self) -> None:
        """Drop all tokens."""
        llama.llama_memory_clear(self._memory, False)

    def use(self, adapter: GgufAdapter | None) -> None:
        """Compute with this adapter from now on, or without one. This does not clear the cache: call clear()."""
        count = int(adapter is not None)
        pointers = (llama.llama_adapter_lora_p_ctypes * 1)(adapter.pointer if adapter is not None else None)
        if llama.llama_set_adapters_lora(self.pointer, pointers, count, (ctypes.c_float * 1)(1.0)) != 0:
            raise BackendError(f"llama.cpp did not take the adapter: {take_last_errors()}.")

    def close(self) -> None:
        """Free it; a second call does nothing."""
        if self.pointer:
            llama.llama_batch_free(self._batch)
            llama.llama_free(self.pointer)
            self.pointer = None
