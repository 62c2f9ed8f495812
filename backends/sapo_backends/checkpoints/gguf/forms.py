"""How llama.cpp names each family and what it must be told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sapo_backends.checkpoints.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class Form:
    """name: llama.cpp's architecture. interleaved: it rotates neighbouring coordinates, so that rows of q and k are
    permuted. windowed: every how manieth layer sees everything where the others have a window; 0 where llama.cpp
    computes no window for it."""

    name: str
    interleaved: bool = False
    windowed: int = 0


FORMS = {
    "Qwen2ForCausalLM": Form("qwen2"),
    "Qwen3ForCausalLM": Form("qwen3"),
    "LlamaForCausalLM": Form("llama", interleaved=True),
    "MistralForCausalLM": Form("llama", interleaved=True),
    "Phi3ForCausalLM": Form("phi3"),
    "SmolLM3ForCausalLM": Form("smollm3", interleaved=True),
    "GraniteForCausalLM": Form("granite", interleaved=True),
    "Olmo2ForCausalLM": Form("olmo2"),
    "Olmo3ForCausalLM": Form("olmo2", windowed=4),
    "GemmaForCausalLM": Form("gemma"),
    "Gemma2ForCausalLM": Form("gemma2", windowed=2),
    "Gemma3ForCausalLM": Form("gemma3", windowed=6),
}
"""Architecture -> its form in a GGUF file."""
NOPE_STEP = 4
"""Every such layer of SmolLM3 rotates nothing; llama.cpp knows no other number."""


def _usual_windows(spec: DecoderSpec) -> tuple[bool, ...]:
    """Which layers llama.cpp gives a window."""
    every = FORMS[spec.architecture].windowed
    return tuple((layer + 1) % every != 0 for layer in range(spec.layers))


def why_not_gguf(spec: DecoderSpec) -> str:
    """Why llama.cpp cannot compute a decoder that the spec describes; empty when it can."""
    form = FORMS[spec.architecture]
    if form.name == "olmo2" and spec.tied:
        return "an embedding that is the output layer too, which llama.cpp does not know of this family,"
    if form.windowed and spec.window and spec.layer_windowed != _usual_windows(spec):
        return "another order of layers with a sliding window than llama.cpp's"
    if form.name == "smollm3" and spec.layer_rope != tuple(int((i + 1) % NOPE_STEP == 0) for i in range(spec.layers)):
        return "another order of layers without rotary embeddings than llama.cpp's"
    if form.name in ("gemma", "gemma2", "gemma3") and abs(spec.scale - spec.head_dim**-0.5) > 1e-9:
        return "another scale of attention than llama.cpp's"
    return ""


def context_length(spec: DecoderSpec) -> int:
    """The longest text that llama.cpp computes rightly: no longer than a window that it does not know."""
    known = FORMS[spec.architecture].windowed or not spec.window
    return spec.context if known else min(spec.context, spec.window)


def write_form(writer: Any, spec: DecoderSpec) -> None:
    """What a family's layers need besides widths."""
    form = FORMS[spec.architecture]
    if form.windowed and spec.window:
        writer.add_sliding_window(spec.window)
        writer.add_sliding_window_pattern(form.windowed)
        if len(spec.ropes) > 1:
            writer.add_rope_freq_base_swa(spec.ropes[1].theta)
    if form.name == "granite":
        writer.add_attention_scale(spec.scale)
        writer.add_embedding_scale(spec.embed_scale)
        writer.add_residual_scale(spec.residual_scale)
        writer.add_logit_scale(1.0 / spec.logit_scale)
    if spec.softcap:
        writer.add_attn_logit_softcapping(spec.softcap)
    if spec.logit_softcap:
        writer.add_final_logit_softcapping(spec.logit_softcap)


def rope_divisors(spec: DecoderSpec) -> list[tuple[str, NDArray[np.float32]]]:
    """(name, what llama.cpp divides each rotary frequency by (rotary / 2,)): Llama 3's stretched wavelengths, or both
    factors of a longrope."""
    rope = spec.rope
    if rope.kind == "longrope":
        factors = (("rope_factors_short.weight", rope.factors), ("rope_factors_long.weight", rope.long_factors))
        return [(name, np.array(each, np.float32)) for name, each in factors]
    if rope.kind != "llama3":
        return []
    frequencies = 1.0 / rope.theta ** (np.arange(0, spec.head_dim, 2) / spec.head_dim)
    rotations = rope.original_context * frequencies / (2 * np.pi)
    blend = np.clip((rotations - rope.low_frequency) / (rope.high_frequency - rope.low_frequency), 0.0, 1.0)
    divisors: NDArray[np.float32] = (1.0 / (blend + (1.0 - blend) / rope.factor)).astype(np.float32)
    return [("rope_freqs.weight", divisors)]
