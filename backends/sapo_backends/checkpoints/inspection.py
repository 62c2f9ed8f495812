"""A foreign model's files are read in a child process before this one reads them.

A tokenizer, a chat template and a header come from strangers, and native code reads them: it may take gigabytes, run for ever,
or end the process. The child has a memory cap and a limit of processor time where the platform has them, and a deadline. It
reads all that the app reads of a model but its weights, encodes texts, and renders conversations. What it says is forgotten but
for one thing: whether it came to its end. A file that is damaged in a way this process puts in words by itself is left to it. A
good result is remembered in the app's cache under what the files hold, so that a start pays once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sapo_backends.common.cache_folder import cache_folder
from sapo_backends.errors import BackendError, ModelNotFound, size_text

if TYPE_CHECKING:
    from sapo_backends.checkpoints.tokenizer import HfTokenizer

SWITCH = "--inspect-model"
"""How a frozen app starts the child: it has no interpreter for modules (see sapo_desktop.__main__)."""
MEMORY_BYTES = 1_900_000_000
"""Of address space. A tokenizer of 33 MB (Gemma's, 262,144 tokens) takes 1.1 GB of it."""
PROCESSOR_S = 12
DEADLINE_S = 60.0
"""By the wall's clock: other programs may leave the child a small part of a core."""
DEADLINE_ALONE_S = 18.0
"""Where no limit of processor time can be set."""
VERSION = 1
"""Of what is looked at: remembered results of another one count for nothing."""
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
HEADER = 1 << 16
"""Bytes of each file of weights that its identity is made of: their beginning, with the file's length."""
PROBES = (
    "Hello, world! It's 12,345.67 — 3 + 4 = 7.\n\n\tdef f(x): return x ** 2  # ÄÖÜ ß ñ 你好 мир العربية 🙂👩‍🚀 \u200d\u0301",
    "".join(map(chr, range(32, 127))),
    "a" * 4000,
    " " * 4000,
    "\n" * 2000,
    "1" * 2000,
    "ab" * 1000,
)
CHATS = (
    ("user",),
    ("system", "user"),
    ("user", "assistant", "user"),
    ("system", "user", "assistant", "tool"),
)
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
    },
}


def require_harmless(folder: Path) -> None:
    """Returns at once for a folder whose tokenizer ships with the app or which was inspected before. Raises ModelNotFound where
    the child did not come to its end."""
    files = _files(folder)
    if not (folder / "tokenizer.json").is_file():
        return
    _inspected(folder, tuple((file.name, s.st_size, s.st_mtime_ns, s.st_ino) for file in files for s in (file.stat(),)))


@lru_cache(maxsize=256)
def _inspected(folder: Path, _state: tuple[tuple[str, int, int, int], ...]) -> None:
    """Once a process for what lies in a folder; an error is not remembered."""
    name = content_id(folder)
    mark = cache_folder() / "inspected" / name
    if name in _GOOD or _is_bundled(folder) or mark.is_file():
        return
    _run_child(folder)
    _GOOD.add(name)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs a second, no model
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


_GOOD: set[str] = set()
"""Contents that this process had inspected, in whatever folder they lie."""


def content_id(folder: Path) -> str:
    """What all that is inspected holds, as a digest."""
    digest = hashlib.sha256(f"inspection {VERSION}".encode())
    for file in _files(folder):
        whole = file.name in FILES
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            content = hashlib.file_digest(stream, "sha256").digest() if whole else stream.read(HEADER)
        digest.update(f"\0{file.name}\0{size}\0".encode("utf-8", "surrogateescape") + content)
    return digest.hexdigest()


def _files(folder: Path) -> list[Path]:
    from sapo_backends.checkpoints.locate import weight_files

    return [folder / name for name in FILES if (folder / name).is_file()] + weight_files(folder)


@lru_cache(maxsize=1)
def _bundled() -> frozenset[bytes]:
    """What the bundled models' tokenizers and templates hold."""
    from sapo_backends.checkpoints.locate import BUNDLED, bundled

    known = set()
    for name in BUNDLED:
        with contextlib.suppress(ModelNotFound):
            known.add(_tokenizer_of(bundled(name)))
    return frozenset(known)


def _tokenizer_of(folder: Path) -> bytes:
    parts = (folder / name for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"))
    return b"".join(hashlib.sha256(file.read_bytes() if file.is_file() else b"").digest() for file in parts)


def _is_bundled(folder: Path) -> bool:
    """Its tokenizer and template are the app's own; what is left is read in Python, within bounds."""
    return _tokenizer_of(folder) in _bundled()


def _run_child(folder: Path) -> None:
    """Raises ModelNotFound where it ends in any way but by its own word."""
    limited = _has_processor_limit()
    deadline = DEADLINE_S if limited else DEADLINE_ALONE_S
    with tempfile.TemporaryFile() as errors, _started(folder, errors) as process:
        assert process.stdout is not None
        try:
            process.wait(deadline)
        except subprocess.TimeoutExpired:
            raise _refused(folder, f"reading them takes longer than {deadline:.0f} s") from None
        answer = process.stdout.read(4096).decode("utf-8", "replace").strip()
        if process.returncode == 0 and answer.startswith("ok"):
            return
        raise _refused(folder, _reason(process.returncode, answer, errors))


def _refused(folder: Path, reason: str) -> ModelNotFound:
    return ModelNotFound(
        f"{folder}: its tokenizer, chat template or config cannot be read safely: {reason}. Copy or download the model again, or "
        "choose another."
    )


def _reason(code: int, answer: str, errors: IO[bytes]) -> str:
    import signal

    errors.seek(0)
    words = errors.read(1 << 16).decode("utf-8", "replace")
    if code in (-getattr(signal, "SIGXCPU", 0), -getattr(signal, "SIGKILL", 0)) and code:
        return f"it takes more than {PROCESSOR_S} s of processor time"
    if answer.startswith("memory") or "memory allocation" in words or "MemoryError" in words:
        return f"it takes more than {size_text(MEMORY_BYTES)} of memory"
    if answer:
        return " ".join(answer.split())[:200].rstrip(".")
    lines = [" ".join(line.split()) for line in words.splitlines() if line.strip()]
    how = f"signal {-code}" if code < 0 else f"code {code}"
    return f"the process that read them ended with {how}" + (f" ({lines[-1][:120]})" if lines else "")


@contextlib.contextmanager
def _started(folder: Path, errors: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    frozen = getattr(sys, "frozen", False)
    command = [sys.executable, SWITCH] if frozen else [sys.executable, "-P", "-m", __name__]
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


def _limit_this_process() -> None:
    """As far as the platform can: macOS has no working RLIMIT_AS, Windows has neither."""
    try:
        import resource
    except ImportError:
        return
    limits = (("RLIMIT_AS", MEMORY_BYTES), ("RLIMIT_CPU", PROCESSOR_S), ("RLIMIT_CORE", 0), ("RLIMIT_FSIZE", 1 << 20))
    for name, value in limits:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            which = getattr(resource, name)
            hard = resource.getrlimit(which)[1]
            ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (ceiling, ceiling))


def inspect(folder: Path) -> None:
    """Read all of a folder's files that the app reads, but the weights. What is wrong with them in words already is left to
    whoever reads them; the rest is raised."""
    from sapo_backends.checkpoints.chat_template import ChatTemplate
    from sapo_backends.checkpoints.safetensors_numpy import elements
    from sapo_backends.checkpoints.spec import decoder_spec, why_not
    from sapo_backends.checkpoints.tokenizer import HfTokenizer, read_json

    with contextlib.suppress(BackendError):
        config = read_json(folder / "config.json")
        if not why_not(config):
            decoder_spec(config)
    with contextlib.suppress(BackendError):
        elements(folder)
    tokenizer = None
    with contextlib.suppress(BackendError):
        tokenizer = HfTokenizer(folder)
    if tokenizer is not None:
        for text in PROBES:  # these are anybody's texts: what fails at them fails at questions
            tokenizer.decode(tokenizer.encode_text(text))
        _render(tokenizer)
    with contextlib.suppress(BackendError):
        settings = read_json(folder / "tokenizer_config.json")
        ChatTemplate.read(folder, settings, "", "", "on").render([{"role": "user", "content": PROBES[0]}])


def _render(tokenizer: HfTokenizer) -> None:
    """Conversations as the app has them. A template may refuse any of them, in words."""
    with contextlib.suppress(BackendError):
        _ = (tokenizer.eot_id, tokenizer.opens_reasoning)
    for roles in CHATS:
        chat = [{"role": role, "content": f"{PROBES[0]} {role}"} for role in roles]
        for tools in ((), (TOOL,)):
            with contextlib.suppress(BackendError):
                tokenizer.encode_chat(chat, tools)


def main(folder: str) -> int:
    """The child. Its one line begins with "ok", "memory", or says what the files did."""
    _limit_this_process()
    try:
        inspect(Path(folder))
    except MemoryError:
        print("memory", flush=True)
        return 1
    except BaseException as error:  # native libraries raise what is no Exception
        print(f"{type(error).__name__} {error}"[:400], flush=True)
        return 1
    print("ok", flush=True)
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)
