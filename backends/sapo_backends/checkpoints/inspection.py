"""Reads an untrusted model's files in a child process before this process reads them.

A tokenizer, chat template or header may come from a stranger and is read by native code, which may take gigabytes, run
for ever or crash. The child has a memory cap and a processor-time limit where the platform offers them, and a
deadline. It reads everything that the app reads of a model except its weights, encodes texts and renders
conversations. Of its output only one thing counts: whether it reached its end. Damage that this process reports in
words by itself is left to this process. For a GGUF file, whose small files the child makes first (see gguf_view), the
child's sentence is passed on. A good result is remembered in the app's cache under a digest of the files, so that only
the first start pays for the inspection.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path

from sapo_backends.base import Progress
from sapo_backends.checkpoints.hub_cache import cache_folder
from sapo_backends.child_process import ChildProcess, child_environment, describe_end, python_command
from sapo_backends.errors import ModelNotFound, size_text

_CHILD = "sapo_backends.checkpoints.inspection_child"
SWITCH = "--inspect-model"
"""How a frozen app starts the child, since it has no interpreter that runs modules (see sapo_desktop.__main__)."""
MEMORY_BYTES = 1_900_000_000
"""Limit of the child's address space. A tokenizer of 33 MB (Gemma's, 262,144 tokens) takes 0.7 GB of it."""
PROCESSOR_S = 12
MAKING_S = 30
"""Limit of processor time if the child first makes the files of a GGUF file. Gemma's take 5 s of it altogether."""
DEADLINE_S = 60.0
"""Wall-clock limit; long, because other programs may leave the child a small part of a core."""
DEADLINE_ALONE_S = 18.0
"""Wall-clock limit where no limit of processor time can be set."""
REFUSED = "refused: "
"""Prefix of a line in which the child writes a sentence for a person."""
VERSION = 1
"""Version of the inspection: results remembered from another version are ignored."""
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
HEADER = 1 << 16
"""Bytes of each weight file that enter its identity: its beginning, together with the file's length."""


def require_harmless(folder: Path, weights: Sequence[Path], trusted: Iterable[Path]) -> None:
    """Returns at once if the folder's tokenizer ships with the app or was inspected before. weights: its weight files;
    trusted: folders that ship with the app. Raises ModelNotFound if the child did not reach its end."""
    if not (folder / "tokenizer.json").is_file():
        return
    files = (*(folder / name for name in FILES if (folder / name).is_file()), *weights)
    state = tuple((s.st_size, s.st_mtime_ns, s.st_ino) for s in (file.stat() for file in files))
    _inspected(folder, files, tuple(trusted), state)


@lru_cache(maxsize=256)
def _inspected(
    folder: Path, files: tuple[Path, ...], trusted: tuple[Path, ...], _state: tuple[tuple[int, int, int], ...]
) -> None:
    """Cached in this process by the folder's content; errors are not cached."""
    name = _content_id(files)
    mark = cache_folder() / "inspected" / name
    if name in _GOOD or _tokenizer_of(folder) in map(_tokenizer_of, trusted) or mark.is_file():
        return
    _run_child(folder)
    _remember(name)


def make_harmless(folder: Path, gguf: Path, progress: Progress | None = None) -> None:
    """Let the child make the small files of a GGUF file, in a folder that points to it, and inspect them. A good result
    is remembered. Raises ModelNotFound with the file's name, OSError, and what `progress` raises, which ends the
    child."""
    _run_child(folder, gguf, progress)
    _remember(_content_id([*(folder / name for name in FILES if (folder / name).is_file()), gguf]))


def _remember(name: str) -> None:
    mark = cache_folder() / "inspected" / name
    _GOOD.add(name)
    with contextlib.suppress(OSError):  # an unwritable cache costs a second next time, not the model
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


_GOOD: set[str] = set()
"""Digests of contents that this process has inspected, in whatever folder they are."""


def _content_id(files: Iterable[Path]) -> str:
    """A digest of everything that is inspected."""
    digest = hashlib.sha256(f"inspection {VERSION}".encode())
    for file in files:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            whole = file.name in FILES
            content = hashlib.file_digest(stream, "sha256").digest() if whole else stream.read(HEADER)
        digest.update(f"\0{file.name}\0{size}\0".encode("utf-8", "surrogateescape") + content)
    return digest.hexdigest()


def _tokenizer_of(folder: Path) -> bytes:
    """The content of its tokenizer and template files. If they are the app's own, the rest is read in Python, within
    bounds."""
    parts = (folder / name for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"))
    return b"".join(hashlib.sha256(file.read_bytes() if file.is_file() else b"").digest() for file in parts)


def _run_child(folder: Path, gguf: Path | None = None, progress: Progress | None = None) -> None:
    """Raises ModelNotFound unless the child reports success. gguf: the file that the small files are made from first."""
    shown, seconds = gguf or folder, MAKING_S if gguf else PROCESSOR_S
    deadline = DEADLINE_S if _has_processor_limit() else max(DEADLINE_ALONE_S, 1.0 * seconds)
    look = None if progress is None else partial(progress, 0.0, "reading the model's tokenizer and config")
    with _start_child(folder) as child:
        if not child.ends_within(deadline, look):
            raise _refused(shown, f"reading them takes longer than {deadline:.0f} s")
        answer = child.read_output(4096).decode("utf-8", "replace").strip()
        if child.code == 0 and answer.startswith("ok"):
            return
        if gguf and child.code > 0 and answer.startswith(REFUSED):
            raise ModelNotFound(_one_line(answer.removeprefix(REFUSED), 1000))
        raise _refused(shown, _reason(child.code, answer, child.read_errors(1 << 16), seconds))


def _one_line(text: str, most: int) -> str:
    """Output of a process that may have been compromised, as one line of printable characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:most]


def _refused(shown: Path, reason: str) -> ModelNotFound:
    return ModelNotFound(
        f"{shown}: its tokenizer, chat template or config cannot be read safely: {reason}. Copy or download the model again, or "
        "choose another."
    )


def _reason(code: int, answer: str, words: str, seconds: int) -> str:
    import signal

    if code in (-getattr(signal, "SIGXCPU", 0), -getattr(signal, "SIGKILL", 0)) and code:
        return f"it takes more than {seconds} s of processor time"
    if answer.startswith("memory") or "memory allocation" in words or "MemoryError" in words:
        return f"it takes more than {size_text(MEMORY_BYTES)} of memory"
    if answer:
        return _one_line(" ".join(answer.split()), 200).rstrip(".")
    lines = [_one_line(" ".join(line.split()), 120) for line in words.splitlines() if line.strip()]
    return f"the process that read them ended with {describe_end(code)}" + (f" ({lines[-1]})" if lines else "")


def _start_child(folder: Path) -> ChildProcess:
    frozen = getattr(sys, "frozen", False)
    command = [sys.executable, SWITCH, str(folder)] if frozen else python_command(_CHILD, str(folder))
    single = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    quiet = {"TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    return ChildProcess(command, child_environment({"PYTHONUTF8": "1", **single, **quiet}, private=True))


def _has_processor_limit() -> bool:
    try:
        import resource
    except ImportError:  # Windows
        return False
    return hasattr(resource, "RLIMIT_CPU")
