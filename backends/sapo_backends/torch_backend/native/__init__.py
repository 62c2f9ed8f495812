"""Kernels in C: a small float32 model's decoding and updates, and any model's log-probabilities over its vocabulary."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.checkpoints.hub_cache import cache_folder
from sapo_backends.checkpoints.spec import DecoderSpec
from sapo_backends.common import hardware
from sapo_backends.torch_backend.runtime import fall_back, is_left_out

# The C files here as native code for this machine: compiled once into the cache folder, if there is a C compiler.
#
# A package for every platform would contain code for an average processor; compiling here uses all that this one can
# do.

FOLDER = Path(__file__).parent
_TARGETS = ("-march=native", "-mcpu=native")
_OPTIMISED = "-O3"
_TIMEOUT_S = 300.0


def is_there() -> bool:
    """Whether there is nothing left to do: no compiler, or already compiled."""
    try:
        return _plan()[0].exists()
    except (OSError, subprocess.SubprocessError):
        return True


def compile_library() -> Path:
    """The library for this processor; compiling it, if necessary, takes seconds. Raises OSError, SubprocessError."""
    path, command = _plan()
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=path.parent) as made:
            fresh = Path(made) / path.name
            _build(command, Path(made), fresh)
            fresh.replace(path)
    return path


def _build(command: Sequence[str], folder: Path, result: Path) -> None:
    """Compile the files in parallel and link them. Raises OSError, SubprocessError."""
    files = sorted(FOLDER.glob("*.c"))
    objects = [folder / f"{file.stem}.o" for file in files]

    def compiled_object(file: Path, to: Path) -> None:
        _run(*command, "-c", "-o", str(to), str(file))

    with ThreadPoolExecutor() as pool:
        list(pool.map(compiled_object, files, objects))
    _run(*command, "-o", str(result), *map(str, objects), "-lm")


def _plan() -> tuple[Path, list[str]]:
    """The library's path, and the compiler command without the source files. Raises OSError, SubprocessError."""
    program = hardware.c_compiler()
    if program is None:
        raise FileNotFoundError("no C compiler")
    source = b"".join(file.read_bytes() for file in sorted([*FOLDER.glob("*.c"), *FOLDER.glob("*.h")]))
    problem = subprocess.SubprocessError()
    for target in _TARGETS:
        try:
            # The compiler's view of this processor is part of the name: folders are shared between machines.
            macros = _run(program, target, "-dM", "-E", "-x", "c", os.devnull)
        except subprocess.SubprocessError as error:
            problem = error
            continue
        name = f"kernels-{hashlib.sha256(source + macros).hexdigest()[:16]}.so"
        return cache_folder() / "native" / name, [program, _OPTIMISED, target, "-shared", "-fPIC"]
    raise problem


def _run(*command: str) -> bytes:
    """The command's output. Raises SubprocessError if it fails or takes too long."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=True)
    return done.stdout


# The compiled kernels as functions of tensors; checked before use.
#
# Without a compiler, or if its output fails the check, everything runs in torch's operations instead, with the same
# results.

PAD, PANEL, CHUNK, GROUP = 16, 32, 16, 32
"""As in vectors.h."""
LARGEST_HEAD = 1024
"""Largest head_dim that vectors.h has workspace for."""


class KernelShape(ctypes.Structure):
    """The struct in vectors.h; slots is for decoding."""

    _fields_ = (
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("slots", ctypes.c_int64),
        ("eps", ctypes.c_float),
    )


def suits_kernels(spec: DecoderSpec) -> bool:
    """Whether the kernels know a model's layers, and their widths are multiples of whole vectors. Decoding and updates
    altogether are for float32 and for models of which each thread computes its own share; attention of decode steps is
    for others too."""
    whole = all(width % PAD == 0 for width in (spec.head_dim, spec.hidden, spec.intermediate))
    return whole and spec.plain and spec.head_dim <= LARGEST_HEAD


_LAYER = (
    "norm1 qkv qkv_bias q_norm k_norm out out_bias norm2 gate_up gate_up_bias down down_bias "
    "keys values completion_keys completion_values"
)


class KernelLayer(ctypes.Structure):
    """The struct in steps.c."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in _LAYER.split())


class KernelProjection(ctypes.Structure):
    """The struct Projection in integers.c."""

    _fields_ = (
        ("outputs", ctypes.c_int64),
        ("depth", ctypes.c_int64),
        ("terms", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("codes", "scales", "lows", "bias")),
        ("low", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("down", ctypes.c_void_p),
        ("parts", ctypes.c_int64 * 3),
        ("up", ctypes.c_void_p * 3),
    )


class IntegerLayer(ctypes.Structure):
    """The struct in integers.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("norm1", "q_norm", "k_norm", "norm2")),
        *((name, KernelProjection) for name in ("qkv", "out", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("keys", "values", "completion_keys", "completion_values")),
    )


def data_pointer(x: Tensor | None) -> int | None:
    """The address of a contiguous tensor, which the caller must keep alive; NULL for None."""
    return None if x is None else x.data_ptr()


_P, _N, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_SIGNATURES: dict[str, list[Any]] = {
    "rms_norm": [_N, _N, _P, _P, _F, _P, None],
    "rms_norm_backward": [_N, _N, _P, _P, _F, _P, _P, _P, None],
    "swiglu": [_N, _N, _P, _P, None],
    "swiglu_backward": [_N, _N, _P, _P, _P, None],
    "chosen_logprobs": [_N, _N, _P, _N, _F, _P, _P, _P, _P, None],
    "sample": [_N, _N, _P, _N, _F, _P, _P, _P, _P, None],
    "states": [_P, *[_P] * 7, None],
    "state_step": [_P, *[_P] * 6, None],
    "states_workspace": [_P, _N],
    "states_backward": [_P, *[_P] * 14, None],
    "prefill_attention": [_P, _N, *[_P] * 10, _N, _P, _P, None],
    "decode_attention": [_P, _N, _P, _P, _N, *[_P] * 13, None],
    "integer_steps": [_N],
    "integer_strip": [_N],
    "integer_weights": [_N, _N, _P, _N, _P, _P, _P, None],
    "integer_projection": [_P, _N, _P, _P, _N, _P, None],
    "integer_step": [_P, _N, _P, _N, _N, _N, _P, _P, _P, _N, *[_P] * 6, None],
    "decode_step": [_P, _N, _P, _N, _N, _N, _P, _P, _P, _N, *[_P] * 6, None],
    "attention_workspace": [_P, _N, _N],
    "attention": [_P, _N, _P, _P, _P, _N, *[_P] * 7, None],
    "attention_backward": [_P, _N, _P, _P, _P, _N, *[_P] * 8, None],
}
"""name -> types of the arguments and of the result."""


@dataclass(frozen=True, slots=True)
class NativeKernels:
    """The functions of the compiled library; see the C files for their arguments."""

    library: ctypes.CDLL

    @classmethod
    def load(cls, path: Path) -> NativeKernels:
        """Raises OSError if the file is not a library, AttributeError if it lacks a function."""
        library = ctypes.CDLL(str(path))
        for name, (*arguments, result) in _SIGNATURES.items():
            function = getattr(library, f"sapo_{name}")
            function.argtypes, function.restype = arguments, result
        return cls(library)

    @property
    def integer_strip(self) -> int:
        """Outputs whose integers lie together."""
        return int(self.library.sapo_integer_strip())

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x (..., width), contiguous, times its inverse root mean square and weight."""
        out, width = torch.empty_like(x), x.shape[-1]
        self.library.sapo_rms_norm(x.numel() // width, width, x.data_ptr(), weight.data_ptr(), eps, out.data_ptr())
        return out

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """silu(first half) * second half of (N, 2 width), contiguous."""
        width = gate_up.shape[1] // 2
        out = gate_up.new_empty(gate_up.shape[0], width)
        self.library.sapo_swiglu(gate_up.shape[0], width, gate_up.data_ptr(), out.data_ptr())
        return out

    def chosen_logprobs(
        self, logits: Tensor, temperature: float, targets: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """logits (rows, V) in float32 or bfloat16, contiguous, targets (rows,) -> log-probabilities of the targets and
        entropies (rows,) at that temperature. With weights (rows,) the logits become weights times the gradients of the
        log-probabilities by logits / temperature. On as many threads as torch has."""
        rows, size = logits.shape
        chosen, entropy = torch.empty(rows), torch.empty(rows)
        targets, weights = targets.contiguous(), None if weights is None else weights.float().contiguous()

        def share(some: slice) -> None:
            inputs = targets[some], None if weights is None else weights[some], chosen[some], entropy[some]
            wide, scale = logits.dtype == torch.float32, 1.0 / temperature
            count = len(inputs[0])
            self.library.sapo_chosen_logprobs(
                count, size, data_pointer(logits[some]), wide, scale, *map(data_pointer, inputs)
            )

        in_shares(rows, share)
        return chosen, entropy

    def sample(self, logits: Tensor, temperature: float, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """logits (rows, V) in float32 or bfloat16, uniform (rows,) float64 -> tokens and their log-probabilities
        (rows,); at temperature 0 the most probable tokens. On as many threads as torch has."""
        rows, size = logits.shape
        logits, uniform = logits.contiguous(), uniform.contiguous()
        tokens, logprobs, wide = torch.empty(rows, dtype=torch.int64), torch.empty(rows), logits.dtype == torch.float32

        def share(some: slice) -> None:
            outputs = tokens[some], logprobs[some], torch.empty(size + PAD)
            pointers = map(data_pointer, (uniform[some], *outputs))
            self.library.sapo_sample(len(outputs[0]), size, data_pointer(logits[some]), wide, temperature, *pointers)

        in_shares(rows, share)
        return tokens, logprobs


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="kernels")


def in_shares(rows: int, work: Callable[[slice], None]) -> None:
    """Call work with equal parts of the rows on as many threads as torch has; one thread computes in the caller's."""
    threads = torch.get_num_threads()
    if threads == 1 or rows < 2:
        work(slice(0, rows))
        return
    part = -(-rows // threads)
    list(_pool(threads).map(work, (slice(first, min(first + part, rows)) for first in range(0, rows, part))))


def load_kernels() -> NativeKernels | None:
    """The library, or None if it is disabled or unavailable."""
    return None if is_left_out("native") else checked_kernels()


@cache
def checked_kernels() -> NativeKernels | None:
    """The library, or None if it is unavailable, which is recorded as a fallback."""
    reason = ""
    for _ in range(2):
        try:
            path = compile_library()
        except (OSError, subprocess.SubprocessError) as error:
            reason = str(error) or type(error).__name__
            break
        try:
            kernels = NativeKernels.load(path)
        except (OSError, AttributeError) as error:
            reason = str(error)
            with contextlib.suppress(OSError):  # a damaged file: build it again
                path.unlink()
            continue
        if _works(kernels):
            return kernels
        reason = "they compute something else than torch"
        break
    fall_back("native", reason)
    return None


def _works(found: NativeKernels) -> bool:
    """Whether the simplest functions agree with torch; a compiler is not trusted blindly."""
    x, weight = torch.linspace(-90.0, 90.0, 96).view(3, 32), torch.linspace(0.5, 2.0, 32)
    gate, up = x.chunk(2, dim=-1)
    targets, expected = torch.tensor([0, 13, 31]), F.log_softmax(x.bfloat16().float(), dim=-1)
    pairs = (
        (found.rms_norm(x, weight, 1e-6), F.rms_norm(x, (32,), weight, 1e-6)),
        (found.swiglu(x), F.silu(gate) * up),
        (found.chosen_logprobs(x.bfloat16(), 1.0, targets, None)[0], expected.gather(1, targets[:, None])[:, 0]),
    )
    return all(torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6) for mine, theirs in pairs)


def sampler_kernels(logits: torch.Tensor) -> NativeKernels | None:
    """The compiled kernels, if they can sample from logits (rows, V): float32 or bfloat16 on a processor."""
    known = logits.dtype in (torch.float32, torch.bfloat16)
    return load_kernels() if known and logits.device.type == "cpu" else None


def vocabulary_kernels(head: torch.Tensor, softcap: float) -> NativeKernels | None:
    """The compiled kernels, if they can process the logits of this unembedding."""
    known = head.dtype in (torch.float32, torch.bfloat16) and softcap == 0.0
    return load_kernels() if known and head.device.type == "cpu" else None
