"""What a config.json says of a family, as the decoder reads it; docs/models.md is made of the tested table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support import families

from sapo_backends.checkpoints.gguf_write import FORMS, context_length, why_not_gguf
from sapo_backends.checkpoints.spec import FAMILIES, decoder_spec, why_not
from sapo_backends.common.round_memory import DELTA_RULE, STATE_SPACE, language_part, usual_widths
from sapo_backends.errors import ModelNotFound

PAGE = Path(__file__).parents[3] / "docs" / "models.md"


def config(architecture: str, **more: Any) -> dict[str, Any]:
    """A small model of six layers."""
    return {
        "architectures": [architecture],
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "head_dim": 16,
        "max_position_embeddings": 32768,
        **more,
    }


def test_the_page_of_models_is_the_tested_table() -> None:
    """Mend it with: python tests/support/families.py > docs/models.md"""
    assert PAGE.read_text(encoding="utf-8") == families.page()
    assert len(families.ROWS) >= 16


def test_every_family_has_a_form_for_llama_cpp() -> None:
    assert FORMS.keys() == FAMILIES.keys()
    for name in FAMILIES:
        assert why_not(config(name)) == ""


def test_configs_of_transformers_4_say_the_same_as_those_of_5() -> None:
    """Gemma 3's two ropes and its layers with a window; NoPE layers of SmolLM3; max_window_layers of Qwen."""
    old = config(
        "Gemma3ForCausalLM",
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        sliding_window=512,
        sliding_window_pattern=6,
    )
    new = config(
        "Gemma3ForCausalLM",
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        sliding_window=512,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
    )
    assert decoder_spec(old) == decoder_spec(new)
    assert decoder_spec(old).layer_rope == (1, 1, 1, 1, 1, 0)
    assert decoder_spec(config("SmolLM3ForCausalLM")).layer_rope == (0, 0, 0, 1, 0, 0)
    qwen = config("Qwen2ForCausalLM", use_sliding_window=True, sliding_window=64, max_window_layers=4)
    assert decoder_spec(qwen).layer_windowed == (False,) * 4 + (True,) * 2
    assert decoder_spec({**qwen, "use_sliding_window": False}).window == 0


def test_published_models_that_differ_from_their_row_are_what_the_page_says() -> None:
    """With the settings of Olmo-3-1025-7B, Phi-3-mini-4k, Phi-3-mini-128k and Phi-4-mini, as far as they are about this."""
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
    assert why_not(config("Olmo3ForCausalLM", rope_scaling=yarn, sliding_window=4096)) == "rope type yarn"
    short = config("Phi3ForCausalLM", sliding_window=2047, max_position_embeddings=4096)
    assert why_not(short) == ""
    assert context_length(decoder_spec(short)) == 2047
    factors = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    contexts = {"max_position_embeddings": 131_072, "original_max_position_embeddings": 4096, "sliding_window": 262_144}
    phi3 = {"hidden_size": 3072, "num_attention_heads": 32, "head_dim": 96, "rope_scaling": factors}
    phi3 |= contexts
    for more in ({}, {"num_attention_heads": 24, "head_dim": 128, "partial_rotary_factor": 0.75}):
        published = config("Phi3ForCausalLM", **{**phi3, **more})
        assert why_not(published) == ""
        spec = decoder_spec(published)
        assert (spec.context, spec.rotary, spec.window, spec.plain) == (4096, 96, 0, False)
        assert spec.rope.attention == pytest.approx(1.1902, abs=1e-4)
    assert why_not(config("Phi3ForCausalLM", **{**phi3, "head_dim": 128})) == "a longrope of another width"


def test_a_window_that_llama_cpp_does_not_know_is_the_longest_text() -> None:
    windowed = decoder_spec(config("MistralForCausalLM", sliding_window=4096))
    assert context_length(windowed) == 4096
    assert context_length(decoder_spec(config("MistralForCausalLM", sliding_window=None))) == 32768
    gemma = decoder_spec(config("Gemma2ForCausalLM", query_pre_attn_scalar=16))
    assert (context_length(gemma), why_not_gguf(gemma)) == (32768, "")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_act": "relu"}, "activation relu"),
        ({"partial_rotary_factor": 0.75}, "a part of each head"),
        ({"rope_scaling": {"type": "longrope"}}, "rope type longrope"),
        ({"layer_types": ["chunked_attention"] * 6}, "layers of type chunked_attention"),
        (
            {"layer_types": ["sliding_attention"] * 5, "sliding_window": 64, "use_sliding_window": True},
            "another length",
        ),
        ({"architectures": ["MixtralForCausalLM"]}, "architecture MixtralForCausalLM"),
    ],
)
def test_what_the_decoder_does_not_compute_is_left_to_transformers(changes: dict[str, Any], reason: str) -> None:
    assert reason in why_not({**config("SmolLM3ForCausalLM"), **changes})


def test_a_model_of_another_form_than_llama_cpp_s_is_refused_in_words() -> None:
    odd = [
        config("SmolLM3ForCausalLM", no_rope_layers=[1, 0] * 3),
        config("Gemma2ForCausalLM", query_pre_attn_scalar=144),
        config("Gemma3ForCausalLM", query_pre_attn_scalar=16, layer_types=["sliding_attention", "full_attention"] * 3),
        config("Olmo2ForCausalLM", tie_word_embeddings=True),
    ]
    assert all("llama.cpp" in why_not_gguf(decoder_spec(one)) for one in odd)


@pytest.mark.parametrize(
    "changes", [{"hidden_size": None}, {"num_attention_heads": 0}, {"vocab_size": "many"}, {"rope_scaling": "none"}]
)
def test_a_config_without_a_width_is_refused_in_a_sentence(changes: dict[str, Any]) -> None:
    """Or with something else in its place."""
    odd = {**config("Qwen2ForCausalLM"), "head_dim": None, **changes}
    for damaged in (odd, {key: value for key, value in odd.items() if value is not None}):
        with pytest.raises(ModelNotFound, match=r"config\.json (lacks 'hidden_size'|is damaged)"):
            why_not(damaged)
        with pytest.raises(ModelNotFound, match=r"config\.json (lacks 'hidden_size'|is damaged)"):
            decoder_spec(damaged)


def test_gemma_3n_s_widths_are_read() -> None:
    """It gives each layer a width of its own, in the part of its config that is about language."""
    text = {"hidden_size": 2048, "intermediate_size": [8192, 16384], "num_hidden_layers": 2, "num_attention_heads": 8}
    found = usual_widths(language_part({"architectures": ["Gemma3nForConditionalGeneration"], "text_config": text}))
    assert (found["layers"], found["hidden"], found["intermediate"], found["key_value"]) == (2, 2048, 16384, 2048)
    assert (found["experts"], found["recurrent"], found["state"]) == (0, 0, 0)


def test_the_widths_of_experts_and_of_layers_with_a_state_are_read() -> None:
    """They decide the memory of an update as much as hidden and intermediate do."""
    experts = {"hidden_size": 64, "intermediate_size": 512, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
    found = usual_widths({**experts, "num_experts": 8, "num_hidden_layers": 3})
    assert (found["experts"], found["intermediate"], found["idle"]) == (2, 32, 3 * 6 * 3 * 64 * 32)
    linear = {"linear_num_value_heads": 4, "linear_value_head_dim": 16, "linear_key_head_dim": 8}
    found = usual_widths({**linear, "layer_types": ["linear_attention", "full_attention", "linear_attention"]})
    assert (found["recurrent"], found["state"]) == (DELTA_RULE * 64, 2 * 64 * 8)
    found = usual_widths({"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "num_hidden_layers": 3})
    assert (found["recurrent"], found["state"]) == (STATE_SPACE * 32, 3 * 4 * 16 * 8)
    granite = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "layer_types": ["attention", "attention"]}
    assert (usual_widths(granite)["recurrent"], usual_widths(granite)["state"]) == (0, 0), "Granite 4.0 without H"
    nemotron = {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8}
    found = usual_widths({**nemotron, "layers_block_type": ["mamba", "moe", "attention"]})
    assert (found["recurrent"], found["state"]) == (STATE_SPACE * 32, 4 * 16 * 8)
