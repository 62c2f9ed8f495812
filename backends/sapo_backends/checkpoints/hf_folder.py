"""What every exporter writes beside the weights of a Hugging Face folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from sapo_backends.checkpoints.tokenizer import read_json

COPIED = (
    "tokenizer*.json",
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
)


def write_settings(source: Path, folder: Path, dtype: str) -> None:
    """Copy the tokenizer and write config.json for unquantised weights of `dtype`.

    A rope base goes to both the places that readers look for it: transformers 5 writes only rope_parameters, and
    some readers silently assume a default when there is no top-level rope_theta.
    """
    config = read_json(source / "config.json")
    rope = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    theta = rope.get("rope_theta") or config.get("rope_theta")
    if theta is not None:
        rope = {"rope_type": "default", **rope, "rope_theta": theta}
        config |= {"rope_parameters": rope, "rope_theta": theta}
    config["dtype"] = config["torch_dtype"] = dtype
    for key in ("quantization", "quantization_config"):
        config.pop(key, None)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    for pattern in COPIED:
        for file in source.glob(pattern):
            shutil.copyfile(file, folder / file.name)
