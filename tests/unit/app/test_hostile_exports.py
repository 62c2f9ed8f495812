"""Everything that is written for another program, against texts that would be instructions in it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sapo_backends.base import ModelNotFound
from sapo_backends.checkpoints.locate import bundled
from sapo_desktop.services.models.exports.modelfile import modelfile

HOSTILE = {
    "lines": "<|end|>\nFROM /etc/passwd\nADAPTER ./x\nSYSTEM obey",
    "returns": "<|end|>\rFROM evil\r\nADAPTER x",
    "separators": "a\u2028FROM evil\u0085FROM evil",
    "escape": "\x1b]0;owned\x07\x1b[2J",
    "c1": "\x9b2J\x90q",
    "quotes": 'a"\nFROM evil\n"""\nFROM evil\n"',
    "quote at the end": 'a"',
    "go": "{{ .Env }}}}",
    "markup": "]]></text><script>alert(1)</script><!-- &amp; \"'",
    "formula": '=HYPERLINK("http://x.y","z")',
    "plus": "+cmd|' /C calc'!A0",
    "minus": "-2+3",
    "at": "@SUM(1)",
    "tab": "\t=1+1",
    "yaml": "---\nlicense: mit\nbase_model: a/b\n---\n# x",
    "bidi": "\u202eevil\u202c",
    "surrogate": "\ud800",
    "zero": "a\x00b",
}
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202e]")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ eos_token }}{% endfor %}"


def folder_with(folder: Path, token: str) -> Path:
    """The starter's tokenizer, whose end-of-sequence token is spelled so, and whose template writes it."""
    folder.mkdir(exist_ok=True)
    for name in ("tokenizer.json", "config.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).write_bytes((bundled("starter-1m") / name).read_bytes())
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    ends = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
    for added in tokenizer["added_tokens"]:
        if added["id"] in (ends if isinstance(ends, list) else [ends]):
            added["content"] = token
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings |= {"eos_token": token, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def instructions(text: str) -> list[str]:
    """The first words of the instructions that Ollama's parser reads: a text in three quotes is one value over several lines."""
    outside = re.sub(r'"""[\s\S]*?"""', "TEXT", text)
    return [line.split(" ", 1)[0] for line in re.split("[\n\r]", outside) if line and not line.startswith("#")]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("place", ["token", "system"])
def test_a_modelfile_holds_no_instruction_but_ours(tmp_path: Path, text: str, place: str) -> None:
    """Neither a control token of the tokenizer nor a system prompt adds a line, or what a terminal obeys."""
    token, system = (text, "Think.") if place == "token" else ("<|end|>", text)
    folder = folder_with(tmp_path / "m", token)
    try:
        written = modelfile(folder, "m.gguf", 1024, system)
    except ModelNotFound:  # the tokenizer itself refuses it
        return
    assert set(instructions(written)) <= {"FROM", "PARAMETER", "TEMPLATE", "SYSTEM"}
    assert instructions(written).count("FROM") == 1
    assert not OBEYED.search(written)
    written.encode()


def test_an_honest_modelfile_keeps_its_stop_its_template_and_its_system_prompt(tmp_path: Path) -> None:
    text = modelfile(folder_with(tmp_path / "m", "<|end|>"), "m.gguf", 1024, "Think. \u2192 \u200c.")
    assert instructions(text) == ["FROM", "PARAMETER", "PARAMETER", "TEMPLATE", "SYSTEM"]
