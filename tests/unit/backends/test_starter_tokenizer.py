"""The starter's tokenizer, as the recipe makes it and as the bundled models carry it."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

import sapo_assets
from recipe.tokenizer import END, START, STOP, VOCAB_SIZE, prompt_text, token_id, train
from recipe.worked import DATASETS, worked
from sapo_swarm.scoring import prompts
from sapo_swarm.tasks.catalogue import held_out
from sapo_swarm.tasks.questions import generate_entry

BUNDLED = tuple(sapo_assets.models())


@pytest.fixture(scope="module", params=BUNDLED)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.from_file(str(sapo_assets.model_path(request.param) / "tokenizer.json"))


@pytest.mark.parametrize("dataset", DATASETS)
def test_questions_and_solutions_come_back_as_they_were(tokenizer: Tokenizer, dataset: str) -> None:
    """Every task, encoded and decoded."""
    for index in range(5):
        _, entry = generate_entry(held_out(dataset, "starter", index))
        text = entry["question"] + worked(dataset, entry)
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_any_text_comes_back_in_unicodes_composed_form(tokenizer: Tokenizer) -> None:
    """Bytes are the alphabet: nothing is unknown. NFC is what Qwen2's tokenizer makes of every text."""

    @settings(max_examples=50, deadline=None, database=None)
    @given(st.text(max_size=40))
    def holds(text: str) -> None:
        tokenizer.encode_special_tokens = True
        came_back = tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False)
        assert came_back == unicodedata.normalize("NFC", text)
        tokenizer.encode_special_tokens = False

    holds()


def test_no_control_token_comes_from_text_when_splitting_is_off(tokenizer: Tokenizer) -> None:
    """A peer that writes <|im_end|> gets its letters, not the token."""
    control = {token_id(tokenizer, token) for token in (END, START, STOP)}
    tokenizer.encode_special_tokens = True
    assert not control & set(tokenizer.encode(f"x{STOP}{START}system{END}").ids)
    tokenizer.encode_special_tokens = False
    assert control <= set(tokenizer.encode(f"x{STOP}{START}system{END}").ids)


def test_every_digit_is_a_token_of_its_own(tokenizer: Tokenizer) -> None:
    """The space before it is another."""
    tokens = tokenizer.encode("2023 + 40/56").tokens
    assert [t for t in tokens if any(c.isdigit() for c in t)] == list("20234056")
    assert not [t for t in tokenizer.get_vocab() if sum(c.isdigit() for c in t) > 1]


def test_a_word_without_a_space_before_it_falls_into_letters(tokenizer: Tokenizer) -> None:
    """What a BF program prints is written as its steps are."""
    assert tokenizer.encode("<answer>moral</answer>").tokens == ["<answer", ">", *"moral", "<", "/", "answer", ">"]


def test_the_vocabulary_has_the_models_size_and_its_specials_first(tokenizer: Tokenizer) -> None:
    """Ids 0 to 2 are end of text (padding), start and end of a turn."""
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    assert [token_id(tokenizer, t) for t in (END, START, STOP)] == [0, 1, 2]


def test_training_gives_the_same_tokenizer_twice() -> None:
    """The merges depend on the texts alone."""
    texts = ["Calculate 5 + 8 - -2.", "5 + 8 = 13; 13 - -2 = 15\n<answer>15</answer>"]
    assert train(texts).to_str() == train(list(texts)).to_str()


def test_a_foreign_tokenizer_is_refused(tmp_path: Path) -> None:
    """It lacks the control tokens."""
    from tokenizers import models

    with pytest.raises(ValueError, match="not made by this recipe"):
        token_id(Tokenizer(models.BPE()), STOP)


@pytest.mark.parametrize("name", BUNDLED)
def test_the_chat_template_leaves_the_system_message_out(name: str) -> None:
    """The starter sees in use exactly what it saw in training."""
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(sapo_assets.model_path(name))
    question = "Calculate 3 + 4."
    text = loaded.apply_chat_template(prompts.build_messages(question), add_generation_prompt=True, tokenize=False)
    assert text == prompt_text(question)
    assert (loaded.eos_token, loaded.pad_token) == (STOP, END)


def test_transformers_reads_the_same_ids_however_it_is_asked() -> None:
    """AutoTokenizer gives every model of type qwen2 the pre-tokenizer of Qwen2, whatever the file says."""
    from transformers import AutoTokenizer

    for name in BUNDLED:
        folder = sapo_assets.model_path(name)
        ours, theirs = Tokenizer.from_file(str(folder / "tokenizer.json")), AutoTokenizer.from_pretrained(folder)
        for dataset in DATASETS:
            text = prompt_text(generate_entry(held_out(dataset, "starter", 0))[1]["question"])
            assert theirs(text).input_ids == ours.encode(text).ids
