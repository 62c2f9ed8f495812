"""What each engine makes of each family of models: the rows of docs/models.md, every one of them tested.

python tests/support/families.py > docs/models.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


WINDOW_TOKENS = 24
"""Tokens, fewer than most of the tests' prompts with their completions have."""
TINY: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": False},
    "mistral": {"sliding_window": None},
    "mistral-windowed": {"sliding_window": WINDOW_TOKENS},
    "phi3": {"num_key_value_heads": 2},
    "phi3-longrope": {
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.75,
        "max_position_embeddings": 16_384,
        "original_max_position_embeddings": 2048,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.5, 2.0, 2.5],
            "long_factor": [1.0, 1.3, 1.9, 4.0, 9.0, 20.0],
        },
    },
    "qwen3-windowed": {"use_sliding_window": True, "sliding_window": WINDOW_TOKENS, "max_window_layers": 1},
    "qwen3-wide": {"head_dim": 32},
    "smollm3": {"num_hidden_layers": 4},
    "olmo2": {"tie_word_embeddings": False},
    "olmo3": {"sliding_window": WINDOW_TOKENS, "num_hidden_layers": 4, "tie_word_embeddings": False},
    "granite": {
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.2,
    },
    "gemma": {"head_dim": 16},
    "gemma2": {
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": WINDOW_TOKENS,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 4.0,
    },
    "gemma3_text": {
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": WINDOW_TOKENS,
        "num_hidden_layers": 6,
    },
    "gemma4_text": {
        "head_dim": 16,
        "global_head_dim": 16,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 300,
        "num_kv_shared_layers": 0,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16},
    "granitemoe": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "logits_scaling": 2.0,
        "attention_multiplier": 0.2,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_ff_dim": 96, "block_auto_adjust_ff_dim": False},
    "qwen3_5_text": {
        "head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 96,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_expand": 2,
        "mamba_chunk_size": 32,
    },
    "granitemoehybrid-dense": {
        "layer_types": ["attention", "attention"],
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 96,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_expand": 2,
    },
    "falcon_h1": {
        "mamba_d_ssm": 64,
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_chunk_size": 32,
    },
}
"""What a family's tiny model needs beside the common settings; behind a hyphen another model of the same family."""
MODES = {
    "torch full": ("torch", "full", "float32"),
    "torch LoRA bf16": ("torch", "lora", "bfloat16"),
    "llama.cpp + torch": ("llamacpp+torch", "lora", "float32"),
    "MLX": ("mlx", "lora", "float32"),
}
"""Column -> engine, method and precision."""
EXACT = "exact"
TRANSFORMERS = "works, by transformers"
NO_GGUF = "no: {} cannot be written as GGUF here"
NO_MLX = "no: this package's MLX engine does not compute {}"
WINDOW = "exact up to the model's window"
NO_LONGROPE = "no: it has rotary embeddings that this engine does not compute"
MLX_GELU = "works: mlx_lm has the exact GELU where the model has its approximation by tanh"
GGML_GELU = "works: llama.cpp reads GELU from a table in float16"


@dataclass(frozen=True, slots=True)
class Row:
    """family: as the tests' tiny models name it. examples: of models. cells: of MODES, in order."""

    family: str
    examples: str
    cells: tuple[str, str, str, str]


def _own(family: str, examples: str, llamacpp: str = EXACT, mlx: str = EXACT) -> Row:
    return Row(family, examples, (EXACT, EXACT, llamacpp, mlx))


def _other(family: str, examples: str, architecture: str, lora: str = TRANSFORMERS) -> Row:
    no = f"architecture {architecture}"
    return Row(family, examples, (TRANSFORMERS, lora, NO_GGUF.format(no), NO_MLX.format(no)))


ROWS = (
    _own("llama", "Llama 3, SmolLM2"),
    _own("qwen2", "Qwen2.5, DeepSeek-R1-Distill-Qwen"),
    _own("qwen3", "Qwen3"),
    _own("mistral", "Mistral from 0.2 on"),
    _own("mistral-windowed", "Mistral 0.1, with a sliding window", WINDOW, WINDOW),
    _own("qwen3-windowed", "Qwen with use_sliding_window", WINDOW, WINDOW),
    _own("phi3", "Phi-4, without a sliding window; Phi-3: see above"),
    _own("phi3-longrope", "Phi-3 with a context of 128k, Phi-4-mini, up to 4,096 tokens", mlx=NO_LONGROPE),
    _own("smollm3", "SmolLM3"),
    _own("olmo2", "OLMo 2"),
    _own("olmo3", "OLMo 3 without YaRN: see above"),
    _own("granite", "Granite 3 (dense)"),
    _own("gemma", "Gemma 1", GGML_GELU, MLX_GELU),
    _own("gemma2", "Gemma 2", GGML_GELU, WINDOW),
    _own("gemma3_text", "Gemma 3 (text only)", GGML_GELU),
    _other("gpt_neox", "Pythia", "GPTNeoXForCausalLM"),
    _other(
        "gpt2",
        "GPT-2",
        "GPT2LMHeadModel",
        "no: it has no linear layers for an adapter, which the method full does not need",
    ),
    _other("mixtral", "Mixtral (mixture of experts)", "MixtralForCausalLM"),
    _other("qwen3_moe", "Qwen3 MoE", "Qwen3MoeForCausalLM"),
    _other("granitemoe", "Granite MoE", "GraniteMoeForCausalLM"),
    _other("lfm2", "LFM2 (convolutions)", "Lfm2ForCausalLM"),
    _other("qwen3_5_text", "Qwen3.5 (linear attention)", "Qwen3_5ForCausalLM"),
    _other("granitemoehybrid", "Granite 4.0 H (Mamba 2)", "GraniteMoeHybridForCausalLM"),
    _other("granitemoehybrid-dense", "Granite 4.0 without H", "GraniteMoeHybridForCausalLM"),
    _other("falcon_h1", "Falcon-H1 (Mamba 2 beside attention)", "FalconH1ForCausalLM"),
)

_HEAD = """# Which models work

Each cell is a test of an engine on a tiny model of random weights, against transformers in float64: log-probabilities
of what was sampled, and an update (*torch full*, *llama.cpp* and *MLX* in float32, the last two with an adapter). Made
by `python tests/support/families.py > docs/models.md`.

- **exact**: the same but for rounding; in bfloat16 a median error at most 1.6 times that of transformers' own.
- **in the window**: exact for texts no longer than the model's sliding window, which this engine does not compute; it
  loads the model for such texts only.
- **works**: right, and slower, as transformers computes it (`computed_by` in the facts of a run;
  [engines.md](engines.md) says how much slower); or with the difference in the cell.
- **no**: refused with the reason; use torch.

What counts is the model's config.json and not its name: the architecture, and in the rows that begin with *exact* also
the rope type (default, linear, llama3; longrope of Phi-3), rotary embeddings of whole heads (but for Phi-3), the
activation, the types of its layers and that it is not quantised (MLX reads its own quantised weights). Everything else
goes to transformers with torch; llama.cpp and MLX refuse it.

Published models that differ from their family's row: OLMo 3 has YaRN rotary embeddings (torch by transformers, the
others refuse it); Phi-3-mini-4k has a sliding window of 2,047 tokens (llama.cpp and MLX: in the window); Gemma 3 from
4B on also sees, and its language part is what is computed and exported.
"""
_ON_THE_PAGE = {
    WINDOW: "in the window",
    TRANSFORMERS: "works",
    NO_LONGROPE: "no",
    MLX_GELU: "works (exact GELU for its tanh approximation)",
    GGML_GELU: "works (GELU from a float16 table)",
}
"""Cells in the words of the page's legend."""


def page() -> str:
    """docs/models.md."""
    lines = [_HEAD, f"| family | for example | {' | '.join(MODES)} |", "|---" * (2 + len(MODES)) + "|"]
    lines += [f"| {row.family} | {row.examples} | {' | '.join(map(_page_cell, row.cells))} |" for row in ROWS]
    return "\n".join(lines) + "\n"


def _page_cell(cell: str) -> str:
    return _ON_THE_PAGE.get(cell, "no" if cell.startswith("no: ") else cell)


if __name__ == "__main__":
    print(page(), end="")
