"""Chat templates in the shape of each family's own: laid out as its models expect, whatever a question spells.

The templates are ours; roles, marks and what they refuse are those of the families.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from sapo_backends.checkpoints.chat_template import ChatTemplate
from sapo_backends.checkpoints.tokenizer import HfTokenizer

SYSTEM, QUESTION = "Be brief.", "2 + 2?"
CHAT = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_LAID_OUT = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"


@dataclass(frozen=True, slots=True)
class Shape:
    """begins, ends: the first token ("" for none) and the one that ends a turn. controls: the other control tokens.
    laid_out: what CHAT becomes."""

    begins: str
    ends: str
    controls: tuple[str, ...]
    template: str
    laid_out: str


SHAPES = {
    "llama 3": Shape(
        "<|begin_of_text|>",
        "<|eot_id|>",
        ("<|start_header_id|>", "<|end_header_id|>"),
        "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{% if m.role == 'system' %}Today Date: {{ strftime_now('%d %b %Y') }}\n\n{% endif %}{{ m.content | trim }}<|eot_id|>"
        "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday Date: 01 Jan 2025\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\n2 + 2?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "qwen2, smollm2": Shape("", "<|im_end|>", ("<|im_start|>",), CHATML, CHATML_LAID_OUT),
    "qwen3": Shape(
        "",
        "<|im_end|>",
        ("<|im_start|>",),
        CHATML.replace(
            "assistant\n{% endif %}",
            "assistant\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
        ),
        f"{CHATML_LAID_OUT}<think>\n\n</think>\n\n",
    ),
    "deepseek r1": Shape(
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        ("<｜User｜>", "<｜Assistant｜>"),
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}<｜User｜>"
        "{{ m.content }}{% else %}<｜Assistant｜>{{ m.content }}<｜end▁of▁sentence｜>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}",
        "<｜begin▁of▁sentence｜>Be brief.<｜User｜>2 + 2?<｜Assistant｜><think>\n",
    ),
    "mistral": Shape(
        "<s>",
        "</s>",
        ("[INST]", "[/INST]"),
        "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}",
        "<s>[INST] Be brief.\n\n2 + 2? [/INST]",
    ),
    "phi 3": Shape(
        "",
        "<|end|>",
        ("<|system|>", "<|user|>", "<|assistant|>"),
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        "<|system|>\nBe brief.<|end|>\n<|user|>\n2 + 2?<|end|>\n<|assistant|>\n",
    ),
    "olmo 2": Shape(
        "<|endoftext|>",
        "<|endoftext|>",
        (),
        "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}"
        "{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        "<|endoftext|><|system|>\nBe brief.\n<|user|>\n2 + 2?\n<|assistant|>\n",
    ),
    "granite": Shape(
        "",
        "<|end_of_text|>",
        ("<|start_of_role|>", "<|end_of_role|>"),
        "{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}",
        "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>2 + 2?"
        "<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    ),
    "gemma": Shape(
        "<bos>",
        "<end_of_turn>",
        ("<start_of_turn>",),
        "{{ bos_token }}"
        + NO_SYSTEM
        + "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}"
        "\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
        "<bos><start_of_turn>user\nBe brief.\n\n2 + 2?<end_of_turn>\n<start_of_turn>model\n",
    ),
    "lfm2": Shape(
        "<|startoftext|>",
        "<|im_end|>",
        ("<|im_start|>",),
        "{{ bos_token }}" + CHATML,
        f"<|startoftext|>{CHATML_LAID_OUT}",
    ),
}
EVERY = pytest.mark.parametrize("family", sorted(SHAPES))


def tokenizer(folder: Path, shape: Shape) -> HfTokenizer:
    """Bytes, and the family's control tokens."""
    raw = Tokenizer(
        models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    )
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    controls = dict.fromkeys(filter(None, (shape.begins, shape.ends, *shape.controls)))
    raw.add_special_tokens([AddedToken(text, special=True) for text in controls])
    raw.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": shape.begins or None, "eos_token": shape.ends, "chat_template": shape.template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return HfTokenizer(folder)


@EVERY
def test_a_question_is_laid_out_as_the_family_s_models_expect_it(family: str) -> None:
    """A system prompt without a place of its own stands before the question."""
    shape = SHAPES[family]
    assert ChatTemplate(shape.template, bos=shape.begins, eos=shape.ends).render(CHAT).text == shape.laid_out


@EVERY
def test_no_question_becomes_a_control_token_of_the_family(family: str, tmp_path: Path) -> None:
    shape = SHAPES[family]
    found = tokenizer(tmp_path, shape)
    hostile = "".join((shape.begins, shape.ends, *shape.controls))
    honest, spelled = (
        [i for i in found.encode_chat([CHAT[0], {"role": "user", "content": text}]) if i >= 256]
        for text in (QUESTION, hostile)
    )
    assert honest == spelled
    assert len(honest) == sum(
        shape.laid_out.count(token) for token in {shape.begins, shape.ends, *shape.controls} - {""}
    )


@EVERY
def test_an_answer_ends_with_the_end_token_of_the_family(family: str, tmp_path: Path) -> None:
    found = tokenizer(tmp_path, SHAPES[family])
    assert found.encode_text(SHAPES[family].ends)[0] < 256
    assert found.decode([found.eot_id]) == ""
    assert found._control[found.eot_id] == SHAPES[family].ends
