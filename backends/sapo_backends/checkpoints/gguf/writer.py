"""A Hugging Face folder as a GGUF file: F32, F16, BF16, Q8_0 or Q4_0.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sapo_backends.base import BackendError, BackendUnavailable, Progress
from sapo_backends.checkpoints import safetensors_numpy
from sapo_backends.checkpoints.gguf.vocabulary import GgufTokenizer, gguf_tokenizer
from sapo_backends.checkpoints.locate import checked, weight_files
from sapo_backends.checkpoints.spec import DecoderSpec, decoder_spec, why_not
from sapo_backends.checkpoints.tokenizer import read_json

Kind = Literal["F32", "F16", "BF16", "Q8_0", "Q4_0"]
ARCHITECTURES = {"Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3", "LlamaForCausalLM": "llama"}
FORMAT = 1
"""Counted up when the same folder would be written differently, so that cached files are made again."""
BLOCK = 32
"""Weights in a block of Q8_0 and Q4_0; rows of another length stay in F16."""


def gguf_module() -> Any:
    """The gguf package, or BackendUnavailable with the command that installs it."""
    try:
        import gguf
    except ImportError as error:
        raise BackendUnavailable("GGUF files need the package 'gguf'.", "pip install 'sapo-desktop[llama]'") from error
    return gguf


def read_spec(folder: Path) -> DecoderSpec:
    """The decoder in a folder. Raises ModelNotFound, BackendError when GGUF has no place for it here."""
    config = read_json(checked(folder) / "config.json")
    reason = why_not(config)
    if reason:
        raise BackendError(f"{folder} needs {reason}, which cannot be written as GGUF here.")
    return decoder_spec(config)


def rotary_order(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of a Llama q or k projection in GGUF's order: coordinates (i, i + d/2) of a head become neighbours.

    rows: (heads * d, ...).
    """
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


@functools.cache
def _names(architecture: str, layers: int) -> Any:
    gguf = gguf_module()
    kind = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture)
    return gguf.get_tensor_name_map(kind, layers)


def base_name(spec: DecoderSpec, name: str) -> str:
    """GGUF name of a Hugging Face tensor, suffix included. Raises BackendError for an unknown one."""
    found = _names(ARCHITECTURES[spec.architecture], spec.layers).get_name(name, try_suffixes=(".weight", ".bias"))
    if found is None:
        raise BackendError(f"The tensor {name!r} has no place in a GGUF file of {spec.architecture}.")
    return str(found)


def reordered(spec: DecoderSpec, name: str, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
    """The tensor, its rows permuted if it is a Llama q or k projection (weight, bias or LoRA B)."""
    if spec.architecture != "LlamaForCausalLM":
        return tensor
    if ".q_proj." in name:
        return rotary_order(tensor, spec.heads)
    return rotary_order(tensor, spec.kv_heads) if ".k_proj." in name else tensor


def _hyperparameters(writer: Any, spec: DecoderSpec) -> None:
    writer.add_context_length(spec.context)
    writer.add_embedding_length(spec.hidden)
    writer.add_block_count(spec.layers)
    writer.add_feed_forward_length(spec.intermediate)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_rope_dimension_count(spec.head_dim)
    writer.add_rope_freq_base(spec.rope.theta)
    writer.add_vocab_size(spec.vocabulary)
    if spec.rope.kind == "linear":
        writer.add_rope_scaling_type(gguf_module().RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(spec.rope.factor)


def _vocabulary(writer: Any, tokenizer: GgufTokenizer) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokenizer.pre or "default")
    writer.add_token_list(tokenizer.tokens)
    writer.add_token_types(tokenizer.kinds)
    writer.add_token_merges(tokenizer.merges)
    writer.add_eos_token_id(tokenizer.eos)
    writer.add_pad_token_id(tokenizer.pad)
    if tokenizer.bos is not None:
        writer.add_bos_token_id(tokenizer.bos)
    writer.add_add_bos_token(False)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def rope_divisors(spec: DecoderSpec) -> NDArray[np.float32]:
    """What llama.cpp divides each rotary frequency by (head_dim / 2,) for Llama 3's stretched wavelengths."""
    rope = spec.rope
    frequencies = 1.0 / rope.theta ** (np.arange(0, spec.head_dim, 2) / spec.head_dim)
    rotations = rope.original_context * frequencies / (2 * np.pi)
    blend = np.clip((rotations - rope.low_frequency) / (rope.high_frequency - rope.low_frequency), 0.0, 1.0)
    divisors: NDArray[np.float32] = (1.0 / (blend + (1.0 - blend) / rope.factor)).astype(np.float32)
    return divisors


def _weights(folder: Path, spec: DecoderSpec) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """(GGUF name, float32 tensor), tied heads left out."""
    if spec.rope.kind == "llama3":
        yield "rope_freqs.weight", rope_divisors(spec)
    for name, tensor in safetensors_numpy.tensors(folder):
        if name.endswith("rotary_emb.inv_freq") or (spec.tied and name == "lm_head.weight"):
            continue
        yield base_name(spec, name), reordered(spec, name, tensor)


def _type_of(tensor: NDArray[np.float32], name: str, kind: Kind) -> str:
    """Vectors stay float32. In Q4_0 the embeddings keep 8 bits: they are read by every token and suffer most."""
    if tensor.ndim == 1:
        return "F32"
    if kind in ("Q8_0", "Q4_0") and tensor.shape[-1] % BLOCK:
        return "F16"
    return "Q8_0" if kind == "Q4_0" and name in ("token_embd.weight", "output.weight") else kind


def write_gguf(
    folder: Path, target: Path, kind: Kind, *, strict: bool = True, progress: Progress | None = None
) -> None:
    """Write the model of a Hugging Face folder to `target`, which appears only when it is complete.

    strict: refuse a tokenizer that other programs would split text with differently.
    Raises ModelNotFound, BackendError, BackendUnavailable.
    """
    gguf = gguf_module()
    spec = read_spec(folder)
    tokenizer = gguf_tokenizer(folder, spec.vocabulary)
    if strict and not tokenizer.pre:
        raise BackendError(
            f"llama.cpp has no name for the way {folder} splits text, so other programs would misread it."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(suffix=".part", dir=target.parent)
    os.close(handle)
    partial = Path(name)
    try:
        writer = gguf.GGUFWriter(partial, ARCHITECTURES[spec.architecture], use_temp_file=True)
        writer.add_type("model")
        writer.add_name(folder.name)
        writer.add_file_type(gguf.LlamaFileType[{"F32": "ALL_F32"}.get(kind, f"MOSTLY_{kind}")])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        _hyperparameters(writer, spec)
        _vocabulary(writer, tokenizer)
        for done, (tensor_name, tensor) in enumerate(_weights(folder, spec)):
            stored = gguf.GGMLQuantizationType[_type_of(tensor, tensor_name, kind)]
            writer.add_tensor(tensor_name, gguf.quants.quantize(tensor, stored), raw_dtype=stored)
            if progress is not None:
                progress(min(0.99, done / (spec.layers * 12 + 3)), f"writing {kind} weights")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _fingerprint(folder: Path, kind: Kind) -> str:
    """Changes with the model's settings or its weight files (size and time: hashing gigabytes takes seconds)."""
    digest = hashlib.sha256(f"{FORMAT} {kind} {folder.resolve()}".encode())
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        digest.update((folder / name).read_bytes() if (folder / name).is_file() else b"-")
    for file in weight_files(folder):
        state = file.stat()
        digest.update(f"{file.name} {state.st_size} {state.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def cached_gguf(folder: Path, kind: Kind, cache: Path, progress: Progress | None = None) -> Path:
    """The GGUF file of a Hugging Face folder, made in the cache folder unless it is there already."""
    target = cache / f"{folder.name}-{_fingerprint(checked(folder), kind)}-{kind}.gguf"
    if not target.is_file():
        write_gguf(folder, target, kind, strict=False, progress=progress)
    return target
