"""A Hugging Face folder as a GGUF file: F32, F16, BF16, Q8_0 or Q4_0.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sapo_backends.base import BackendError, BackendUnavailable, Progress
from sapo_backends.checkpoints import safetensors_numpy
from sapo_backends.checkpoints.gguf.forms import FORMS, context_length, rope_divisors, why_not_gguf, write_form
from sapo_backends.checkpoints.gguf.vocabulary import UNKNOWN, ByteLevel, GgufTokenizer, gguf_tokenizer
from sapo_backends.checkpoints.hf_folder import QUANTISED
from sapo_backends.checkpoints.locate import checked, weight_files
from sapo_backends.checkpoints.spec import DecoderSpec, decoder_spec, why_not
from sapo_backends.checkpoints.tokenizer import read_json
from sapo_backends.packages import install

Kind = Literal["F32", "F16", "BF16", "Q8_0", "Q4_0"]
FORMAT = 3
"""Counted up when the same folder would be written differently, so that cached files are made again."""
_PHI3 = re.compile("phi-?3", re.IGNORECASE)
_PHI3_TOKENS = frozenset({"<unk>", "<s>", "</s>", "<|endoftext|>"})
BLOCK = 32
"""Weights in a block of Q8_0 and Q4_0; rows of another length stay in F16."""


def gguf_module() -> Any:
    """The gguf package, or BackendUnavailable with the command that installs it."""
    try:
        import gguf
    except ImportError as error:
        raise BackendUnavailable("GGUF files need the package 'gguf'.", install("gguf")) from error
    return gguf


def read_spec(folder: Path) -> DecoderSpec:
    """The decoder in a folder. Raises ModelNotFound, BackendError when GGUF has no place for it here."""
    config = read_json(checked(folder) / "config.json")
    reason = why_not(config) or why_not_gguf(decoder_spec(config))
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
    found = _names(FORMS[spec.architecture].name, spec.layers).get_name(name, try_suffixes=(".weight", ".bias"))
    if found is None:
        raise BackendError(f"The tensor {name!r} has no place in a GGUF file of {spec.architecture}.")
    return str(found)


def reordered(spec: DecoderSpec, name: str, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
    """The tensor as llama.cpp wants it: rows of q and k projections (weight, bias or LoRA B) permuted where it rotates
    neighbours, a norm's weight whole where the model stores what is added to 1."""
    if spec.norm_offset and tensor.ndim == 1 and "norm" in name:
        return tensor + np.float32(spec.norm_offset)
    if not FORMS[spec.architecture].interleaved:
        return tensor
    if ".q_proj." in name:
        return rotary_order(tensor, spec.heads)
    return rotary_order(tensor, spec.kv_heads) if ".k_proj." in name else tensor


def _hyperparameters(writer: Any, spec: DecoderSpec) -> None:
    write_form(writer, spec)
    writer.add_context_length(context_length(spec))
    writer.add_embedding_length(spec.hidden)
    writer.add_block_count(spec.layers)
    writer.add_feed_forward_length(spec.intermediate)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_rope_dimension_count(spec.rotary)
    writer.add_rope_freq_base(spec.rope.theta)
    writer.add_vocab_size(spec.vocabulary)
    if spec.rope.kind == "longrope":
        writer.add_rope_scaling_orig_ctx_len(spec.rope.original_context)
        writer.add_rope_scaling_attn_factors(spec.rope.attention)
    if spec.rope.kind == "linear":
        writer.add_rope_scaling_type(gguf_module().RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(spec.rope.factor)


def _vocabulary(writer: Any, tokenizer: GgufTokenizer) -> None:
    way = tokenizer.way
    if isinstance(way, ByteLevel):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(way.pre or "default")
        writer.add_token_merges(way.merges)
    else:
        writer.add_tokenizer_model("llama")
        writer.add_token_scores(way.scores)
        writer.add_add_space_prefix(bool(way.opens_with_space))
        if UNKNOWN in tokenizer.kinds:
            writer.add_unk_token_id(tokenizer.kinds.index(UNKNOWN))
    writer.add_token_list(tokenizer.tokens)
    writer.add_token_types(tokenizer.kinds)
    writer.add_eos_token_id(tokenizer.eos)
    writer.add_pad_token_id(tokenizer.pad)
    if tokenizer.bos is not None:
        writer.add_bos_token_id(tokenizer.bos)
    writer.add_add_bos_token(tokenizer.adds_bos)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def _skipped(spec: DecoderSpec, name: str) -> bool:
    """Tensors that a GGUF file has no place for: what llama.cpp computes itself, and the head of tied embeddings."""
    return name.endswith("rotary_emb.inv_freq") or (spec.tied and name == "lm_head.weight")


def _shapes(folder: Path, spec: DecoderSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(GGUF name, shape) in the order of `_weights`."""
    yield from ((name, divisors.shape) for name, divisors in rope_divisors(spec))
    for name, shape in safetensors_numpy.shapes(folder):
        if not _skipped(spec, name):
            yield base_name(spec, name), shape


def _weights(folder: Path, spec: DecoderSpec) -> Iterator[NDArray[np.float32]]:
    """The float32 tensors in the order of `_shapes`."""
    yield from (divisors for _, divisors in rope_divisors(spec))
    for name, tensor in safetensors_numpy.tensors(folder):
        if not _skipped(spec, name):
            yield reordered(spec, name, tensor)


def _type_of(shape: tuple[int, ...], name: str, kind: Kind) -> str:
    """Vectors stay float32. In Q4_0 the embeddings keep 8 bits: they are read by every token and suffer most."""
    if len(shape) == 1:
        return "F32"
    if kind in ("Q8_0", "Q4_0") and shape[-1] % BLOCK:
        return "F16"
    return "Q8_0" if kind == "Q4_0" and name in ("token_embd.weight", "output.weight") else kind


def _write_tensors(writer: Any, folder: Path, spec: DecoderSpec, kind: Kind, progress: Progress | None) -> None:
    """The table of tensors, then one tensor after another: never more than one of them is in memory."""
    gguf = gguf_module()
    stored = []
    for name, shape in _shapes(folder, spec):
        stored.append(gguf.GGMLQuantizationType[_type_of(shape, name, kind)])
        block, size = gguf.GGML_QUANT_SIZES[stored[-1]]
        writer.add_tensor_info(name, shape, np.dtype(np.float32), prod(shape) // block * size, raw_dtype=stored[-1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for done, (tensor, quantisation) in enumerate(zip(_weights(folder, spec), stored, strict=True)):
        if progress is not None:
            progress(done / len(stored), f"writing {kind} weights")
        writer.write_tensor_data(gguf.quants.quantize(tensor, quantisation))


def require_writable(folder: Path) -> None:
    """Raise BackendUnavailable, BackendError or ModelNotFound if a model trained from this folder cannot become GGUF."""
    gguf_module()
    config = {key: value for key, value in read_json(checked(folder) / "config.json").items() if key not in QUANTISED}
    reason = why_not(config) or why_not_gguf(decoder_spec(config))
    if reason:
        raise BackendError(f"{folder} needs {reason}, which cannot be written as GGUF here. Use another format.")
    _require_known(gguf_tokenizer(folder, decoder_spec(config).vocabulary), folder)


def _tokenizer(folder: Path, spec: DecoderSpec, strict: bool) -> GgufTokenizer | None:
    """See write_gguf; None where the file is for our own engine, which passes ids, and has no place for the vocabulary."""
    try:
        tokenizer = gguf_tokenizer(folder, spec.vocabulary)
    except BackendError:
        if strict:
            raise
        return None
    if strict:
        _require_known(tokenizer, folder)
    return tokenizer


def shown_name(name: str, tokenizer: GgufTokenizer) -> str:
    """The name in the file. llama.cpp expects certain tokens of what is called Phi-3, and takes the white space behind
    control tokens along there and nowhere else."""
    if tokenizer.eats_space and _PHI3_TOKENS.issubset(tokenizer.tokens):
        return name if _PHI3.search(name) else f"Phi-3 {name}"
    return _PHI3.sub("Phi 3", name)


def _require_known(tokenizer: GgufTokenizer, folder: Path) -> None:
    if not tokenizer.is_known:
        raise BackendError(
            f"llama.cpp has no name for the way {folder} splits text, so other programs would misread it."
        )


def write_gguf(
    folder: Path,
    target: Path,
    kind: Kind,
    *,
    strict: bool = True,
    progress: Progress | None = None,
) -> None:
    """Write the model of a Hugging Face folder to `target`, which appears only when it is complete.

    Its stem is the name that other programs show. strict: refuse a tokenizer that other programs would split text with
    differently. progress may raise to stop: nothing is left behind.
    Raises ModelNotFound, BackendError, BackendUnavailable.
    """
    gguf = gguf_module()
    spec = read_spec(folder)
    if not strict:  # llama.cpp counts the context of all rows together, and would take them for long texts
        spec = replace(spec, ropes=tuple(replace(rope, long_factors=rope.factors) for rope in spec.ropes))
    tokenizer = _tokenizer(folder, spec, strict)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(suffix=".part", dir=target.parent)
    os.close(handle)
    partial = Path(temporary)
    writer = gguf.GGUFWriter(partial, FORMS[spec.architecture].name)
    try:
        writer.add_type("model")
        if strict and tokenizer is not None:
            writer.add_name(shown_name(target.stem, tokenizer))
        writer.add_file_type(gguf.LlamaFileType[{"F32": "ALL_F32"}.get(kind, f"MOSTLY_{kind}")])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        _hyperparameters(writer, spec)
        if tokenizer is None:
            writer.add_tokenizer_model("no_vocab")
        else:
            _vocabulary(writer, tokenizer)
        _write_tensors(writer, folder, spec, kind, progress)
        writer.close()
        with partial.open("rb+") as written:
            os.fsync(written.fileno())
        partial.replace(target)
    finally:
        writer.close()  # harmless to repeat; an open file cannot be removed on every system
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
