"""The small folder that stands in for a GGUF file: config.json and the tokenizer's files, built from the file's
metadata.

It is in the app's cache, and every reader of a Hugging Face folder works with it. The weights stay where the person
keeps them; POINTER says where. Nothing is written beside the person's file.

The file may be hostile. This process creates a folder with only POINTER in it; the child of checkpoints.inspection
reads the file within its limits, writes the rest, and inspects the result like any model's files; then the folder is
moved into place.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from sapo_backends.base import Progress
from sapo_backends.checkpoints import inspection
from sapo_backends.checkpoints.gguf_header import read_header
from sapo_backends.checkpoints.hub_cache import cache_folder
from sapo_backends.checkpoints.local_models import open_file
from sapo_backends.checkpoints.spec import largest_file
from sapo_backends.errors import ModelNotFound, size_text

POINTER = "gguf.json"
FORMAT = 3
"""Increased when the same file would be read differently."""
SAMPLE = 1 << 16


def view_folder(file: Path, progress: Progress | None = None) -> Path:
    """The folder for a GGUF file; if it does not exist yet, the inspection child makes it. Raises ModelNotFound with
    the file's name and what is wrong, and what `progress` raises."""
    try:
        file = file.expanduser().resolve(strict=True)
        state = file.stat()
        name = f"{file.name.removesuffix('.gguf')[:60]}-{_fingerprint(file, state.st_size)}"
    except (OSError, RuntimeError) as error:  # up to Python 3.12, circular links raise RuntimeError
        reason = getattr(error, "strerror", "") or str(error)
        raise ModelNotFound(f"{file} cannot be read ({reason}).") from error
    folder = cache_folder() / "gguf-bases" / name
    if not _points_to(folder, file, state):
        try:
            _make(folder, file, state, progress)
        except OSError as error:
            raise ModelNotFound(
                f"The folder for {file} cannot be made at {folder.parent} ({error.strerror or error}). "
                "Make room there, or let SAPO_HOME name another place."
            ) from error
    return folder


def _fingerprint(file: Path, size: int) -> str:
    """Identifies the content by its size and by bytes from its beginning, middle and end."""
    digest = hashlib.sha256(f"{FORMAT} {size}".encode())
    with open_file(file) as stream:
        for start in (0, size // 2, max(0, size - SAMPLE)):
            stream.seek(start)
            digest.update(stream.read(SAMPLE))
    return digest.hexdigest()[:16]


def _points_to(folder: Path, file: Path, state: os.stat_result) -> bool:
    pointer = _pointer(folder)
    return pointer == _pointing(file, state) and (folder / "tokenizer.json").is_file()


def _pointing(file: Path, state: os.stat_result) -> dict[str, Any]:
    return {"file": str(file), "bytes": state.st_size, "modified_ns": state.st_mtime_ns, "format": FORMAT}


def _pointer(folder: Path) -> dict[str, Any] | None:
    try:
        content = json.loads((folder / POINTER).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def gguf_of(folder: Path) -> Path | None:
    """The GGUF file that holds this folder's weights; None if it is an ordinary folder."""
    pointer = _pointer(folder)
    return Path(str(pointer["file"])) if pointer and "file" in pointer else None


def require_same(folder: Path, file: Path) -> None:
    """Raise ModelNotFound unless the file exists and is unchanged since the folder was made."""
    pointer = _pointer(folder) or {}
    try:
        state = file.stat()
    except OSError as error:
        raise ModelNotFound(f"{file} is not there any more. Put it back, or name where it is now.") from error
    if (state.st_size, state.st_mtime_ns) != (pointer.get("bytes"), pointer.get("modified_ns")):
        raise ModelNotFound(f"{file} was changed while it was in use. Start again.")


def _make(folder: Path, file: Path, state: os.stat_result, progress: Progress | None) -> None:
    """Raises ModelNotFound if the child does not reach its end, OSError if the cache cannot be written."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="making-", dir=folder.parent) as scratch:
        new_folder = Path(scratch) / "view"
        new_folder.mkdir()
        (new_folder / POINTER).write_text(json.dumps(_pointing(file, state)), encoding="utf-8")
        inspection.make_harmless(new_folder, file, progress)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            new_folder.replace(folder)
        except OSError:  # another process made it in the meantime
            if not _points_to(folder, file, state):
                raise


def is_to_be_made(folder: Path) -> bool:
    """Whether a folder names the file it stands for but has none of its content yet."""
    return gguf_of(folder) is not None and not (folder / "config.json").exists()


def write_view(folder: Path) -> None:
    """Make the files of a folder that is_to_be_made. Runs in the inspection child, because the file may be hostile.

    Raises ModelNotFound with the file's name and what is wrong.
    """
    file = gguf_of(folder)
    assert file is not None
    try:
        for name, content in _files(file).items():
            text = json.dumps(content)
            if len(text) > (most := largest_file(name)):  # ASCII: characters are bytes
                raise ModelNotFound(
                    f"Its {name} would have {size_text(len(text))}, and at most {size_text(most)} are read."
                )
            (folder / name).write_text(text, encoding="ascii")
    except ModelNotFound as error:
        raise ModelNotFound(str(error) if str(file) in str(error) else f"{file} cannot be used. {error}") from error


def _files(file: Path) -> dict[str, dict[str, Any]]:
    """File name -> content, for what the GGUF file says of its model and its tokenizer."""
    # imported here: every command asks whether a folder stands for a file, but few make one
    from sapo_backends.checkpoints.gguf_model import (
        config_json,
        end_tokens,
        require_readable,
        small_tensor,
        tokenizer_files,
    )

    header = read_header(file, vocabulary=True)
    if header.text("general.type") not in ("", "model"):
        raise ModelNotFound(
            f"It holds no model but {header.text('general.type')[:80]!r}. Give the model's own file as the base."
        )
    if header.number("split.count", 1) > 1:
        raise ModelNotFound(
            "It is one of several parts. Join them (llama.cpp's llama-gguf-split does), or take a whole file."
        )
    require_readable(file, header)
    config = config_json(header, lambda name: small_tensor(file, header, name))
    _require_whole(file, config)
    tokenizer, settings = tokenizer_files(header)
    ends = end_tokens(header)
    if not ends:
        raise ModelNotFound("It names no token that ends a text (tokenizer.ggml.eos_token_id). Use another file.")
    return {
        "config.json": config,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": settings,
        "generation_config.json": {"eos_token_id": ends[0] if len(ends) == 1 else ends},
    }


def _require_whole(file: Path, config: dict[str, Any]) -> None:
    """Raise ModelNotFound unless every tensor that the decoder needs is there with the right shape."""
    from sapo_backends.checkpoints.gguf_model import iter_gguf_shapes
    from sapo_backends.checkpoints.spec import decoder_spec, fused_projections

    spec = decoder_spec(config)
    have = dict(iter_gguf_shapes(file))
    wanted = {"model.embed_tokens.weight": (spec.vocabulary, spec.hidden), "model.norm.weight": (spec.hidden,)}
    if not spec.tied:
        wanted["lm_head.weight"] = (spec.vocabulary, spec.hidden)
    for layer in range(spec.layers):
        for _, columns, parts, bias in fused_projections(spec, layer):
            for module, rows in parts:
                wanted[f"{module}.weight"] = (rows, columns)
                if bias:
                    wanted[f"{module}.bias"] = (rows,)
    for name, shape in wanted.items():
        if have.get(name) != shape:
            problem = "lacks" if name not in have else f"has another shape than {shape} for"
            raise ModelNotFound(f"{file} {problem} {name}: it is damaged. Download it again.")
