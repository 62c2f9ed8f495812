"""Models of a given size with random weights, written as Hugging Face folders without transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

EOS, PAD = "<|im_end|>", "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder with tied embeddings."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int

    @property
    def multiplied(self) -> int:
        """Weights that every token is multiplied with: all but norms and biases (the embedding counts as head)."""
        head = self.hidden // self.heads
        attention = 2 * self.hidden * head * (self.heads + self.kv_heads)
        return self.vocabulary * self.hidden + self.layers * (attention + 3 * self.hidden * self.intermediate)


SHAPES = {
    "S": Shape(vocabulary=1024, hidden=256, intermediate=784, layers=6, heads=4, kv_heads=2),
    "L": Shape(vocabulary=151936, hidden=896, intermediate=4864, layers=24, heads=14, kv_heads=2),
    "135M": Shape(vocabulary=49152, hidden=576, intermediate=1536, layers=30, heads=9, kv_heads=3),
    "tiny": Shape(vocabulary=300, hidden=64, intermediate=96, layers=2, heads=4, kv_heads=2),
}


def sizes(shape: Shape, architecture: str) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor, by its name in the file."""
    head, hidden = shape.hidden // shape.heads, shape.hidden
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocabulary, hidden)}
    found["model.norm.weight"] = (hidden,)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        found[f"{prefix}.input_layernorm.weight"] = found[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
            found[f"{prefix}.self_attn.{name}_proj.weight"] = (heads * head, hidden)
            if architecture == "qwen2":
                found[f"{prefix}.self_attn.{name}_proj.bias"] = (heads * head,)
            elif architecture == "qwen3" and name != "v":
                found[f"{prefix}.self_attn.{name}_norm.weight"] = (head,)
        found[f"{prefix}.self_attn.o_proj.weight"] = (hidden, shape.heads * head)
        for name in ("gate", "up"):
            found[f"{prefix}.mlp.{name}_proj.weight"] = (shape.intermediate, hidden)
        found[f"{prefix}.mlp.down_proj.weight"] = (hidden, shape.intermediate)
    return found


def _weights(shape: Shape, seed: int, architecture: str, scale: float) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)

    def made(name: str, size: tuple[int, ...]) -> NDArray[np.float32]:
        if len(size) == 1:
            return np.zeros(size, np.float32) if name.endswith(".bias") else np.ones(size, np.float32)
        return rng.standard_normal(size, dtype=np.float32) * np.float32(scale)

    return {name: made(name, size) for name, size in sizes(shape, architecture).items()}


def _tokenizer(folder: Path) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (PAD, "<|im_start|>", EOS)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML."""
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def write_model(
    folder: Path, shape: Shape, seed: int = 0, architecture: str = "qwen2", scale: float = 0.02, chat: bool = False
) -> Path:
    """config.json, model.safetensors and a byte tokenizer in an existing folder.

    scale: standard deviation of the weights. chat: with a chat template. A Llama gets stretched rotary wavelengths.
    """
    write_folder(folder, shape, architecture, chat)
    save_file(_weights(shape, seed, architecture, scale), folder / "model.safetensors", {"format": "pt"})
    return folder


def write_folder(
    folder: Path, shape: Shape, architecture: str = "qwen2", chat: bool = False
) -> dict[str, tuple[int, ...]]:
    """The same without the weights; gives the shapes that they must have."""
    rope = LLAMA3_ROPE if architecture == "llama" else {"rope_type": "default", "rope_theta": 10000.0}
    eos = _tokenizer(folder).token_to_id(EOS)
    config = {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture,
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "head_dim": shape.hidden // shape.heads,
        "rope_theta": rope["rope_theta"],
        "rope_parameters": rope,
        "eos_token_id": eos,
        "pad_token_id": eos - 2,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "pad_token": PAD}
    if chat:
        settings["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return sizes(shape, architecture)


FOREIGN: dict[str, tuple[str, dict[str, Any]]] = {
    "LFM2-350M": (
        "Lfm2ForCausalLM",
        {
            "vocab_size": 65_536,
            "hidden_size": 1024,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "block_ff_dim": 6656,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        },
    ),
    "Qwen3.5-0.8B": (
        "Qwen3_5ForCausalLM",
        {
            "vocab_size": 248_320,
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "num_hidden_layers": 24,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_value_heads": 16,
            "tie_word_embeddings": True,
        },
    ),
    "Granite-MoE-1B": (
        "GraniteMoeForCausalLM",
        {
            "vocab_size": 49_155,
            "hidden_size": 1024,
            "intermediate_size": 512,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "num_local_experts": 32,
            "num_experts_per_tok": 8,
            "tie_word_embeddings": True,
        },
    ),
    "Granite-4.0-H-350M": (
        "GraniteMoeHybridForCausalLM",
        {
            "vocab_size": 100_352,
            "hidden_size": 768,
            "num_hidden_layers": 32,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 2048,
            "intermediate_size": 2048,
            "layer_types": ["attention" if layer in (10, 13, 17, 27) else "mamba" for layer in range(32)],
            "mamba_n_heads": 48,
            "mamba_d_head": 32,
            "mamba_d_state": 128,
            "mamba_n_groups": 1,
            "mamba_expand": 2,
            "tie_word_embeddings": True,
        },
    ),
}
"""Shapes that transformers alone computes here -> its class and settings, as remembered of the published models: convolutions,
linear attention, a mixture of experts, Mamba 2."""


def write_foreign_folder(folder: Path, architecture: str, settings: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The same for a class of transformers and its settings, which knows the names and shapes of its tensors."""
    import torch
    import transformers

    eos = _tokenizer(folder).token_to_id(EOS)
    made = getattr(transformers, architecture)
    config = made.config_class(**settings, eos_token_id=eos, pad_token_id=eos - 2, bos_token_id=None)
    config.architectures = [architecture]
    config.save_pretrained(folder)
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "pad_token": PAD}
    (folder / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    with torch.device("meta"):
        model = made(config)
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name not in tied}
