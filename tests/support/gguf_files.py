"""Tiny GGUF files, byte by byte, and the folders in which other programs keep them: nothing of the app's reader or writer."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
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
