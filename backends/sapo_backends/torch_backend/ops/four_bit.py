"""Frozen weights in 4 bits: NF4 of QLoRA (arXiv 2305.14314, appendix E), a scale for each 64 weights, 4.5 bits a weight.

bitsandbytes makes them dense again, for each product anew, on processors and GPUs. Quantising is done here: its result is
that of bitsandbytes bit for bit, in half the time, a piece of a file at a time.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from sapo_backends.base import BackendUnavailable
from sapo_backends.packages import install

BLOCK = 64
"""Weights with one scale."""
LEVELS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""What the 16 codes mean, times the scale."""

UPGRADE = "pip install -U bitsandbytes"


@cache
def require(device: torch.device) -> None:
    """Raise BackendUnavailable unless bitsandbytes is here and does what is needed on the device."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it complains of kernels that are not used here
    try:
        import bitsandbytes  # noqa: F401 - registers its operations with torch
    except (ImportError, AttributeError, RuntimeError, OSError) as error:
        raise BackendUnavailable(f"4-bit weights need bitsandbytes ({error}).", install("bitsandbytes")) from error
    values = torch.tensor(LEVELS, device=device).repeat(4)
    try:  # without a library for its GPU bitsandbytes raises only now
        codes, scales = quantised(values)
        found = dequantised(codes.view(1, -1), scales, torch.empty(0, device=device))
    except (AttributeError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise BackendUnavailable(f"bitsandbytes does not work on {device} ({reason}).", UPGRADE) from error
    if not torch.allclose(found[0], values, atol=1e-5):
        raise BackendUnavailable("This version of bitsandbytes computes something else.", UPGRADE)


def quantised(values: Tensor) -> tuple[Tensor, Tensor]:
    """values (n,), n a multiple of BLOCK -> codes (n / 2,), the first of two in the upper bits, and scales (n / BLOCK,)."""
    blocks = values.float().view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1)
    levels = torch.tensor(LEVELS, device=values.device)
    edges = (levels[1:] + levels[:-1]) / 2
    places = torch.bucketize(blocks / scales.clamp_min(1e-30)[:, None], edges, out_int32=True).view(-1, 2).byte()
    return (places[:, 0] << 4) | places[:, 1], scales


def dequantised(codes: Tensor, scales: Tensor, like: Tensor) -> Tensor:
    """codes (out, in / 2) -> the weight (out, in) in the type of `like`."""
    count = codes.numel() * 2
    operation = torch.ops.bitsandbytes.dequantize_4bit
    flat: Tensor = operation(codes.view(-1, 1), scales, BLOCK, "nf4", [count // BLOCK, BLOCK], like.dtype)
    return flat.view(codes.shape[0], -1)


@dataclass(frozen=True, slots=True)
class FourBit:
    """A weight (out, in): codes (out, in / 2) and scales (out * in / BLOCK,). `like`: empty, in the compute type."""

    codes: Tensor
    scales: Tensor
    like: Tensor

    @classmethod
    def empty(cls, rows: int, columns: int, compute: torch.dtype, device: torch.device) -> FourBit:
        """Room for a weight (rows, columns)."""
        codes = torch.empty(rows, columns // 2, dtype=torch.uint8, device=device)
        scales = torch.empty(rows * columns // BLOCK, device=device)
        return cls(codes, scales, torch.empty(0, dtype=compute, device=device))

    def dense(self) -> Tensor:
        """(out, in) in the compute type."""
        return dequantised(self.codes, self.scales, self.like)

    def write(self, at: int, values: Tensor) -> None:
        """Quantise values (n,) into the place of the weights from number `at` on; both are multiples of BLOCK."""
        end = at + len(values)
        codes, scales = quantised(values.to(self.codes.device))
        self.codes.view(-1)[at // 2 : end // 2] = codes
        self.scales[at // BLOCK : end // BLOCK] = scales


Weight = Tensor | FourBit


def dense(weight: Weight) -> Tensor:
    """The weight to multiply with. Of 4-bit weights it is made anew, so keep it no longer than the product takes."""
    return weight.dense() if isinstance(weight, FourBit) else weight
