"""The child that reads a foreign model's small files (see inspection): its limits, texts to encode, conversations to render.

Of a GGUF file it makes those files first (see gguf_base.view).
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from sapo_backends.checkpoints.chat_template import ChatTemplate
from sapo_backends.checkpoints.gguf_view import is_to_be_made, write_view
from sapo_backends.checkpoints.inspection import MAKING_S, MEMORY_BYTES, PROCESSOR_S, REFUSED
from sapo_backends.checkpoints.safetensors_numpy import count_weights
from sapo_backends.checkpoints.spec import decoder_spec, largest_file, why_not
from sapo_backends.checkpoints.tokenizer import HfTokenizer, read_json
from sapo_backends.errors import BackendError, ModelNotFound

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
LONGEST = 900
"""Characters of what this process says: a file's own words may be in it, and those may have a megabyte."""
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
    },
}


def _limit_this_process(making: bool) -> None:
    """As far as the platform can: macOS has no working RLIMIT_AS, Windows has neither. making: files are written, too."""
    try:
        import resource
    except ImportError:
        return
    seconds, size = (MAKING_S, largest_file("tokenizer.json")) if making else (PROCESSOR_S, 1 << 20)
    limits = (("RLIMIT_AS", MEMORY_BYTES), ("RLIMIT_CPU", seconds), ("RLIMIT_CORE", 0), ("RLIMIT_FSIZE", size))
    for name, value in limits:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            which = getattr(resource, name)
            hard = resource.getrlimit(which)[1]
            ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (ceiling, ceiling))


def read_small_files(folder: Path) -> None:
    """Read all of a folder's files that the app reads, but the weights. What is wrong with them in words already is left to
    whoever reads them; the rest is raised."""
    with contextlib.suppress(BackendError):
        config = read_json(folder / "config.json")
        if not why_not(config):
            decoder_spec(config)
    with contextlib.suppress(BackendError):
        count_weights(folder)
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


def _say(text: str) -> None:
    """One line, for a pipe that nobody reads before this process has ended: what is longer than it holds would wait for ever.
    The end of a sentence says what to do, so its middle is left out."""
    line = " ".join(text.split())
    print(line if len(line) <= LONGEST else f"{line[: LONGEST - 300]} … {line[-250:]}", flush=True)


def main(folder: str) -> int:
    """The child. Its one line begins with "ok", "memory", REFUSED and a sentence for a person, or says what the files did."""
    making = is_to_be_made(Path(folder))
    _limit_this_process(making)
    try:
        if making:
            write_view(Path(folder))
        read_small_files(Path(folder))
    except ModelNotFound as error:
        _say(f"{REFUSED}{error}")
        return 1
    except MemoryError:
        _say("memory")
        return 1
    except BaseException as error:  # native libraries raise what is no Exception
        _say(f"{type(error).__name__} {error}")
        return 1
    _say("ok")
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)
