"""Which precision computes a model faster on this processor: synthetic samples, the model's size on disk, and a short
measurement."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from sapo_backends import registry
from sapo_backends.base import Engine, LoadRequest, PolicyUpdate, Progress, Sampling, TrainSample
from sapo_backends.checkpoints.locate import resolve_model
from sapo_backends.checkpoints.safetensors_numpy import count_weights
from sapo_backends.checkpoints.spec import DecoderSpec, decoder_spec, why_not
from sapo_backends.checkpoints.tokenizer import read_json
from sapo_backends.common import round_memory
from sapo_backends.common.round_memory import ModelSize, language_part, pick_method, usual_widths
from sapo_backends.errors import BackendError
from sapo_backends.measure.choice import TIE, TORCH

# Synthetic prompts and completions, so that every engine is measured on the same input.

GROUP = 8
"""Completions per prompt, where the width allows it."""
QUESTION = "Start with {0}. Add {1}, take away {2} and multiply by {3}. What is the result? Answer with a number."


def synthetic_prompts(engine: Engine, count: int) -> list[list[int]]:
    """`count` synthetic questions, encoded."""
    texts = [QUESTION.format(i, 3 * i + 1, 2 * i, i + 2) for i in range(count)]
    return [list(engine.tokenizer.encode_chat([{"role": "user", "content": text}])) for text in texts]


def synthetic_batch(engine: Engine, groups: int, tokens: int) -> list[TrainSample]:
    """Completions of fixed length with alternating advantages."""
    usable = min(engine.info.vocabulary, 1000)
    return [
        TrainSample(
            tuple(prompt),
            tuple(10 + (13 * row + 7 * place) % (usable - 10) for place in range(tokens)),
            1.0 if row % 2 else -1.0,
        )
        for prompt in synthetic_prompts(engine, groups)
        for row in range(GROUP)
    ]


# The size of a model on disk, read from its config and the headers of its weight files; nothing is loaded.

Method = Literal["full", "lora", "none"]


def model_size(folder: Path, request: LoadRequest, parameters: int = 0) -> tuple[ModelSize, Method]:
    """The size of the model in a Hugging Face folder, and how much of it `request` trains.

    Architectures that our own decoder does not compute are estimated from the usual names in their config. parameters:
    used if the folder has no weights yet. Raises ModelNotFound.
    """
    config = read_json(folder / "config.json")
    quantised = "quantization" in config or "quantization_config" in config
    count = parameters or count_weights(folder, packed=_packed(config))
    tied = bool(config.get("tie_word_embeddings")) if why_not(config) else decoder_spec(config).tied
    return size_from_widths(count, _widths(config), request, tied=tied, quantised=quantised)


def size_from_widths(
    parameters: int, widths: Mapping[str, int], request: LoadRequest, *, tied: bool, quantised: bool = False
) -> tuple[ModelSize, Method]:
    """The size of a model known only by its figures. widths: layers, hidden, intermediate, key_value, vocabulary,
    heads, and the others that usual_widths returns."""
    method = pick_method(request, parameters, quantised=quantised)
    trainable = {"full": parameters, "none": 0}.get(method, _adapter(widths, request.lora_rank))
    return ModelSize(parameters, trainable, **widths, tied=tied), method


def _packed(config: Mapping[str, Any]) -> int:
    """How many weights one stored 32-bit element of a quantised model holds."""
    settings = config.get("quantization") or {}
    return 32 // int(settings.get("bits") or 4)


def _widths(config: Mapping[str, Any]) -> dict[str, int]:
    if not why_not(config):
        return _of_decoder(decoder_spec(config))
    return usual_widths(language_part(config))


def _of_decoder(spec: DecoderSpec) -> dict[str, int]:
    return {
        "layers": spec.layers,
        "hidden": spec.hidden,
        "intermediate": spec.intermediate,
        "key_value": spec.kv_width,
        "vocabulary": spec.vocabulary,
        "heads": spec.heads,
    }


def _adapter(widths: Mapping[str, int], rank: int) -> int:
    """LoRA parameters on every linear layer except experts, which have no adapter; queries count as wide as the model."""
    hidden, kv, inner = widths["hidden"], widths["key_value"], widths["intermediate"]
    sides = 2 * (hidden + hidden) + 2 * (hidden + kv) + (0 if widths.get("experts") else 3 * (hidden + inner))
    return rank * widths["layers"] * sides


# Which precision computes a model faster on this processor: a short measurement before its first run.
#
# The processor's name and instructions do not tell: on one machine float32 with the compiled kernels generates twice
# as fast as bfloat16 for a model of 1M parameters, and a whole round takes two thirds of the time in bfloat16 for 5M.

GROUPS, NEW_TOKENS = 2, 16
REPEATS = 1
"""Runs after the first one, which compiles; the quickest counts."""
ROWS = (64, 1024)
"""Rows of the products that stand in for a large model's decode steps and micro-batches."""


def measure_precisions(request: LoadRequest, progress: Progress | None = None) -> dict[str, float]:
    """Processor seconds by precision for the same work on one thread; takes about a second.

    If our own decoder computes the model with one shard per thread, the work is a small round. For other models, whose
    loading alone takes longer than that, it is products of the model's widths. Raises BackendError.
    """
    if progress is not None:
        progress(0.01, "finding the faster precision, once")
    folder = resolve_model(request.model, progress)
    size, _ = model_size(folder, request)
    config = read_json(folder / "config.json")
    if not why_not(config) and size.parameters < round_memory.SHARDED_BELOW:
        # In a thread: float32 needs the kernels, and the compiler runs as a separate process anyway.
        compiling = threading.Thread(target=compile_kernels)
        compiling.start()
        rounds = {"bfloat16": _round(request, "bfloat16")}
        compiling.join()
        return rounds | {"float32": _round(request, "float32")}
    return {name: _products(size, name) for name in TORCH}


def compile_kernels() -> None:
    """Make the torch engine compile its C kernels if there is a compiler and they are not compiled yet."""
    try:
        from sapo_backends.torch_backend.native import load_kernels
    except ImportError:
        return
    load_kernels()


def faster_precision(seconds: Mapping[str, float]) -> str:
    """The precision to use; float32, which rounds less, if the difference is small. "auto" without figures."""
    if not seconds:
        return "auto"
    best = min(seconds, key=lambda name: seconds[name])
    return "float32" if seconds.get("float32", float("inf")) <= TIE * seconds[best] else best


def _quickest(work: Callable[[], object]) -> float:
    times = []  # processor seconds, which other programs hardly change
    for _ in range(1 + REPEATS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times[1:])


def _round(request: LoadRequest, precision: str) -> float:
    """Seconds to generate some groups and run an update on them."""
    engine = registry.get_backend("torch")().load(replace(request, precision=precision, device="cpu", threads=1))
    try:
        asked, sampling = synthetic_prompts(engine, GROUPS), Sampling(max_new_tokens=NEW_TOKENS, for_training=True)
        generation = _quickest(lambda: engine.generate(asked, GROUP, sampling, 0))
        if engine.info.method == "none":
            return generation
        samples, policy = synthetic_batch(engine, GROUPS, NEW_TOKENS), PolicyUpdate(learning_rate=0.0)
        return generation + _quickest(lambda: engine.update(samples, policy, 0))
    finally:
        engine.close()


def _products(size: round_memory.ModelSize, precision: str) -> float:
    """Seconds of products with the widest projection."""
    try:
        import torch
    except ImportError as error:
        raise BackendError(f"PyTorch cannot be loaded: {error}.") from error

    kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
    weight = torch.randn(2 * size.intermediate, size.hidden).to(kind)
    inputs = [torch.randn(rows, size.hidden).to(kind) for rows in ROWS]
    with torch.inference_mode():
        return sum(_quickest(lambda x=x: torch.nn.functional.linear(x, weight)) for x in inputs)  # type: ignore[misc]
