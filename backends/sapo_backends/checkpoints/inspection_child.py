"""The child that reads a foreign model's small files (see inspection): its limits, texts to encode, conversations to render."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from sapo_backends.checkpoints.chat_template import ChatTemplate
from sapo_backends.checkpoints.inspection import MEMORY_BYTES, PROCESSOR_S
from sapo_backends.checkpoints.safetensors_numpy import elements
from sapo_backends.checkpoints.spec import decoder_spec, why_not
from sapo_backends.checkpoints.tokenizer import HfTokenizer, read_json
from sapo_backends.errors import BackendError

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
