"""A foreign model's files are read in a child process before this one reads them.

A tokenizer, a chat template and a header come from strangers, and native code reads them: it may take gigabytes, run for ever,
or end the process. The child has a memory cap and a limit of processor time where the platform has them, and a deadline. It
reads all that the app reads of a model but its weights, encodes texts, and renders conversations. What it says is forgotten but
for one thing: whether it came to its end. A file that is damaged in a way this process puts in words by itself is left to it;
of a GGUF file, whose small files the child makes first (see gguf_base.view), its sentence is passed on. A good result is
remembered in the app's cache under what the files hold, so that a start pays once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO

from sapo_backends.base import Progress
from sapo_backends.cache_folder import cache_folder
from sapo_backends.errors import ModelNotFound, size_text

_CHILD = "sapo_backends.checkpoints.inspection_child"
SWITCH = "--inspect-model"
"""How a frozen app starts the child: it has no interpreter for modules (see sapo_desktop.__main__)."""
MEMORY_BYTES = 1_900_000_000
"""Of address space. A tokenizer of 33 MB (Gemma's, 262,144 tokens) takes 0.7 GB of it."""
PROCESSOR_S = 12
MAKING_S = 30
"""Of processor time where it makes the files of a GGUF file first. Gemma's take 5 s of it altogether."""
DEADLINE_S = 60.0
"""By the wall's clock: other programs may leave the child a small part of a core."""
DEADLINE_ALONE_S = 18.0
"""Where no limit of processor time can be set."""
REFUSED = "refused: "
"""What stands before a sentence of the child for a person."""
LOOK_S = 0.2
"""How often whoever waits is asked whether to go on."""
VERSION = 1
"""Of what is looked at: remembered results of another one count for nothing."""
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
HEADER = 1 << 16
"""Bytes of each file of weights that its identity is made of: their beginning, with the file's length."""


def require_harmless(folder: Path, weights: Sequence[Path], trusted: Iterable[Path]) -> None:
    """Returns at once for a folder whose tokenizer ships with the app or which was inspected before. weights: its files of
    weights; trusted: folders that ship with the app. Raises ModelNotFound where the child did not come to its end."""
    if not (folder / "tokenizer.json").is_file():
        return
    files = (*(folder / name for name in FILES if (folder / name).is_file()), *weights)
    state = tuple((s.st_size, s.st_mtime_ns, s.st_ino) for s in (file.stat() for file in files))
    _inspected(folder, files, tuple(trusted), state)


@lru_cache(maxsize=256)
def _inspected(
    folder: Path, files: tuple[Path, ...], trusted: tuple[Path, ...], _state: tuple[tuple[int, int, int], ...]
) -> None:
    """Once a process for what lies in a folder; an error is not remembered."""
    name = _content_id(files)
    mark = cache_folder() / "inspected" / name
    if name in _GOOD or _tokenizer_of(folder) in map(_tokenizer_of, trusted) or mark.is_file():
        return
    _run_child(folder)
    _remember(name)


def make_harmless(folder: Path, gguf: Path, progress: Progress | None = None) -> None:
    """Let the child make the small files of a GGUF file in a folder that says where it is, and inspect them. What it said of
    them is remembered. Raises ModelNotFound with the file's name, OSError, and what `progress` raises, which ends the child."""
    _run_child(folder, gguf, progress)
    _remember(_content_id([*(folder / name for name in FILES if (folder / name).is_file()), gguf]))


def _remember(name: str) -> None:
    mark = cache_folder() / "inspected" / name
    _GOOD.add(name)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs a second, no model
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


_GOOD: set[str] = set()
"""Contents that this process had inspected, in whatever folder they lie."""


def _content_id(files: Iterable[Path]) -> str:
    """What all that is inspected holds, as a digest."""
    digest = hashlib.sha256(f"inspection {VERSION}".encode())
    for file in files:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            whole = file.name in FILES
            content = hashlib.file_digest(stream, "sha256").digest() if whole else stream.read(HEADER)
        digest.update(f"\0{file.name}\0{size}\0".encode("utf-8", "surrogateescape") + content)
    return digest.hexdigest()


def _tokenizer_of(folder: Path) -> bytes:
    """What its tokenizer and template hold. Where they are the app's own, what is left is read in Python, within bounds."""
    parts = (folder / name for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"))
    return b"".join(hashlib.sha256(file.read_bytes() if file.is_file() else b"").digest() for file in parts)


def _run_child(folder: Path, gguf: Path | None = None, progress: Progress | None = None) -> None:
    """Raises ModelNotFound where it ends in any way but by its own word. gguf: what the files are made of first."""
    shown, seconds = gguf or folder, MAKING_S if gguf else PROCESSOR_S
    deadline = DEADLINE_S if _has_processor_limit() else max(DEADLINE_ALONE_S, 1.0 * seconds)
    with tempfile.TemporaryFile() as errors, _started(folder, errors) as process:
        assert process.stdout is not None
        if not _ends_within(process, deadline, progress):
            raise _refused(shown, f"reading them takes longer than {deadline:.0f} s")
        answer = process.stdout.read(4096).decode("utf-8", "replace").strip()
        if process.returncode == 0 and answer.startswith("ok"):
            return
        if gguf and process.returncode > 0 and answer.startswith(REFUSED):
            raise ModelNotFound(_one_line(answer.removeprefix(REFUSED), 1000))
        raise _refused(shown, _reason(process.returncode, answer, errors, seconds))


def _ends_within(process: subprocess.Popen[bytes], seconds: float, progress: Progress | None) -> bool:
    """Whether a process ends by itself in time. Raises what `progress` raises, which is asked again and again."""
    end = time.monotonic() + seconds
    while True:
        if progress is not None:
            progress(0.0, "reading the model's tokenizer and config")
        left = end - time.monotonic()
        try:
            process.wait(max(0.0, left if progress is None else min(left, LOOK_S)))
            return True
        except subprocess.TimeoutExpired:
            if left <= LOOK_S:
                return False


def _one_line(text: str, most: int) -> str:
    """What a process said that may have been taken over: one line of what can be printed."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:most]


def _refused(shown: Path, reason: str) -> ModelNotFound:
    return ModelNotFound(
        f"{shown}: its tokenizer, chat template or config cannot be read safely: {reason}. Copy or download the model again, or "
        "choose another."
    )


def _reason(code: int, answer: str, errors: IO[bytes], seconds: int) -> str:
    import signal

    errors.seek(0)
    words = errors.read(1 << 16).decode("utf-8", "replace")
    if code in (-getattr(signal, "SIGXCPU", 0), -getattr(signal, "SIGKILL", 0)) and code:
        return f"it takes more than {seconds} s of processor time"
    if answer.startswith("memory") or "memory allocation" in words or "MemoryError" in words:
        return f"it takes more than {size_text(MEMORY_BYTES)} of memory"
    if answer:
        return _one_line(" ".join(answer.split()), 200).rstrip(".")
    lines = [_one_line(" ".join(line.split()), 120) for line in words.splitlines() if line.strip()]
    how = f"signal {-code}" if code < 0 else f"code {code}"
    return f"the process that read them ended with {how}" + (f" ({lines[-1]})" if lines else "")


@contextlib.contextmanager
def _started(folder: Path, errors: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    frozen = getattr(sys, "frozen", False)
    command = [sys.executable, SWITCH] if frozen else [sys.executable, "-P", "-m", _CHILD]
    passed = ("PATH", "SYSTEMROOT", "TEMP", "TMP", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
    environment = {name: os.environ[name] for name in passed if name in os.environ}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUTF8": "1"}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    environment |= {"TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [*command, str(folder)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _has_processor_limit() -> bool:
    try:
        import resource
    except ImportError:  # Windows
        return False
    return hasattr(resource, "RLIMIT_CPU")
