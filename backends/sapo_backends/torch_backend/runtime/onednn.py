"""oneDNN's packed bfloat16 weights, which torch offers only as private functions (torch.ops.mkldnn): checked before use."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.torch_backend.runtime.fallbacks import fall_back, is_left_out


@cache
def packs_bfloat16() -> bool:
    """Whether packing works here: this processor has bfloat16 products, and torch's private functions compute them.

    What should work and does not is noted as a fallback.
    """
    if is_left_out("onednn") or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        wrong = "" if _computes() else "it computes wrong products"
    except (AttributeError, RuntimeError, TypeError) as error:
        wrong = f"torch {torch.__version__}: {error}"
    if wrong:
        fall_back("onednn", wrong)
    return not wrong


def _computes() -> bool:
    """Whether a packed SwiGLU gives what plain float32 products give."""
    x, weight = (torch.randn(n, 32).bfloat16() for n in (5, 48))
    packed = pack(weight)
    gate = torch.ops.mkldnn._linear_pointwise(x, packed, None, "swish", [], "")
    found = torch.ops.mkldnn._linear_pointwise(x, gate, packed, None, "mul")
    y = F.linear(x.float(), weight.float())
    return bool(((F.silu(y) * y - found).abs() <= 0.05 * (1 + y.square())).all())


def pack(weight: Tensor) -> Tensor:
    """weight (out, in) in oneDNN's own layout, for torch.ops.mkldnn._linear_pointwise only."""
    result: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
    return result
