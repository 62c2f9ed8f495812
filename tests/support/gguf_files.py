"""Tiny GGUF files, byte by byte, and the folders in which other programs keep them: nothing of the app's reader or writer."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

TINY = {
    "general.architecture": "qwen2",
    "general.type": "model",
    "qwen2.block_count": 2,
    "qwen2.embedding_length": 32,
    "qwen2.feed_forward_length": 64,
    "qwen2.attention.head_count": 4,
    "qwen2.attention.head_count_kv": 2,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "general.file_type": 15,
}
Q4_K = 12


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def entry(key: str, value: object) -> bytes:
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, bool):
        return text(key) + struct.pack("<I?", 7, value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    if isinstance(value, list) and value and all(isinstance(each, float) for each in value):
        return text(key) + struct.pack(f"<IIQ{len(value)}f", 9, 6, len(value), *value)
    if isinstance(value, list) and all(isinstance(each, int) for each in value):
        return text(key) + struct.pack(f"<IIQ{len(value)}I", 9, 4, len(value), *value)
    if isinstance(value, list):
        return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    return text(key) + struct.pack("<II", 4, value)


def gguf_bytes(
    values: Mapping[str, object] = TINY,
    tensors: Sequence[tuple[str, tuple[int, ...]]] = (("token_embd.weight", (256, 3)),),
) -> bytes:
    """All tensors are Q4_K: 144 bytes for 256 weights."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    head += b"".join(entry(key, value) for key, value in values.items())
    offset = 0
    for name, shape in tensors:
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, Q4_K, offset)
        offset += -(-shape[0] * shape[1] // 256 * 144 // 32) * 32
    return head + b"\0" * (-len(head) % 32) + b"\0" * offset


HIDDEN, HEADS, KV_HEADS, HEAD, WIDE, LAYERS = 32, 4, 2, 8, 64, 2
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTE_LETTERS = [chr(byte if byte in _PRINTED else 256 + byte) for byte in range(256)]
"""Letters that stand for bytes in a byte-level vocabulary, nearly GPT-2's: each byte has one."""


def whole_values(family: str) -> dict[str, object]:
    """What a complete tiny model of qwen2 (byte-level), llama or gemma3 (SentencePiece), or phi3 (longrope) says of itself."""
    spoken = family in ("llama", "gemma3", "phi3")
    control = ["<unk>", "<s>", "</s>"] if spoken else ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = [f"<0x{byte:02X}>" for byte in range(256)] if spoken else BYTE_LETTERS
    words = ["▁", *"abcdehlo", "▁a", "he", "ll", "hello"] if spoken else ["he", "ll", "hell", "hello"]
    kinds = [2 if token == "<unk>" else 3 for token in control] + [6 if spoken else 1] * 256 + [1] * len(words)
    sizes = {
        "general.architecture": family,
        "general.name": "tiny",
        "general.alignment": 32,
        f"{family}.context_length": 256,
        f"{family}.block_count": LAYERS,
        f"{family}.embedding_length": HIDDEN,
        f"{family}.feed_forward_length": WIDE,
        f"{family}.attention.head_count": HEADS,
        f"{family}.attention.head_count_kv": KV_HEADS,
        f"{family}.attention.key_length": HEAD,
        f"{family}.attention.value_length": HEAD,
        f"{family}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{family}.rope.freq_base": 10_000.0,
        f"{family}.rope.dimension_count": HEAD,
        f"{family}.rope.scaling.type": "none",
        "tokenizer.ggml.model": "llama" if spoken else "gpt2",
        "tokenizer.ggml.pre": "default" if spoken else "qwen2",
        "tokenizer.ggml.tokens": [*control, *letters, *words],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": spoken,
        "tokenizer.chat_template": TEMPLATE,
        "general.file_type": 0,
    }
    if spoken:
        sizes["tokenizer.ggml.scores"] = [-float(number) for number in range(len(kinds))]
    else:
        sizes["tokenizer.ggml.merges"] = ["h e", "l l", "he ll", "hell o"]
    if family == "gemma3":
        sizes[f"{family}.attention.sliding_window"] = 64
    if family == "phi3":
        sizes |= {f"{family}.rope.scaling.original_context_length": 128, f"{family}.rope.scaling.attn_factor": 1.5}
    return sizes


def whole_tensors(family: str, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Tensors of a complete tiny model, their shapes as ggml counts."""
    query, keys = HEADS * HEAD, KV_HEADS * HEAD
    listed: dict[str, tuple[int, ...]] = {"token_embd.weight": (HIDDEN, vocabulary), "output_norm.weight": (HIDDEN,)}
    if family == "llama":
        listed["rope_freqs.weight"] = (HEAD // 2,)
    if family == "phi3":
        listed |= {f"rope_factors_{kind}.weight": (HEAD // 2,) for kind in ("short", "long")}
        listed["output.weight"] = (HIDDEN, vocabulary)
    for layer in range(LAYERS):
        parts = {
            "attn_norm": (HIDDEN,),
            "ffn_norm": (HIDDEN,),
            "attn_output": (query, HIDDEN),
            "ffn_down": (WIDE, HIDDEN),
        }
        if family == "phi3":
            parts |= {"attn_qkv": (HIDDEN, query + 2 * keys), "ffn_up": (HIDDEN, 2 * WIDE)}
        else:
            parts |= {"attn_q": (HIDDEN, query), "attn_k": (HIDDEN, keys), "attn_v": (HIDDEN, keys)}
            parts |= {"ffn_gate": (HIDDEN, WIDE), "ffn_up": (HIDDEN, WIDE)}
        if family == "gemma3":
            parts |= {"post_attention_norm": (HIDDEN,), "post_ffw_norm": (HIDDEN,)}
            parts |= {"attn_q_norm": (HEAD,), "attn_k_norm": (HEAD,)}
        listed |= {f"blk.{layer}.{name}.weight": shape for name, shape in parts.items()}
        if family == "qwen2":
            listed |= {f"blk.{layer}.attn_{name}.bias": (query if name == "q" else keys,) for name in "qkv"}
    return listed


def whole_model(family: str = "qwen2") -> bytes:
    """A complete tiny model of random weights, all F32: every reader takes it."""
    rng, values = random.Random(family), whole_values(family)
    tokens = values["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    tensors, data = whole_tensors(family, len(tokens)), b""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    head += b"".join(entry(key, value) for key, value in values.items())
    for name, shape in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        plain = "norm" in name or "rope" in name
        weights = [1.0 if plain else rng.gauss(0.0, 0.1) for _ in range(prod(shape))]
        data += struct.pack(f"<{len(weights)}f", *weights) + b"\0" * (-4 * len(weights) % 32)
    return head + b"\0" * (-len(head) % 32) + data


def of_family(architecture: str, **more: object) -> bytes:
    """A file of another family."""
    renamed = {key.replace("qwen2.", f"{architecture}."): value for key, value in TINY.items()}
    extra = {key.replace("__", "."): value for key, value in more.items()}
    return gguf_bytes(renamed | {"general.architecture": architecture} | extra)


def placed(path: Path, content: bytes = b"") -> Path:
    """A file with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content or gguf_bytes())
    return path


def pulled(root: Path, name: str, content: bytes = b"", layers: Sequence[tuple[str, str]] = ()) -> Path:
    """A model of Ollama's: its blob, named by the digest, and its manifest under HOST/NAMESPACE/NAME/TAG. The blob's path."""
    content = content or gguf_bytes()
    digest = hashlib.sha256(content).hexdigest()
    parts = [("application/vnd.ollama.image.model", f"sha256:{digest}"), *layers]
    manifest = {
        "schemaVersion": 2,
        "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": f"sha256:{'0' * 64}"},
        "layers": [{"mediaType": kind, "digest": hashed, "size": len(content)} for kind, hashed in parts],
    }
    placed(root / "manifests" / name, json.dumps(manifest).encode())
    return placed(root / "blobs" / f"sha256-{digest}", content)


PIECES = [
    *"  \n\t\r07Aé你😀<>|",
    "  ",
    "\r\n",
    "\n\n",
    "e\u0301",
    "👨‍👩‍👧",
    "١٢",
    " don't",
    "<|im_end|>",
    "<0x0A>",
    "qwertz" * 40,
]
"""Of texts that splitting is hard for."""


def nasty_texts(count: int) -> Iterator[str]:
    """Of pieces that splitting is hard for, and of any characters."""
    rng = random.Random(0)
    planes = [(1, 0x7E), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF)]
    for number in range(count):
        if number % 2:
            yield "".join(rng.choices(PIECES, k=rng.randrange(1, 30)))
        else:
            yield "".join(chr(rng.randint(*rng.choice(planes))) for _ in range(rng.randrange(1, 30)))
