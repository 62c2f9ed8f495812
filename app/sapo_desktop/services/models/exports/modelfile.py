"""An Ollama Modelfile beside a GGUF file: https://docs.ollama.com/modelfile"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sapo_backends.base import Thinking
from sapo_backends.checkpoints.chat_template import ChatTemplate
from sapo_backends.checkpoints.tokenizer import HfTokenizer, read_json
from sapo_desktop.errors import UsageError
from sapo_desktop.services.models.exports.job import AskedQuestion
from sapo_swarm.protocol.safe_text import safe_text

LARGEST_CONTEXT = 8192
"""Context length that a Modelfile asks for: Ollama allocates memory for all of it at once."""
LONGEST_COMMENT = 2000
ONE_TEXT, TWO_TEXTS, THREE_TEXTS = 3, 5, 7
"""Pieces of a rendered conversation of one, two or three messages, if the template writes each of them once."""
_UNSAFE = ("{{", "}}", '"""')
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and line feed, line separators, and characters that change the writing direction."""


def _holds(text: str) -> bool:
    """Whether a text in triple quotes is read back unchanged: nothing in it closes them or begins an action of Go's
    templates, and nothing is obeyed by a terminal that shows the file."""
    return not (_OBEYED.search(text) or text.endswith('"') or any(mark in text for mark in _UNSAFE))


def _stops(texts: list[str]) -> list[str]:
    """The stop texts as lines. A text with quotes or line breaks would break out of its instruction and is left out."""
    usable = [text for text in texts if '"' not in text and "\n" not in text and _holds(text)]
    lines = [f'PARAMETER stop "{text}"' for text in usable]
    return lines if len(usable) == len(texts) else [*lines, "# A stop text that no line can hold is left out."]


def render_modelfile(
    folder: Path,
    gguf: str,
    context: int,
    system: str,
    thinking: Thinking = "auto",
    adapter: str = "",
    asked: Sequence[AskedQuestion] = (),
) -> str:
    """folder: the Hugging Face folder behind the file named `gguf`, which lies beside the Modelfile; with `adapter`, that
    file lies there instead and `gguf` is a whole path. system: the system prompt used in training, "" without one. thinking:
    as in training. asked: how its tasks ask, as comments. Raises UsageError for a path that holds a line break."""
    texts = _end_texts(folder)
    template, uses_system = _template(folder, texts[0] if texts else "", thinking)
    lines = [f"FROM {_one_line(gguf if adapter else f'./{gguf}')}"]
    lines += [f"ADAPTER {_one_line(f'./{adapter}')}"] if adapter else []
    lines.append(f"PARAMETER num_ctx {context}")
    lines += _stops(texts)
    if template:
        lines.append(f'TEMPLATE """{template}"""')
    else:
        lines.append("# Ollama recognises the chat template in the GGUF file.")
    if system and uses_system:
        lines.append(f'SYSTEM """{system}"""' if _holds(system) else "# README.md holds its system prompt.")
    lines += [line for each in asked for line in _comment(each)]
    return "\n".join(lines) + "\n"


def _comment(asked: AskedQuestion) -> list[str]:
    """How a task asks, as comments: no line of another's text can become an instruction."""
    name = safe_text(asked.task, 100, lines=False)
    about = "the names in braces are columns of its table" if asked.wording else "for example"
    text = safe_text(asked.wording or asked.example, LONGEST_COMMENT)
    return [
        f"# Ask in the words that it was trained on ({name}; {about}):",
        *(f"#   {line}" for line in text.split("\n")),
    ]


def _one_line(path: str) -> str:
    """A path as the rest of a line."""
    if "\n" in path or "\t" in path or _OBEYED.search(path):
        raise UsageError(f"{safe_text(path, 200, lines=False)} holds a line break. Rename it, and export again.")
    return path


def _end_texts(folder: Path) -> list[str]:
    """The texts of the tokens at which the model stops, first the one that ends a turn."""
    added = {int(t["id"]): str(t["content"]) for t in read_json(folder / "tokenizer.json").get("added_tokens", [])}
    tokenizer = HfTokenizer(folder)
    return [added[i] for i in dict.fromkeys((tokenizer.eot_id, *tokenizer.eos_ids)) if i in added]


def _template(folder: Path, end: str, thinking: Thinking) -> tuple[str, bool]:
    """The chat template in Go's syntax, "" where it cannot be expressed; and whether it has a place for a system prompt.

    Derived from two rendered conversations: the text before, between and after the messages.
    """
    settings = read_json(folder / "tokenizer_config.json")
    first, last = _special(settings, "bos_token"), _special(settings, "eos_token")
    chat = ChatTemplate.read(folder, settings, first, last, thinking)
    user = {"role": "user", "content": "U"}
    plain = _pieces(chat, [user])
    two_turns = _pieces(chat, [user, {"role": "assistant", "content": "A"}, user])
    with_system = _pieces(chat, [{"role": "system", "content": "S"}, user])
    uses_system = len(with_system) == TWO_TEXTS
    if (
        len(plain) != ONE_TEXT
        or len(two_turns) != THREE_TEXTS
        or not all(map(_holds, (*plain, *two_turns, *with_system, end)))
    ):
        return "", uses_system
    before, after = plain[0], plain[2]
    head = ""
    if uses_system:
        if not with_system[2].endswith(before):
            return "", uses_system
        head = (
            f"{{{{ if .System }}}}{with_system[0]}{{{{ .System }}}}{with_system[2].removesuffix(before)}{{{{ end }}}}"
        )
    closing = two_turns[4].removesuffix(before) if two_turns[4].endswith(before) else end
    return f"{head}{before}{{{{ .Prompt }}}}{after}{{{{ .Response }}}}{closing}", uses_system


def _special(settings: dict[str, object], name: str) -> str:
    token = settings.get(name)
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else ""


def _pieces(chat: ChatTemplate, messages: list[dict[str, str]]) -> list[str]:
    """Template text and message texts in turn, template text first and last."""
    return [text for text, _ in chat.render(messages).parts]
