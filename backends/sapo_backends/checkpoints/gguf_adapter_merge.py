"""An adapter merged into the integer codes of a quantised GGUF file, so that it keeps its size and what was learned.

Rounding W + BA to the file's types undoes most fine-tuning: an adapter moves a weight by a few hundredths of a step. What counts
is the layer's output on texts of the task, and there many weights act together. So codes are moved by whole steps wherever that
brings the outputs nearer to those with the adapter: first each column's error is passed on to later columns (GPTQ, arXiv
2210.17323), then coordinate descent on the same objective, tr(E H E'), E = the weights' error, H = the second moments of the
layer's inputs. Steps and offsets of the blocks stay as they are.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sapo_backends.base import Progress
from sapo_backends.checkpoints.gguf_header import TENSOR_TYPES, TensorEntry, read_header
from sapo_backends.checkpoints.gguf_model import require_readable
from sapo_backends.checkpoints.gguf_write import base_name, convert_for_llamacpp, split_adapter_name
from sapo_backends.checkpoints.spec import DecoderSpec
from sapo_backends.errors import ModelNotFound

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]
SWEEPS, BLOCK = 2, 128
"""Passes of the descent; columns whose errors are passed on together."""
DAMPING = 0.01
"""Part of the mean second moment that is added to each: directions that no text showed stay as they are."""
ROWS = 1024
"""Rows of a tensor that are unpacked at a time."""


@dataclass(frozen=True, slots=True)
class CodeLayout:
    """How a type packs a block of weights. bits (weights, code bits): place in the block of each bit of a weight's code, the
    lowest first. scales: bytes (blocks, size) -> (step, offset), each (blocks, groups); weight = step * code + offset. size:
    bytes of a block. flipped: the bit of a code that the file holds inverted."""

    size: int
    bits: NDArray[np.intp]
    scales: Callable[[Bytes], tuple[Float32, Float32]]
    flipped: int = 0

    @property
    def top(self) -> int:
        """The largest code."""
        return (1 << int(self.bits.shape[1])) - 1

    def codes(self, raw: Bytes) -> NDArray[np.int16]:
        """(rows, bytes) -> (rows, weights)."""
        flat = np.unpackbits(raw.reshape(-1, self.size), axis=1, bitorder="little")[:, self.bits.reshape(-1)]
        places = flat.reshape(len(flat), *self.bits.shape).astype(np.int16)
        codes = (places << np.arange(self.bits.shape[1], dtype=np.int16)).sum(axis=2, dtype=np.int16)
        whole: NDArray[np.int16] = codes.reshape(len(raw), -1) ^ np.int16(self.flipped)
        return whole

    def with_codes(self, raw: Bytes, codes: NDArray[np.int16]) -> Bytes:
        """The same bytes with other codes (rows, weights)."""
        flat = np.unpackbits(raw.reshape(-1, self.size), axis=1, bitorder="little")
        blocks = (codes ^ np.int16(self.flipped)).reshape(len(flat), len(self.bits), 1)
        flat[:, self.bits.reshape(-1)] = ((blocks >> np.arange(self.bits.shape[1])) & 1).reshape(len(flat), -1)
        return np.packbits(flat, axis=1, bitorder="little").reshape(raw.shape)

    def steps(self, raw: Bytes) -> tuple[Float32, Float32]:
        """(step, offset) of every weight, (rows, weights) each."""
        blocks = raw.reshape(-1, self.size)
        step, offset = self.scales(blocks)
        of_a_group = len(self.bits) // step.shape[1]
        shape = (len(raw), -1)
        return np.repeat(step, of_a_group, 1).reshape(shape), np.repeat(offset, of_a_group, 1).reshape(shape)


def _half(raw: Bytes, place: int) -> Float32:
    """The float16 at this byte of every block, (blocks, 1)."""
    return raw[:, place : place + 2].copy().view(np.float16).astype(np.float32)


def _one_step(zero: int) -> Callable[[Bytes], tuple[Float32, Float32]]:
    """A float16 step; the code `zero` is weight 0."""
    return lambda raw: (_half(raw, 0), -zero * _half(raw, 0))


def _step_and_least(raw: Bytes) -> tuple[Float32, Float32]:
    return _half(raw, 0), _half(raw, 2)


def _sixes(raw: Bytes) -> tuple[Float32, Float32]:
    """Eight steps and offsets of six bits in twelve bytes, times two float16: Q4_K, Q5_K."""
    packed = raw[:, 4:16].astype(np.int32)
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    step = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=1)
    least = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=1)
    return _half(raw, 0) * step.astype(np.float32), -_half(raw, 2) * least.astype(np.float32)


def _sixteen(raw: Bytes) -> tuple[Float32, Float32]:
    """Sixteen steps of eight bits before a float16: Q6_K."""
    step = _half(raw, 208) * raw[:, 192:208].copy().view(np.int8).astype(np.float32)
    return step, -32 * step


def _bits(weights: int, *places: Callable[[NDArray[np.intp]], Any]) -> NDArray[np.intp]:
    """places: number of a weight -> place of its lowest bit, its next, ..."""
    numbers = np.arange(weights)
    return np.stack([place(numbers) for place in places], axis=1)


def _halves(start: int) -> list[Callable[[NDArray[np.intp]], Any]]:
    """Four bits: the first 16 weights in the low halves of 16 bytes, the others in the high ones."""

    def place(n: NDArray[np.intp], bit: int) -> NDArray[np.intp]:
        return 8 * (start + n % 16) + 4 * (n // 16) + bit

    return [partial(place, bit=bit) for bit in range(4)]


def _quarters(start: int) -> list[Callable[[NDArray[np.intp]], Any]]:
    """Four bits: of 64 weights the first 32 in the low halves of 32 bytes, the others in the high ones."""

    def place(n: NDArray[np.intp], bit: int) -> NDArray[np.intp]:
        return 8 * (start + 32 * (n // 64) + n % 32) + 4 * (n // 32 % 2) + bit

    return [partial(place, bit=bit) for bit in range(4)]


def _six_bits() -> list[Callable[[NDArray[np.intp]], Any]]:
    """Of 128 weights four lows share two runs of 32 bytes, and their two highs one."""

    def low(n: NDArray[np.intp], bit: int) -> NDArray[np.intp]:
        return 8 * (64 * (n // 128) + n % 64) + 4 * (n % 128 // 64) + bit

    def high(n: NDArray[np.intp], bit: int) -> NDArray[np.intp]:
        return 8 * (128 + 32 * (n // 128) + n % 32) + 2 * (n % 128 // 32) + bit

    return [*(partial(low, bit=bit) for bit in range(4)), *(partial(high, bit=bit) for bit in range(2))]


LAYOUTS: Mapping[str, CodeLayout] = {
    "Q4_0": CodeLayout(18, _bits(32, *_halves(2)), _one_step(8)),
    "Q4_1": CodeLayout(20, _bits(32, *_halves(4)), _step_and_least),
    "Q5_0": CodeLayout(22, _bits(32, *_halves(6), lambda n: 16 + n), _one_step(16)),
    "Q5_1": CodeLayout(24, _bits(32, *_halves(8), lambda n: 32 + n), _step_and_least),
    "Q4_K": CodeLayout(144, _bits(256, *_quarters(16)), _sixes),
    "Q5_K": CodeLayout(176, _bits(256, *_quarters(48), lambda n: 8 * (16 + n % 32) + n // 32), _sixes),
    "Q6_K": CodeLayout(210, _bits(256, *_six_bits()), _sixteen),
    "Q8_0": CodeLayout(34, _bits(32, *(lambda n, bit=bit: 8 * (2 + n) + bit for bit in range(8))), _one_step(128), 128),
}
"""By llama.cpp's names of the types."""


def fit_codes(
    codes: NDArray[np.int16], step: Float32, top: int, change: Float32, moments: Moments
) -> NDArray[np.int16]:
    """Codes (rows, in) whose outputs are near to those of weights changed by `change` (rows, in). top: the largest code."""
    # A column of weights lies in one run of memory here: (in, rows).
    fitted, steps, wished = codes.T.copy(), step.T.copy(), change.T.copy()
    safe = np.where(steps == 0, np.float32(np.inf), steps)
    blocks = [slice(begin, min(begin + BLOCK, len(fitted))) for begin in range(0, len(fitted), BLOCK)]

    def move(j: int, wish: Float32) -> Float32:
        """Move column j by the nearest number of steps; what it moved by."""
        moved = np.clip(np.rint(wish / safe[j]) + fitted[j], 0, top) - fitted[j]
        fitted[j] += moved.astype(np.int16)
        return np.asarray(moved * steps[j], np.float32)

    error = np.empty_like(wished)  # of each weight: what it moved by less what it should have
    factor, damped = moments.factor, moments.damped
    for block in blocks:
        passed = factor[: block.start, block].T @ error[: block.start]
        for j in range(block.start, block.stop):
            before = passed[j - block.start] + factor[block.start : j, j] @ error[block.start : j]
            error[j] = move(j, wished[j] - before / factor[j, j]) - wished[j]
    slope = damped @ error  # of half the objective
    for _ in range(SWEEPS):
        for block in blocks:
            near, moves = slope[block].copy(), np.empty_like(slope[block])
            for j in range(block.start, block.stop):
                moves[j - block.start] = moved = move(j, -near[j - block.start] / damped[j, j])
                near += np.outer(damped[block, j], moved)
            slope += damped[:, block] @ moves
    return fitted.T.copy()


@dataclass(frozen=True, slots=True)
class Moments:
    """Second moments (in, in) of a layer's inputs, damped; and their upper factor, damped = factor @ factor.T: column j of
    `errors @ factor` is what the errors up to j leave when all later columns make up for them as well as they can."""

    damped: Float32
    factor: Float32

    @classmethod
    def of(cls, inputs: Float32) -> Moments:
        """inputs: (tokens, in)."""
        moments = (inputs.T @ inputs / max(1, len(inputs))).astype(np.float64)
        moments[np.diag_indices_from(moments)] += DAMPING * max(float(np.diag(moments).mean()), 1e-20)
        factor = np.linalg.cholesky(moments[::-1, ::-1])[::-1, ::-1]
        return cls(moments.astype(np.float32), factor.astype(np.float32))


def why_not_merged(own: Path, spec: DecoderSpec, adapter: Mapping[str, object]) -> str:
    """Why this adapter cannot be merged into the file's own codes; "" if it can. Raises ModelNotFound."""
    types = {tensor.name: _kind(tensor) for tensor in read_header(own).tensors}
    names = {base_name(spec, split_adapter_name(name)[0]) for name in adapter}
    other = sorted({types.get(name, "a missing tensor") for name in names} - set(LAYOUTS))
    return f"its layers are stored as {', '.join(other)}" if other else "" if adapter else "no adapter was trained"


def merge_into_codes(
    own: Path,
    target: Path,
    spec: DecoderSpec,
    adapter: Mapping[str, object],
    scale: float,
    inputs: Callable[[str], Float32],
    progress: Progress | None = None,
) -> None:
    """Write a copy of the GGUF file `own` with the adapter in it. adapter: PEFT names; scale: alpha / rank. inputs: module ->
    (tokens, in), its inputs on texts of the task. Raises ModelNotFound, OSError."""
    header = read_header(own)
    require_readable(own, header)
    tensors = {tensor.name: tensor for tensor in header.tensors}
    pairs: dict[str, dict[str, Float32]] = {}
    for name, value in adapter.items():
        weight, side = split_adapter_name(name)
        pairs.setdefault(weight, {})[side] = np.asarray(value, np.float32)
    shutil.copyfile(own, target)
    with target.open("r+b") as file:
        for number, (weight, sides) in enumerate(pairs.items()):
            if progress is not None:
                progress(number / len(pairs), "merging into the file's own codes")
            up = np.float32(scale) * convert_for_llamacpp(spec, weight, sides[".lora_b"])
            tensor = tensors[base_name(spec, weight)]
            moments = Moments.of(inputs(weight.removesuffix(".weight")))
            width = tensor.bytes // len(up)
            for begin in range(0, len(up), ROWS):
                place = header.data + tensor.offset + begin * width
                file.seek(place)
                raw = np.frombuffer(file.read(min(ROWS, len(up) - begin) * width), np.uint8).reshape(-1, width)
                file.seek(place)
                change = (up[begin : begin + ROWS] @ sides[".lora_a"]).astype(np.float32)
                file.write(_merged(tensor, raw, change, moments).tobytes())


def _merged(tensor: TensorEntry, raw: Bytes, change: Float32, moments: Moments) -> Bytes:
    """Rows of a tensor with a change (rows, in) in their codes."""
    layout = LAYOUTS[_kind(tensor)]
    step, offset = layout.steps(raw)
    if not (np.isfinite(step).all() and np.isfinite(offset).all()):
        raise ModelNotFound(f"{tensor.name} holds numbers that are not finite: the file is damaged. Download it again.")
    return layout.with_codes(raw, fit_codes(layout.codes(raw), step, layout.top, change, moments))


def _kind(tensor: TensorEntry) -> str:
    """llama.cpp's name of the tensor's type."""
    return TENSOR_TYPES.get(tensor.type, ("an unknown type", 1, 0))[0]
