"""The Qwen2 architecture in plain torch, small: what the recipe trains.

Same parameter names as the safetensors files of the Hugging Face format, so that saving is a dictionary.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

ROPE_THETA = 10_000.0
NORM_EPS = 1e-6


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; vocabulary and context are the same for all."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    vocab: int = 1024
    context: int = 1024

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


SHAPES = {
    "1m": Shape(hidden=128, layers=5, heads=4, kv_heads=2, mlp=352),
    "5m": Shape(hidden=256, layers=6, heads=4, kv_heads=2, mlp=800),
}


def rotary(context: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine tables, each (context, head_dim), in the half-split layout of Qwen2."""
    rates = ROPE_THETA ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.outer(torch.arange(context, dtype=torch.float64), rates)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: (batch, heads, time, head_dim); cos, sin: broadcastable (..., time, head_dim)."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Plain softmax attention, (batch, heads, time, head_dim).

    Written out because the backward of the fused kernel took four times as long in bfloat16 on a CPU (78 against
    16 ms at 32 x 8 x 128 x 32), and outside autocast so that the softmax stays in bfloat16 too.
    """
    with torch.autocast(q.device.type, enabled=False):
        scores: Tensor = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        out: Tensor = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1) @ v
    return out


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, shape.hidden)
        self.k_proj = nn.Linear(shape.hidden, width)
        self.v_proj = nn.Linear(shape.hidden, width)
        self.o_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        batch, time, _ = x.shape
        shape = self.shape
        q = self.q_proj(x).view(batch, time, shape.heads, shape.head_dim).transpose(1, 2)  # (B, H, T, D)
        k = self.k_proj(x).view(batch, time, shape.kv_heads, shape.head_dim).transpose(1, 2)  # (B, K, T, D)
        v = self.v_proj(x).view(batch, time, shape.kv_heads, shape.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        repeat = shape.heads // shape.kv_heads
        k, v = k.repeat_interleave(repeat, dim=1), v.repeat_interleave(repeat, dim=1)
        if mask is None:
            mask = torch.ones(time, time, dtype=torch.bool, device=x.device).tril()
        out = attend(q, k, v, mask)
        return self.o_proj(out.transpose(1, 2).reshape(batch, time, shape.hidden))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.down_proj = nn.Linear(shape.mlp, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=NORM_EPS)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=NORM_EPS)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        x = x + self.mlp(self.post_attention_layernorm(x))
        return x


class Qwen2(nn.Module):
    """Tied embeddings, biased q/k/v, RMSNorm, SwiGLU, rotary positions."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=NORM_EPS)
        cos, sin = rotary(shape.context, shape.head_dim)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def initialise(self, seed: int) -> None:
        """Normal weights; output projections smaller with depth."""
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if weight.dim() < 2:
                nn.init.constant_(weight, 1.0 if "norm" in name else 0.0)
                continue
            deviation = 0.02 if "embed" in name else weight.shape[1] ** -0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                deviation /= (2 * self.shape.layers) ** 0.5
            nn.init.normal_(weight, std=deviation, generator=generator)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """ids: (batch, time) -> hidden states (batch, time, hidden). mask: (batch, 1, time, time); causal without one."""
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.norm(x)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed_tokens.weight)


def config(shape: Shape, end: int, stop: int) -> dict[str, object]:
    """config.json. Both spellings of theta: transformers 5 reads the new one, mlx_lm the old one."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "attention_dropout": 0.0,
        "bos_token_id": end,
        "eos_token_id": stop,
        "pad_token_id": end,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.mlp,
        "max_position_embeddings": shape.context,
        "max_window_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": NORM_EPS,
        "rope_theta": ROPE_THETA,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocab,
    }


def save(model: Qwen2, folder: Path, end: int, stop: int) -> None:
    """config.json, generation_config.json and model.safetensors (weights rounded to bfloat16)."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {f"model.{k}": v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(model.shape, end, stop), indent=1) + "\n")
    generation = {"do_sample": True, "temperature": 1.0, "eos_token_id": stop, "pad_token_id": end}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")


def load(folder: Path) -> Qwen2:
    """A model that `save` wrote, in float32."""
    settings = json.loads((folder / "config.json").read_text())
    shape = Shape(
        hidden=settings["hidden_size"],
        layers=settings["num_hidden_layers"],
        heads=settings["num_attention_heads"],
        kv_heads=settings["num_key_value_heads"],
        mlp=settings["intermediate_size"],
        vocab=settings["vocab_size"],
        context=settings["max_position_embeddings"],
    )
    model = Qwen2(shape)
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({k.removeprefix("model."): v.float() for k, v in weights.items()})
    return model
