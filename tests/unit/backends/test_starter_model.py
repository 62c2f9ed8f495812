"""The bundled models: small, complete, and the same for every reader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

import sapo_assets
from recipe import model as recipe_model
from recipe.card import card
from recipe.evaluate import evaluate, mean
from recipe.tokenizer import prompt_text
from sapo_backends.base import LoadRequest
from sapo_backends.registry import get_backend
from sapo_swarm.tasks.catalogue import held_out
from sapo_swarm.tasks.questions import generate_entry

BUNDLED = tuple(sapo_assets.models())
MEGABYTES = {"starter-1m": 3, "starter": 30}


@pytest.fixture(scope="module", params=BUNDLED)
def folder(request: pytest.FixtureRequest) -> Path:
    return sapo_assets.model_path(request.param)


def test_each_model_is_within_its_size(folder: Path) -> None:
    """The wheel carries them."""
    assert sum(f.stat().st_size for f in folder.iterdir()) < MEGABYTES[folder.name] * 1_000_000


def test_the_config_spells_theta_both_ways(folder: Path) -> None:
    """transformers 5 reads rope_parameters, mlx_lm only the top-level key and otherwise defaults silently."""
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == recipe_model.ROPE_THETA


def test_the_recipe_of_the_model_is_on_record(folder: Path) -> None:
    """Seeds, versions and the number of tokens seen."""
    record = json.loads((folder / "recipe.json").read_text())
    assert record["versions"]["reasoning-gym"] == "0.1.25"
    assert {"seed", "minutes"} <= record["plan"].keys()
    assert record["done"]["tokens"] > 0


def test_the_card_is_what_recipe_card_makes_of_the_recorded_figures() -> None:
    folders = {name: sapo_assets.model_path(name) for name in BUNDLED}
    assert card(folders) == (folders["starter"].parent / "README.md").read_text(encoding="utf-8")


def test_transformers_gives_the_same_logits_and_the_same_greedy_tokens(folder: Path) -> None:
    """Our lean model and Qwen2ForCausalLM are one function."""
    from transformers import AutoModelForCausalLM

    ours, words = recipe_model.load(folder).eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for dataset in ("basic_arithmetic", "arc_1d", "bf"):
        prompt = words.encode(prompt_text(generate_entry(held_out(dataset, "starter", 3))[1]["question"])).ids
        with torch.inference_mode():
            ids = theirs.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)
            logits = ours.logits(ours(ids))
            torch.testing.assert_close(logits, theirs(ids).logits, rtol=1e-4, atol=1e-4)
        assert logits[0, len(prompt) - 1 : -1].argmax(-1).tolist() == ids[0, len(prompt) :].tolist()


def test_most_completions_are_well_formed(folder: Path) -> None:
    """The form is learned before reinforcement learning begins: it must not win by form alone."""
    engine = get_backend("torch")().load(LoadRequest(str(folder), method="none", precision="float32", threads=1))
    assert mean(evaluate(engine, "starter", items=3, group=4)).well_formed >= 0.85
