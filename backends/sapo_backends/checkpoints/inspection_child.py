"""The child process that reads an untrusted model's small files (see inspection): its limits, and the texts and
conversations that it tries.

For a GGUF file it makes those files first (see gguf_view.write_view).
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
from sapo_backends.child_process import limit_this_process
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
"""Maximum characters that this process prints: an error may quote the file, whose texts can be a megabyte long."""
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
    },
}


def read_small_files(folder: Path) -> None:
    """Read all of a folder's files that the app reads, except the weights. Problems that are reported in words anyway
    are left to the code that reads the files later; everything else is raised."""
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
        for text in PROBES:  # stand-ins for anybody's text: what fails on these would fail on questions
            tokenizer.decode(tokenizer.encode_text(text))
        _render(tokenizer)
    with contextlib.suppress(BackendError):
        settings = read_json(folder / "tokenizer_config.json")
        ChatTemplate.read(folder, settings, "", "", "on").render([{"role": "user", "content": PROBES[0]}])


def _render(tokenizer: HfTokenizer) -> None:
    """Render conversations such as the app has. A template may refuse any of them, in words."""
    with contextlib.suppress(BackendError):
        _ = (tokenizer.eot_id, tokenizer.opens_reasoning)
    for roles in CHATS:
        chat = [{"role": role, "content": f"{PROBES[0]} {role}"} for role in roles]
        for tools in ((), (TOOL,)):
            with contextlib.suppress(BackendError):
                tokenizer.encode_chat(chat, tools)


def _say(text: str) -> None:
    """Print one line to a pipe that nobody reads until this process has ended: more than the pipe holds would block for
    ever. The end of a sentence says what to do, so its middle is cut."""
    line = " ".join(text.split())
    print(line if len(line) <= LONGEST else f"{line[: LONGEST - 300]} … {line[-250:]}", flush=True)


def main(folder: str) -> int:
    """The child's entry point. Its one line begins with "ok", "memory", or REFUSED and a sentence for a person;
    otherwise it names the error that the files caused."""
    making = is_to_be_made(Path(folder))
    writes = largest_file("tokenizer.json") if making else 1 << 20
    limit_this_process(MEMORY_BYTES, MAKING_S if making else PROCESSOR_S, writes)
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
    except BaseException as error:  # native libraries raise exceptions that are not Exceptions
        _say(f"{type(error).__name__} {error}")
        return 1
    _say("ok")
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)
