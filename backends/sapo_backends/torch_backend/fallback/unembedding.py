"""The hidden states in front of a transformers model's unembedding, and what the model makes of them.

A model's own forward pass makes logits of every token, which for a vocabulary of 150k is most of its memory. A hook in
front of the unembedding takes the hidden states out and passes one token on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sapo_backends.base import BackendError
from sapo_backends.torch_backend.ops.fused_ops import softcapped

TOLERANCE = 1e-2
"""Of logits, relative to the largest: what bfloat16 rounds."""


@dataclass(frozen=True, slots=True)
class HeadRule:
    """logits = c tanh(scale W x / c), c = softcap, without tanh where it is 0."""

    scale: float
    softcap: float


class UnembeddingTap:
    """name: of the unembedding's weight among the model's parameters."""

    def __init__(self, module: nn.Module) -> None:
        """Raises BackendError for a module without an unembedding."""
        self._module: Any = module
        self._head = getattr(module, "get_output_embeddings", lambda: None)()
        if not isinstance(self._head, nn.Linear):
            raise BackendError("This architecture has no output layer that predicts tokens; choose another model.")
        self.name = next(name for name, tensor in module.named_parameters() if tensor is self._head.weight)
        self.bias = next((n for n, tensor in module.named_parameters() if tensor is self._head.bias), None)
        self._mode, self._states = "", list[Tensor]()
        self._rule: HeadRule | str | None = "unknown"
        self._head.register_forward_pre_hook(self._before)

    def _before(self, _head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if not self._mode:
            return None
        if self._mode == "last":
            return (_apart(inputs[0][:, -1:]),)
        self._states.append(inputs[0])
        return (_apart(inputs[0][:1, -1:].detach()),)

    @contextmanager
    def _in_mode(self, mode: str) -> Iterator[None]:
        self._mode = mode
        try:
            yield
        finally:
            self._mode = ""

    def capturing(self) -> Any:
        """While a forward pass runs: its hidden states are kept for `taken`."""
        return self._in_mode("capture")

    def last_only(self) -> Any:
        """While a forward pass runs: logits of each row's last token alone."""
        return self._in_mode("last")

    def taken(self) -> Tensor:
        """The hidden states (rows, T, hidden) of the last forward pass."""
        return self._states.pop()

    def logits(self, hidden: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """W x + b of hidden (N, width), for models of which no HeadRule is known: they only have a bias."""
        bias = None if self.bias is None else parameters[self.bias].to(hidden.dtype)
        return F.linear(hidden, parameters[self.name].to(hidden.dtype), bias)

    def rule(self, model: Any) -> HeadRule | None:
        """How a TransformersModel makes logits, found once by comparing with its own; None where only a bias is added.

        Raises BackendError where neither gives the model's logits: nothing wrong is ever trained on.
        """
        if isinstance(self._rule, str):
            self._rule = self._found(model)
        return self._rule

    @torch.no_grad()
    def _found(self, model: Any) -> HeadRule | None:
        ids = torch.arange(3, 11, device=model.device)[None]
        positions, bound = torch.arange(ids.shape[1], device=model.device)[None], model.weights(None)
        with self.capturing():
            own = model.forward(bound, positions, input_ids=ids, use_cache=False).logits[0, -1].float()
        hidden = self.taken()[0, -1:]
        table, config = bound.parameters[self.name].to(hidden.dtype), self._module.config.get_text_config()
        scales = (1.0, 1.0 / float(getattr(config, "logits_scaling", 0) or 1), getattr(config, "logit_scale", 0) or 1)
        caps = (0.0, float(getattr(config, "final_logit_softcapping", 0) or 0))

        def same(logits: Tensor) -> bool:
            return bool((logits[0].float() - own).abs().max() <= TOLERANCE * own.abs().max().clamp_(min=1e-6))

        for scale in scales:
            for cap in caps:
                if self.bias is None and same(softcapped(F.linear(hidden * float(scale), table).float(), cap)):
                    return HeadRule(float(scale), cap)
        if same(self.logits(hidden, bound.parameters)):
            return None
        raise BackendError(
            "This architecture does something to its output that is not known here, so training it would be wrong. "
            "Choose another model."
        )


def _apart(few: Tensor) -> Tensor:
    """Rows in memory of their own: of a part of a larger tensor the product would be made with a transposed copy of the whole
    unembedding, seconds of a large vocabulary. contiguous() leaves such a part as it is where it is a single row."""
    return few.clone(memory_format=torch.contiguous_format)
