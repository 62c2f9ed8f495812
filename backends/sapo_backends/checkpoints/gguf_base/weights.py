"""The weights of a GGUF file by their Hugging Face names, float32, a piece at a time: nothing is copied to the disk.

The reverse of checkpoints.gguf.writer: rows of q and k come back into Hugging Face's order, norms lose what llama.cpp added.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sapo_backends.checkpoints.gguf_base.config_json import FamilyRead, family_of
from sapo_backends.checkpoints.gguf_base.header import TENSOR_TYPES, Header, TensorEntry, read_header
from sapo_backends.checkpoints.local_models import open_file
from sapo_backends.errors import ModelNotFound

Float32 = NDArray[np.float32]
PIECE = 1 << 22
"""Weights that are dequantised at once: 16 MB of float32."""
_PLAIN = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}
_SKIPPED = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""What the config says already."""
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""A tensor of a layer in a GGUF file -> in a Hugging Face folder; _BOTH where a layer has norms before and after."""
_BOTH = {"ffn_norm": "pre_feedforward_layernorm"}
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def hf_name(header: Header, name: str) -> str | None:
    """The Hugging Face name of a tensor; None for one that the config stands for. Raises ModelNotFound for an unknown one."""
    if name in _SKIPPED:
        return None
    stem, _, suffix = name.rpartition(".")
    if suffix in ("weight", "bias"):
        if stem in _OUTSIDE:
            return f"{_OUTSIDE[stem]}.{suffix}"
        block, _, inner = stem.removeprefix("blk.").partition(".")
        known = {**_LAYER, **(_BOTH if header.architecture in ("gemma2", "gemma3") else {})}
        if header.architecture == "phi3" and inner == "ffn_up":
            return f"model.layers.{block}.mlp.gate_up_proj.{suffix}"
        if stem.startswith("blk.") and block.isdigit() and inner in known:
            return f"model.layers.{block}.{known[inner]}.{suffix}"
    raise ModelNotFound(
        f"It holds a tensor that is not known here ({name[:80]!r}), so it cannot be read as it is meant."
    )


def require_readable(path: Path, header: Header) -> None:
    """Every tensor lies within the file, none within another, and has a type that is dequantised here. Raises ModelNotFound."""
    if not header.is_whole:
        raise ModelNotFound(
            f"{path} is cut off: it has {header.size:,} bytes and its tensors need more. Download it again."
        )
    import gguf  # here and below: a machine that reads no such file does without the package

    for tensor in header.tensors:
        name, block, _ = TENSOR_TYPES.get(tensor.type, ("", 1, 0))
        if not name or (name not in _PLAIN and tensor.type not in gguf.quants._type_traits):
            shown = name or f"number {tensor.type}"
            raise ModelNotFound(
                f"{path} has weights of the type {shown}, which cannot be dequantised here. Use a file of another quantisation."
            )
        if tensor.shape[0] % block:
            raise ModelNotFound(
                f"{path} is damaged: {tensor.name[:80]!r} has rows of {tensor.shape[0]} weights. Download it again."
            )
    by_place = sorted(header.tensors, key=lambda tensor: tensor.offset)
    for before, behind in itertools.pairwise(by_place):
        if before.offset + before.bytes > behind.offset:
            raise ModelNotFound(
                f"{path} is damaged: {before.name[:80]!r} and {behind.name[:80]!r} lie in the same place. Download it again."
            )


def tensor_shape(tensor: TensorEntry) -> tuple[int, ...]:
    """As Hugging Face counts: rows first."""
    return tuple(reversed(tensor.shape))


def read_rows(data: Any, header: Header, tensor: TensorEntry, begin: int, end: int) -> Float32:
    """Rows begin to end of a tensor, (end - begin, row), as they lie in the file. data: its bytes (uint8)."""
    name, block, size = TENSOR_TYPES[tensor.type]
    width = tensor.shape[0] // block * size
    start = header.data + tensor.offset
    raw = np.asarray(data[start + begin * width : start + end * width]).reshape(end - begin, width)
    if name in _PLAIN:
        return np.frombuffer(raw.tobytes(), np.dtype(_PLAIN[name])).astype(np.float32).reshape(end - begin, -1)
    import gguf

    dequantised: Float32 = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(tensor.type))
    return dequantised


def mapped(path: Path) -> Any:
    """The file's bytes, mapped: they are read where they are used."""
    return np.memmap(path, dtype=np.uint8, mode="r")


def pieces(path: Path) -> Iterator[tuple[str, tuple[int, ...], int, Float32]]:
    """(Hugging Face name, shape, number of the first weight, float32 weights (n,)) of every tensor, a piece at a time.

    Raises ModelNotFound.
    """
    header = read_header(path)
    require_readable(path, header)
    family, data = family_of(header), mapped(path)
    for tensor in header.tensors:
        name = hf_name(header, tensor.name)
        if name is None:
            continue
        shape = tensor_shape(tensor)
        rows = prod(tensor.shape[1:])
        if _is_permuted(family, name):
            whole = _usual_order(read_rows(data, header, tensor, 0, rows), _heads(header, name), len(shape) == 1)
            yield name, shape, 0, whole.reshape(-1)
            continue
        step = max(1, PIECE // tensor.shape[0])
        for begin in range(0, rows, step):
            values = read_rows(data, header, tensor, begin, min(rows, begin + step)).reshape(-1)
            if family.offset and len(shape) == 1 and "norm" in name:
                values = values - np.float32(family.offset)
            yield name, shape, begin * tensor.shape[0], values


def shapes(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(Hugging Face name, shape) of every tensor, from the header alone. Raises ModelNotFound."""
    header = read_header(path)
    for tensor in header.tensors:
        name = hf_name(header, tensor.name)
        if name is not None:
            yield name, tensor_shape(tensor)


def tensors(path: Path) -> Iterator[tuple[str, Float32]]:
    """(Hugging Face name, float32 array) of every tensor, one at a time. Raises ModelNotFound."""
    name, parts, whole = "", list[Float32](), tuple[int, ...]()
    for label, shape, _, values in pieces(path):
        if label != name and parts:
            yield name, np.concatenate(parts).reshape(whole)
            parts = []
        name, whole = label, shape
        parts.append(values)
    if parts:
        yield name, np.concatenate(parts).reshape(whole)


def small_tensor(path: Path, header: Header, name: str) -> Float32:
    """One vector of the file by its name there. Raises ModelNotFound."""
    tensor = next((each for each in header.tensors if each.name == name), None)
    if tensor is None or len(tensor.shape) != 1 or tensor.elements > PIECE:
        raise ModelNotFound(f"{path} is damaged: {name!r} is no vector. Download it again.")
    # read, not mapped: a map counts against the memory of the child that asks (see inspection), however little is used
    with open_file(path) as file:
        file.seek(header.data + tensor.offset)
        raw = np.frombuffer(file.read(tensor.bytes), np.uint8)
    return read_rows(raw, replace(header, data=-tensor.offset), tensor, 0, 1).reshape(-1)


def _is_permuted(family: FamilyRead, name: str) -> bool:
    return family.interleaved and (".q_proj." in name or ".k_proj." in name)


def _heads(header: Header, name: str) -> int:
    heads = header.of_family("attention.head_count")
    return heads if ".q_proj." in name else header.of_family("attention.head_count_kv") or heads


def _usual_order(rows: Float32, heads: int, vector: bool) -> Float32:
    """Rows (heads * d, ...) whose neighbours llama.cpp rotates as Hugging Face has them: (i, i + d / 2) of a head."""
    flat = rows.reshape(-1) if vector else rows
    if not heads or flat.shape[0] % (2 * heads):
        raise ModelNotFound("Its projections do not fit its number of heads: the file is damaged. Download it again.")
    pairs = flat.reshape(heads, flat.shape[0] // heads // 2, 2, *flat.shape[1:])
    return pairs.swapaxes(1, 2).reshape(flat.shape)
