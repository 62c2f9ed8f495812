"""A Hugging Face folder or a LoRA adapter as a GGUF file: names, vocabulary and quantised weights as llama.cpp reads them."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sapo_backends.base import Progress
from sapo_backends.checkpoints import safetensors_numpy
from sapo_backends.checkpoints.chat_template import source_of
from sapo_backends.checkpoints.gguf_model import PRE_TOKENIZER, spelled_vocabulary
from sapo_backends.checkpoints.gguf_view import gguf_of
from sapo_backends.checkpoints.locate import validate_model_folder, weight_files
from sapo_backends.checkpoints.spec import DecoderSpec, decoder_spec, fused_projections, why_not
from sapo_backends.checkpoints.tokenizer import HfTokenizer, Json, read_json
from sapo_backends.checkpoints.write_folder import QUANTISED
from sapo_backends.errors import BackendError, BackendUnavailable
from sapo_backends.packages import install_command

# llama.cpp's name for each family and the settings it needs.


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """name: llama.cpp's architecture. interleaved: it rotates neighbouring coordinates, so rows of q and k are
    permuted. windowed: every n-th layer has full attention where the others have a window; 0 if llama.cpp computes no
    window for the family."""

    name: str
    interleaved: bool = False
    windowed: int = 0


FORMS = {
    "Qwen2ForCausalLM": GgufArchitecture("qwen2"),
    "Qwen3ForCausalLM": GgufArchitecture("qwen3"),
    "LlamaForCausalLM": GgufArchitecture("llama", interleaved=True),
    "MistralForCausalLM": GgufArchitecture("llama", interleaved=True),
    "Phi3ForCausalLM": GgufArchitecture("phi3"),
    "SmolLM3ForCausalLM": GgufArchitecture("smollm3", interleaved=True),
    "GraniteForCausalLM": GgufArchitecture("granite", interleaved=True),
    "Olmo2ForCausalLM": GgufArchitecture("olmo2"),
    "Olmo3ForCausalLM": GgufArchitecture("olmo2", windowed=4),
    "GemmaForCausalLM": GgufArchitecture("gemma"),
    "Gemma2ForCausalLM": GgufArchitecture("gemma2", windowed=2),
    "Gemma3ForCausalLM": GgufArchitecture("gemma3", windowed=6),
}
"""Architecture -> its form in a GGUF file."""
NOPE_STEP = 4
"""Every n-th layer of SmolLM3 has no rotation; llama.cpp supports no other number."""


def _usual_windows(spec: DecoderSpec) -> tuple[bool, ...]:
    """The layers that llama.cpp gives a window."""
    every = FORMS[spec.architecture].windowed
    return tuple((layer + 1) % every != 0 for layer in range(spec.layers))


def why_not_gguf(spec: DecoderSpec) -> str:
    """Why llama.cpp cannot compute the decoder that the spec describes; empty if it can."""
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
    """The longest text that llama.cpp computes correctly: at most the window, if it does not support the window."""
    known = FORMS[spec.architecture].windowed or not spec.window
    return spec.context if known else min(spec.context, spec.window)


def write_form(writer: Any, spec: DecoderSpec) -> None:
    """Write what a family's layers need besides widths."""
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


# A `tokenizer.json` in the terms of a GGUF file: tokens, their kinds, and how text is split into them.
#
# Our own llama.cpp engine passes ids and never uses this; other programs that open an exported file do.

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""llama_token_type."""
SPACE = "▁"
"""SentencePiece's space."""
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE, _ENDING = r"[^\r\n\p{L}\p{N}]?", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT4O = rf"{_BEFORE}{_UPPER}*{_LOWER}+{_ENDING}|{_BEFORE}{_UPPER}+{_LOWER}*{_ENDING}|\p{{N}}{{1,3}}{_REST}"
_NAMES = {
    _QWEN2: ("qwen2", ""),
    _QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1): ("dbrx", "llama-bpe"),
    _GPT4O: ("gpt-4o", ""),
    _GPT4O.replace(_ENDING, "").replace("{1,3}", ""): ("", "tekken"),
}
"""Splitting patterns of tokenizer files -> llama.cpp's names: for words that are merged, and for words that stay whole
if they are tokens (ignore_merges). For the last two, of Phi-4-mini and Mistral Nemo, llama.cpp's own patterns do not
count combining marks as letters."""


@dataclass(frozen=True, slots=True)
class ByteLevel:
    """merges: pairs of tokens in the order in which they are joined. pre: llama.cpp's name for the pre-tokenizer, "" if
    it has none."""

    merges: list[str]
    pre: str


@dataclass(frozen=True, slots=True)
class SentencePiece:
    """What is joined first has the highest score. opens_with_space: a space is inserted before text that begins or
    follows a control token; None if text is split in a way that llama.cpp's SentencePiece does not support."""

    scores: list[float]
    opens_with_space: bool | None


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """adds_bos: every text begins with bos, not only where the chat template writes it. eats_space: control tokens
    absorb the white space after them, as Phi-3's do."""

    tokens: list[str]
    kinds: list[int]
    way: ByteLevel | SentencePiece
    eos: int
    pad: int
    bos: int | None
    adds_bos: bool
    eats_space: bool
    chat_template: str

    @property
    def is_known(self) -> bool:
        """Whether llama.cpp splits text as the tokenizer file says."""
        return bool(self.way.pre) if isinstance(self.way, ByteLevel) else self.way.opens_with_space is not None


def _steps(part: Json | None, name: str = "pretokenizers") -> list[Json]:
    if not part:
        return []
    return list(part.get(name, [])) if part.get("type") == "Sequence" else [part]


def pre_tokenizer(pre: Json | None, whole_words: bool) -> str:
    """llama.cpp's name for the pre_tokenizer and ignore_merges entries of a tokenizer.json; "" if it has none."""
    steps = _steps(pre)
    patterns = [step.get("pattern", {}).get("Regex", "") for step in steps if step.get("type") == "Split"]
    if patterns:
        return _NAMES.get(patterns[0], ("", ""))[whole_words] if len(patterns) == 1 else ""
    if whole_words:
        return ""
    kinds = [step.get("type") for step in steps]
    if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits"):
        return "smollm"
    return "gpt-2" if kinds == ["ByteLevel"] and steps[0].get("use_regex", True) else ""


def _merges(pairs: Iterable[Any]) -> list[str]:
    """Merges as "a b": newer files write ["a", "b"], older ones "a b"."""
    return [pair if isinstance(pair, str) else " ".join(pair) for pair in pairs]


def _opens_with_space(data: Json, chat: bool) -> bool | None:
    """See SentencePiece. chat: whether texts begin with a chat template's control token."""
    changes = _steps(data.get("normalizer"), "normalizers")
    splits = [step for step in _steps(data.get("pre_tokenizer")) if step.get("pattern") != {"String": " "}]
    if not changes and len(splits) == 1 and splits[0].get("type") == "Metaspace" and splits[0].get("split") is False:
        return {"always": True, "never": False, "first": not chat}.get(splits[0].get("prepend_scheme", ""))
    *before, last = changes or [{}]
    prepended = [{"type": "Prepend", "prepend": SPACE}]
    if (
        splits
        or last != {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
        or before not in ([], prepended)
    ):
        return None
    return before == prepended


def _scores(model: Json, tokens: list[str]) -> list[float]:
    """A score per token: the earlier a merge makes it, the higher. Tokens that no merge makes come last."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(model["merges"]):
        ranks.setdefault("".join(pair) if not isinstance(pair, str) else pair.replace(" ", ""), rank)
    return [-float(ranks.get(token, len(model["merges"]))) for token in tokens]


def gguf_tokenizer(folder: Path, vocabulary: int) -> GgufTokenizer:
    """Read a folder's tokenizer, padded with unused tokens to the model's vocabulary.

    Raises BackendError unless it is BPE (the only kind written here).
    """
    data, settings = read_json(folder / "tokenizer.json"), read_json(folder / "tokenizer_config.json")
    model = data.get("model", {})
    if model.get("type") != "BPE":
        raise BackendError(f"{folder} has no BPE tokenizer; only those can be written as GGUF.")
    if gguf_of(folder) is not None:
        model = spelled_vocabulary(model, vocabulary)
    pieces, ours = bool(model.get("byte_fallback")), HfTokenizer(folder)
    added = data.get("added_tokens", [])
    if max(model["vocab"].values(), default=0) >= vocabulary:
        raise BackendError(
            f"{folder} has {vocabulary} embeddings, fewer than its tokenizer has tokens. Download it again."
        )
    tokens = [f"[PAD{i}]" for i in range(vocabulary)]
    kinds = [UNUSED] * vocabulary
    for text, i in model["vocab"].items():
        tokens[i], kinds[i] = text, BYTE if pieces and _BYTE.fullmatch(text) else NORMAL
    for token in added:
        i, text = int(token["id"]), token["content"]
        if i < vocabulary:
            special = token.get("special") or i in ours.eos_ids
            # llama.cpp looks for the added tokens before it writes spaces as SentencePiece does
            tokens[i] = text.replace(SPACE, " ") if pieces and not special and token.get("normalized") else text
            kinds[i] = CONTROL if special else USER_DEFINED
    if pieces and model.get("unk_token") in model["vocab"]:
        kinds[model["vocab"][model["unk_token"]]] = UNKNOWN
    bos = settings.get("bos_token")
    bos = bos.get("content") if isinstance(bos, dict) else bos
    template = source_of(folder, settings, otherwise="")
    return GgufTokenizer(
        tokens=tokens,
        kinds=kinds,
        way=SentencePiece(_scores(model, tokens), _opens_with_space(data, bool(template)))
        if pieces
        # llama.cpp wants at least one merge; control tokens never take part in one.
        else ByteLevel(
            _merges(model["merges"]) or [f"{tokens[ours.eot_id]} {tokens[ours.eot_id]}"],
            settings.get(PRE_TOKENIZER) or pre_tokenizer(data.get("pre_tokenizer"), bool(model.get("ignore_merges"))),
        ),
        eos=ours.eot_id,
        pad=ours.pad_id,
        bos=ours.opening[0] if ours.opening else tokens.index(bos) if bos in tokens else None,
        adds_bos=len(ours.opening) == 1,
        eats_space=any(token.get("rstrip") for token in added),
        chat_template=template,
    )


# A Hugging Face folder as a GGUF file: F32, F16, BF16, Q8_0 or Q4_0.
#
# Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

Kind = Literal["F32", "F16", "BF16", "Q8_0", "Q4_0"]
FORMAT = 3
"""Increased when the same folder would be written differently, so that cached files are made again."""
_PHI3 = re.compile("phi-?3", re.IGNORECASE)
_PHI3_TOKENS = frozenset({"<unk>", "<s>", "</s>", "<|endoftext|>"})
BLOCK = 32
"""Weights in a block of Q8_0 and Q4_0; tensors whose rows are not multiples of it stay in F16."""


def gguf_module() -> Any:
    """The gguf package. Raises BackendUnavailable with the command that installs it."""
    try:
        import gguf
    except ImportError as error:
        raise BackendUnavailable("GGUF files need the package 'gguf'.", install_command("gguf")) from error
    return gguf


def read_spec(folder: Path) -> DecoderSpec:
    """The decoder in a folder. Raises ModelNotFound, or BackendError if it cannot be written as GGUF here."""
    config = read_json(validate_model_folder(folder) / "config.json")
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
    gguf_name = _names(FORMS[spec.architecture].name, spec.layers).get_name(name, try_suffixes=(".weight", ".bias"))
    if gguf_name is None:
        raise BackendError(f"The tensor {name!r} has no place in a GGUF file of {spec.architecture}.")
    return str(gguf_name)


def convert_for_llamacpp(spec: DecoderSpec, name: str, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
    """The tensor as llama.cpp wants it: rows of q and k projections (weight, bias or LoRA B) permuted where it rotates
    neighbours; a norm's weight with 1 added where the model stores the difference from 1."""
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
    """Whether a GGUF file has no place for the tensor: what llama.cpp computes itself, and the head of tied embeddings."""
    return name.endswith("rotary_emb.inv_freq") or (spec.tied and name == "lm_head.weight")


def _shapes(folder: Path, spec: DecoderSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(GGUF name, shape) in the order of `_weights`."""
    yield from ((name, divisors.shape) for name, divisors in rope_divisors(spec))
    for name, shape in safetensors_numpy.iter_tensor_shapes(folder):
        if not _skipped(spec, name):
            yield base_name(spec, name), shape


def _weights(folder: Path, spec: DecoderSpec) -> Iterator[NDArray[np.float32]]:
    """The float32 tensors in the order of `_shapes`."""
    yield from (divisors for _, divisors in rope_divisors(spec))
    for name, tensor in safetensors_numpy.iter_tensors(folder):
        if not _skipped(spec, name):
            yield convert_for_llamacpp(spec, name, tensor)


def _type_of(shape: tuple[int, ...], name: str, kind: Kind) -> str:
    """Vectors stay float32. In Q4_0 the embeddings keep 8 bits: every token reads them, and they suffer most from
    quantisation."""
    if len(shape) == 1:
        return "F32"
    if kind in ("Q8_0", "Q4_0") and shape[-1] % BLOCK:
        return "F16"
    return "Q8_0" if kind == "Q4_0" and name in ("token_embd.weight", "output.weight") else kind


def _write_tensors(writer: Any, folder: Path, spec: DecoderSpec, kind: Kind, progress: Progress | None) -> None:
    """Write the table of tensors, then one tensor after another: never more than one of them is in memory."""
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
    config = {
        key: value
        for key, value in read_json(validate_model_folder(folder) / "config.json").items()
        if key not in QUANTISED
    }
    reason = why_not(config) or why_not_gguf(decoder_spec(config))
    if reason:
        raise BackendError(f"{folder} needs {reason}, which cannot be written as GGUF here. Use another format.")
    _require_known(gguf_tokenizer(folder, decoder_spec(config).vocabulary), folder)


def _tokenizer(folder: Path, spec: DecoderSpec, strict: bool) -> GgufTokenizer | None:
    """See write_gguf. None if the file is for our own engine, which passes ids, and the vocabulary cannot be written."""
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
    """The model name in the file. Only for models whose name contains Phi-3 does llama.cpp expect certain tokens and
    absorb the white space after control tokens."""
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

    The stem of `target` is the name that other programs show. strict: refuse a tokenizer that other programs would
    split text with differently. progress may raise to stop: nothing is left behind. Raises ModelNotFound,
    BackendError, BackendUnavailable.
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
    target = cache / f"{folder.name}-{_fingerprint(validate_model_folder(folder), kind)}-{kind}.gguf"
    if not target.is_file():
        write_gguf(folder, target, kind, strict=False, progress=progress)
    return target


# A LoRA adapter in PEFT's names as a GGUF adapter file.

PREFIX = "base_model.model."
_SIDES = {".lora_A.weight": ".lora_a", ".lora_B.weight": ".lora_b"}


def adapter_targets(spec: DecoderSpec) -> list[tuple[str, int, int]]:
    """(module, input width, output width) of every linear layer that an adapter may change."""
    return [
        (module, columns, rows)
        for layer in range(spec.layers)
        for _, columns, parts, _ in fused_projections(spec, layer)
        for module, rows in parts
    ]


def zero_adapter(spec: DecoderSpec, rank: int) -> dict[str, NDArray[np.float32]]:
    """An adapter with all targets that changes nothing, in PEFT's names."""
    tensors: dict[str, NDArray[np.float32]] = {}
    for module, columns, rows in adapter_targets(spec):
        tensors[f"{PREFIX}{module}.lora_A.weight"] = np.zeros((rank, columns), np.float32)
        tensors[f"{PREFIX}{module}.lora_B.weight"] = np.zeros((rows, rank), np.float32)
    return tensors


def split_adapter_name(name: str) -> tuple[str, str]:
    """PEFT name -> (Hugging Face weight name, GGUF suffix)."""
    for ending, suffix in _SIDES.items():
        if name.startswith(PREFIX) and name.endswith(ending):
            return name[len(PREFIX) : -len(ending)] + ".weight", suffix
    raise BackendError(f"{name!r} is no LoRA tensor of a linear layer, so it cannot be written as GGUF.")


def write_adapter(spec: DecoderSpec, tensors: Mapping[str, object], alpha: float, target: Path) -> None:
    """Write lora_a (rank, in) and lora_b (out, rank) of each target. The effect is alpha / rank * B A.

    Raises BackendError for tensors other than the LoRA of linear layers (adapters on embeddings are not supported).
    """
    writer = gguf_module().GGUFWriter(target, FORMS[spec.architecture].name)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, value in tensors.items():
        weight, suffix = split_adapter_name(name)
        tensor = np.ascontiguousarray(value, dtype=np.float32)
        if suffix == ".lora_b":
            tensor = convert_for_llamacpp(spec, weight, tensor)
        writer.add_tensor(base_name(spec, weight) + suffix, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
