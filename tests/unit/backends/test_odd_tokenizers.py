"""Tokenizers and chat templates as others make them: mistakes, normalisers, holes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.sentencepiece import WAYS, write_tokenizer
from tests.unit.backends.test_tokenizer import CHAT, write
from tokenizers import Tokenizer, normalizers

from sapo_backends.checkpoints.chat_template import ChatTemplate
from sapo_backends.checkpoints.tokenizer import HfTokenizer
from sapo_backends.errors import TemplateRefused


@pytest.mark.parametrize("template", ["{{ 1 // 0 }}", "{{ '{0}'.format() }}", "{{ 'x'.encode('foo') }}"])
def test_a_template_that_divides_by_zero_is_refused(template: str) -> None:
    """As every other mistake in one is."""
    with pytest.raises(TemplateRefused, match="template failed"):
        ChatTemplate(template).render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("normaliser", "control", "text"),
    [
        (normalizers.NFKC(), "<|im_end|>", "\uff1c|im_end|>"),
        (normalizers.Lowercase(), "<|im_end|>", "<|IM_END|>"),
        (normalizers.Lowercase(), "<|IM_END|>", "<|im_end|>"),
    ],
)
def test_a_text_that_a_normaliser_turns_into_a_control_token_stays_text(
    tmp_path: Path, normaliser: normalizers.Normalizer, control: str, text: str
) -> None:
    """Where the file says that its control tokens are looked for behind the normaliser."""
    write(tmp_path, CHAT.replace("<|im_end|>", control), eos_token=control)
    raw = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    setattr(raw, "normalizer", normaliser)  # noqa: B010 - a Rust property that vulture does not know
    data = json.loads(raw.to_str())
    data["added_tokens"][2]["content"] = control
    for token in data["added_tokens"]:
        token["normalized"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    tokenizer = HfTokenizer(tmp_path)
    assert tokenizer.spells_control(text)
    assert all(i < 256 for i in tokenizer.encode_text(text))
    ids = tokenizer.encode_chat([{"role": "user", "content": text}])
    assert [i for i in ids if i >= 256] == [257, 258, 257]
    assert len(tokenizer.encode_text(text)) >= len("<|im_end|>")


def test_a_vocabulary_with_holes_decodes_its_last_token(tmp_path: Path) -> None:
    """Its ids go beyond the number of its tokens."""
    data = json.loads((write(tmp_path) / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = data["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] = 290
    (tmp_path / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    tokenizer = HfTokenizer(tmp_path)
    last = next(text for text in map(chr, range(256)) if tokenizer.encode_text(text)[-1] == 290)
    assert tokenizer.decode(tokenizer.encode_text(last)) == last
    assert tokenizer.decode([291, 100_000]) == ""


@pytest.mark.parametrize("way", WAYS)
def test_text_between_control_tokens_is_split_as_in_the_whole_chat(tmp_path: Path, way: str) -> None:
    """Also where a message spells a control token, and behind a turn of the model: no space is put before it that only the
    beginning of a text has, and none is left that a control token eats."""
    (tmp_path / "config.json").write_text('{"eos_token_id": 2}', "utf-8")
    write_tokenizer(tmp_path, "a swarm of nodes trains a model of its own, and so on " * 9, way)
    tokenizer, raw = HfTokenizer(tmp_path), Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    question, spelled = " train  a model\n", "swarm </s> on"
    honest = raw.encode(f"<s><|user|>\n{question}<|end|>\n<|user|>", add_special_tokens=False).ids
    assert tokenizer.encode_chat([{"role": "user", "content": question}]) == honest
    chat = tokenizer.encode_chat([{"role": "user", "content": content} for content in (question, spelled)])
    assert chat[: len(honest)] == honest
    assert chat.count(raw.token_to_id("</s>")) == 0
    behind = raw.encode(f"<|user|>\nmodel<|end|>\n<|user|>\n{question}<|end|>\n<|user|>", add_special_tokens=False)
    reply = tokenizer.encode_reply(question)
    assert reply == behind.ids[-len(reply) :]
    assert reply[0] == raw.token_to_id("<|end|>")
