"""kernels.c as this machine's own code: compiled once into the cache folder, where there is a C compiler; checked before use.

A package for every platform would carry code for an average processor; the machine that runs it knows better. Where no
compiler is, or what it made fails the check, decoding goes its other way (session.LeanSession), which gives the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.cache_folder import cache_folder
from sapo_backends.spec import DecoderSpec

SOURCE = Path(__file__).with_name("kernels.c")
_COMPILERS = ("cc", "gcc", "clang")
_TARGETS = ("-march=native", "-mcpu=native")
_TIMEOUT_S = 60.0
PAD, CHUNK = 16, 16
"""As in kernels.c."""
LARGEST_HEAD = 1024
"""Numbers of a head that kernels.c has room for."""


class Shape(ctypes.Structure):
    """kernels.c's Shape."""

    _fields_ = (
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("slots", ctypes.c_int64),
        ("eps", ctypes.c_float),
    )


def fits(spec: DecoderSpec) -> bool:
    """Whether the kernels compute this model: whole vectors everywhere."""
    whole = all(width % PAD == 0 for width in (spec.head_dim, spec.hidden, spec.intermediate))
    return whole and spec.head_dim <= LARGEST_HEAD


def at(x: Tensor | None) -> int | None:
    """The address of a contiguous tensor, which the caller holds on to; NULL for None."""
    return None if x is None else x.data_ptr()


@dataclass(frozen=True, slots=True)
class Kernels:
    """The functions of the compiled library; see kernels.c for their arguments."""

    library: ctypes.CDLL

    @classmethod
    def load(cls, path: Path) -> Kernels:
        """Raises OSError where the file is no library, AttributeError where it lacks a function."""
        library = ctypes.CDLL(str(path))
        pointer, whole = ctypes.c_void_p, ctypes.c_int64
        library.sapo_normalise.argtypes = [whole, whole, pointer, pointer, ctypes.c_float, pointer]
        library.sapo_gate.argtypes = [whole, whole, pointer, pointer]
        library.sapo_prompts.argtypes = [pointer, whole, *[pointer] * 10, whole, pointer, pointer]
        library.sapo_rows.argtypes = [pointer, whole, pointer, pointer, whole, *[pointer] * 13]
        library.sapo_draw.argtypes = [whole, whole, pointer, ctypes.c_float, *[pointer] * 4]
        for name in ("normalise", "gate", "prompts", "rows", "draw"):
            getattr(library, f"sapo_{name}").restype = None
        return cls(library)

    def normalise(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x (N, width) times its inverse root mean square and weight."""
        out = torch.empty_like(x)
        self.library.sapo_normalise(x.shape[0], x.shape[1], x.data_ptr(), weight.data_ptr(), eps, out.data_ptr())
        return out

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu(first half) * second half of (N, 2 width)."""
        width = gate_up.shape[1] // 2
        out = gate_up.new_empty(gate_up.shape[0], width)
        self.library.sapo_gate(gate_up.shape[0], width, gate_up.data_ptr(), out.data_ptr())
        return out

    def draw(self, logits: Tensor, temperature: float, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """logits (rows, V), V a multiple of PAD, uniform (rows,) float64 -> tokens and their log-probabilities (rows,)."""
        rows, size = logits.shape
        logits, uniform = logits.contiguous(), uniform.contiguous()
        tokens, logprobs, room = torch.empty(rows, dtype=torch.int64), torch.empty(rows), torch.empty(size)
        pointers = map(at, (uniform, tokens, logprobs, room))
        self.library.sapo_draw(rows, size, logits.data_ptr(), temperature, *pointers)
        return tokens, logprobs


@cache
def kernels() -> Kernels | None:
    """The library, or None where it cannot be had."""
    for _ in range(2):
        try:
            path = _compiled()
        except (OSError, subprocess.SubprocessError):
            return None
        with contextlib.suppress(OSError, AttributeError):
            found = Kernels.load(path)
            return found if _works(found) else None
        with contextlib.suppress(OSError):  # a damaged file: made anew
            path.unlink()
    return None


def _compiled() -> Path:
    """The library for this processor, compiled if it is not there yet. Raises OSError, SubprocessError."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError("no C compiler")
    source, problem = SOURCE.read_bytes(), subprocess.SubprocessError()
    for target in _TARGETS:
        try:
            # What the compiler takes this processor for is part of the name: folders are shared between machines.
            known = _run(compiler, target, "-dM", "-E", "-x", "c", os.devnull)
        except subprocess.SubprocessError as error:
            problem = error
            continue
        folder = cache_folder() / "native"
        path = folder / f"kernels-{hashlib.sha256(source + known).hexdigest()[:16]}.so"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryDirectory(dir=folder) as made:
                fresh = Path(made) / "kernels.so"
                _run(compiler, "-O3", target, "-shared", "-fPIC", "-o", str(fresh), str(SOURCE), "-lm")
                fresh.replace(path)
        return path
    raise problem


def _run(*command: str) -> bytes:
    """Its output. Raises SubprocessError when it fails or takes too long."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=True)
    return done.stdout


def _works(found: Kernels) -> bool:
    """Whether the simplest parts give what torch gives; a compiler is not trusted blindly."""
    x, weight = torch.linspace(-90.0, 90.0, 96).view(3, 32), torch.linspace(0.5, 2.0, 32)
    gate, up = x.chunk(2, dim=-1)
    pairs = (
        (found.normalise(x, weight, 1e-6), F.rms_norm(x, (32,), weight, 1e-6)),
        (found.gate(x), F.silu(gate) * up),
    )
    return all(torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6) for mine, theirs in pairs)
