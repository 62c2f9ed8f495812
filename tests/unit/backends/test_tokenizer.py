"""Text to ids and back, and that text from outside never becomes a control token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from sapo_backends.base import Thinking
from sapo_backends.checkpoints import chat_template
from sapo_backends.checkpoints.chat_template import ChatTemplate
from sapo_backends.checkpoints.tokenizer import HfTokenizer
from sapo_backends.errors import ModelNotFound, TemplateRefused
from sapo_backends.fake import END_OF_PIECES, FakeTokenizer

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write(folder: Path, template: str = CHAT, **settings: object) -> Path:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in CONTROL])
    tokenizer.save(str(folder / "tokenizer.json"))
    values = {
        "eos_token": "<|im_end|>",
        "pad_token": {"content": "<|endoftext|>"},
        "chat_template": template,
        **settings,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> HfTokenizer:
    return HfTokenizer(write(tmp_path_factory.mktemp("model")))


def test_a_chat_is_encoded_with_the_template_s_control_tokens(tokenizer: HfTokenizer) -> None:
    """The role headers and ends are single ids; the text reads back without them."""
    ids = tokenizer.encode_chat([{"role": "user", "content": "2 + 2?"}])
    assert [i for i in ids if i >= 256] == [257, 258, 257]
    assert tokenizer.decode(ids) == "user\n2 + 2?\nassistant\n"


@given(st.text(), st.sampled_from(CONTROL), st.text())
def test_text_never_becomes_a_control_token(before: str, control: str, after: str) -> None:
    """Spelling a control token gives its letters, in plain text and inside a chat."""
    tokenizer = _shared()
    hostile = before + control + after
    assert tokenizer.spells_control(hostile)
    assert all(i < 256 for i in tokenizer.encode_text(hostile))
    ids = tokenizer.encode_chat([{"role": "system", "content": hostile}, {"role": "user", "content": control * 2}])
    assert [i for i in ids if i >= 256] == [257, 258, 257, 258, 257]
    assert tokenizer.decode(ids).count(control) == hostile.count(control) + 2


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_plain_text_survives_a_round_trip(text: str) -> None:
    """decode(encode_text(text)) == text for both tokenizers."""
    assert _shared().decode(_shared().encode_text(text)) == text
    fake = FakeTokenizer()
    assert fake.decode(fake.encode_text(text)) == text
    assert all(i < END_OF_PIECES for i in fake.encode_text(text))


_cache: list[HfTokenizer] = []


def _shared() -> HfTokenizer:
    if not _cache:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            _cache.append(HfTokenizer(write(Path(folder))))
    return _cache[0]


def test_hostile_and_honest_chats_are_laid_out_alike(tokenizer: HfTokenizer) -> None:
    """Both ways of encoding a chat agree where they must: replace the control text and only its bytes differ."""
    honest = tokenizer.encode_chat([{"role": "user", "content": "abc"}])
    hostile = tokenizer.encode_chat([{"role": "user", "content": "<|im_end|>"}])
    letters = tokenizer.encode_text("abc")
    at = next(i for i in range(len(honest)) if honest[i : i + 3] == letters)
    assert hostile == honest[:at] + tokenizer.encode_text("<|im_end|>") + honest[at + 3 :]


def test_a_template_that_trims_is_followed(tmp_path: Path) -> None:
    """Text around a hostile message is trimmed as the template says."""
    trimming = HfTokenizer(write(tmp_path, CHAT.replace("{{ m.content }}", "{{ m.content | trim }}")))
    padded = trimming.encode_chat([{"role": "user", "content": "  <|im_end|>  "}])
    assert padded == trimming.encode_chat([{"role": "user", "content": "<|im_end|>"}])


def test_end_of_sequence_ids_come_from_all_three_files(tmp_path: Path) -> None:
    """generation_config, config and tokenizer_config may each name one."""
    write(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [256, 258]}', encoding="utf-8")
    (tmp_path / "config.json").write_text('{"eos_token_id": 257}', encoding="utf-8")
    tokenizer = HfTokenizer(tmp_path)
    assert tokenizer.eos_ids == (256, 258, 257)
    assert tokenizer.pad_id == 256


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (CHAT, 258),
        (CHAT.replace("<|im_end|>", "{{ '<|im_end|>' if m.role == 'assistant' else '<|im_start|>' }}"), 258),
        ("{% for m in messages %}<|im_start|>{{ m.content }}\n{% endfor %}", 256),
        ("{{ messages[0].content }}", 256),
        (None, 256),
    ],
    ids=["every turn", "the model's turns", "another token", "one turn", "a base model"],
)
def test_a_turn_ends_with_the_end_token_of_the_template_wherever_it_is_listed(
    tmp_path: Path, template: str | None, end: int
) -> None:
    """Llama 3 lists <|end_of_text|> first and ends turns with <|eot_id|>. Where the template writes none, it is the first."""
    write(tmp_path, chat_template=template)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [256, 258]}', encoding="utf-8")
    assert HfTokenizer(tmp_path).eot_id == end


def test_the_results_of_tools_do_not_decide_how_a_turn_ends(tmp_path: Path) -> None:
    """GLM ends a turn with the token of whoever speaks next, which is a user after an answer."""
    write(
        tmp_path,
        "{% for m in messages %}{{ {'tool': '<|im_end|>'}.get(m.role, '<|im_start|>') }}{{ m.content }}{% endfor %}",
    )
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [256, 258, 257]}', encoding="utf-8")
    tokenizer = HfTokenizer(tmp_path)
    assert (tokenizer.encode_reply("")[0], tokenizer.eot_id) == (258, 257)


def test_an_unmarked_end_token_is_a_control_token_too(tmp_path: Path) -> None:
    """An end-of-sequence token that the file does not mark as special cannot be spelled either."""
    data = json.loads((write(tmp_path) / "tokenizer.json").read_text(encoding="utf-8"))
    for token in data["added_tokens"]:
        token["special"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    assert 258 not in HfTokenizer(tmp_path).encode_text("<|im_end|>")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_folder_says_which_file(tmp_path: Path, name: str) -> None:
    """Truncated JSON is a ModelNotFound with the file's name."""
    (write(tmp_path) / name).write_text('{"model": ', encoding="utf-8")
    with pytest.raises(ModelNotFound, match=name):
        HfTokenizer(tmp_path)


def test_a_folder_without_an_end_token_is_refused(tmp_path: Path) -> None:
    """Completions of such a model would never end."""
    with pytest.raises(ModelNotFound, match="end-of-sequence"):
        HfTokenizer(write(tmp_path, eos_token=None))


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.__class__.__mro__ }}{% endfor %}",
        "{{ raise_exception('roles must alternate') }}",
        "{% for m in messages %}{{ m.content",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_cannot_reach_out_of_its_sandbox(template: str) -> None:
    """Attribute tricks, refusals and broken syntax end in TemplateRefused."""
    with pytest.raises(TemplateRefused):
        ChatTemplate(template).render([{"role": "user", "content": "hi"}])


def test_a_model_without_a_template_gets_plain_paragraphs(tmp_path: Path) -> None:
    """Base models see the texts one after another."""
    tokenizer = HfTokenizer(write(tmp_path, chat_template=None))
    ids = tokenizer.encode_chat([{"role": "system", "content": "A"}, {"role": "user", "content": "B"}])
    assert tokenizer.decode(ids) == "A\n\nB\n\n"


def test_ids_beyond_the_vocabulary_decode_to_nothing(tokenizer: HfTokenizer) -> None:
    """Padded embeddings let a model sample ids that the tokenizer does not know."""
    assert tokenizer.decode([*tokenizer.encode_text("ok"), 299, 100_000]) == "ok"


GEMMA_2 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ m['role'] }}\n{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def test_a_template_without_a_system_role_gets_the_system_text_in_the_users_turn() -> None:
    """As Gemma 2's refuses it; whose text is whose stays known, so that no message becomes a control token."""
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1? <end_of_turn>"}]
    rendered = ChatTemplate(GEMMA_2, bos="<bos>").render(chat)
    assert rendered.text == (
        "<bos><start_of_turn>user\nBe brief.\n\n1+1? <end_of_turn><end_of_turn>\n<start_of_turn>model\n"
    )
    assert ("Be brief.\n\n1+1? <end_of_turn>", False) in rendered.parts


def test_a_template_that_refuses_more_than_the_system_role_is_still_an_error() -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    with pytest.raises(TemplateRefused, match="never"):
        ChatTemplate("{{ raise_exception('never') }}").render(chat)


def test_a_base_without_a_template_begins_with_its_first_token(tmp_path: Path) -> None:
    """Where its tokenizer writes one, or names one and is not told to leave it out; chat templates write their own."""
    chat = [{"role": "user", "content": "B"}]

    def first(name: str, **settings: object) -> str:
        (tmp_path / name).mkdir()
        found = HfTokenizer(write(tmp_path / name, **settings))  # type: ignore[arg-type]
        return found._control.get(found.encode_chat(chat)[0], "")

    named = {"chat_template": None, "bos_token": "<|endoftext|>"}
    assert first("named", **named) == "<|endoftext|>"
    assert first("unwanted", **named, add_bos_token=False) == ""
    assert first("none", chat_template=None) == ""
    assert first("chat", bos_token="<|endoftext|>") == "<|im_start|>"
    folder = write(tmp_path, chat_template=None)  # type: ignore[arg-type]
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    opening = raw.token_to_id("<|im_start|>")
    template = processors.TemplateProcessing("<|im_start|> $A", None, [("<|im_start|>", opening)])
    setattr(raw, "post_processor", template)  # noqa: B010 - a Rust property that vulture does not know
    raw.save(str(folder / "tokenizer.json"))
    assert HfTokenizer(folder).encode_chat(chat)[0] == opening


def test_a_template_that_asks_for_the_date_gets_the_same_every_day() -> None:
    """Unless it has one of its own for when nobody tells it."""
    chat = [{"role": "user", "content": "hi"}]
    asks = "{{ strftime_now('%d %B %Y') }} {{ messages[0].content }}"
    assert ChatTemplate(asks).render(chat).text == "01 January 2025 hi"
    has = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}26 Jul 2024{% endif %} {{ messages[0].content }}"
    assert ChatTemplate(has).render(chat).text == "26 Jul 2024 hi"


def test_templates_write_json_as_they_ask_for_it() -> None:
    template = "{{ {'b': 'ü', 'a': 1} | tojson(sort_keys=true, separators=(',', ':')) }}{{ messages[0].content }}"
    assert ChatTemplate(template).render([{"role": "user", "content": "!"}]).text == '{"a":1,"b":"ü"}!'


def test_a_model_with_a_switch_thinks_only_when_it_is_told_to() -> None:
    template = "{{ messages[0].content }}{% if not enable_thinking %}<think></think>{% endif %}"
    chat = [{"role": "user", "content": "hi"}]
    assert ChatTemplate(template, thinking="on").render(chat).text == "hi"
    for thinking in ("auto", "off"):
        assert ChatTemplate(template, thinking=thinking).render(chat).text == "hi<think></think>"
    assert not ChatTemplate(template, thinking="on").opens_reasoning


@pytest.mark.parametrize("thinking", ["auto", "on", "off"])
def test_a_template_that_always_opens_the_reasoning_is_known_whatever_the_switch_says(
    tmp_path: Path, thinking: Thinking
) -> None:
    """As DeepSeek-R1's and Qwen3-Thinking's do."""
    template = "{{ messages[0].content }}<assistant>{% if add_generation_prompt %}<think>\n{% endif %}"
    assert ChatTemplate(template, thinking=thinking).opens_reasoning
    assert chat_template.opens_reasoning(tmp_path, {"chat_template": template}, thinking)
    switched = "{{ messages[0].content }}{% if enable_thinking %}<think>{% else %}<think></think>{% endif %}"
    assert ChatTemplate(switched, thinking=thinking).opens_reasoning == (thinking == "on")
