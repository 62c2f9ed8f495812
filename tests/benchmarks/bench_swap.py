"""Handing a trained adapter from torch to llama.cpp, again and again: seconds a swap, and memory.

    python tests/benchmarks/bench_swap.py [--shape L] [--swaps 50]

The torch engine holds the adapter as its trainer would leave it (random numbers, other ones each time); a swap is reading
it out, writing it as GGUF, loading it, and checking that the logits changed. A generation after each swap shows that the
new adapter is used. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from shapes import SHAPES, write_model

from sapo_backends.base import Engine, LoadRequest, Sampling
from sapo_backends.common import hardware
from sapo_backends.llamacpp_backend import LlamaCppBackend
from sapo_backends.torch_backend import TorchBackend

SETTLED = 10
"""Swaps after which memory should no longer grow."""
PROMPT = tuple(range(5, 25))


def train(trainer: Engine, seed: int, alpha: float) -> None:
    """Other numbers in the trainer's adapter, as an update would leave them."""
    rng = np.random.default_rng(seed)
    found = {name: np.asarray(tensor) for name, tensor in trainer.adapter().items()}
    tensors = {name: rng.normal(0, 0.02, tensor.shape).astype(np.float32) for name, tensor in found.items()}
    trainer.set_adapter(tensors, alpha)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="L", choices=tuple(SHAPES))
    parser.add_argument("--swaps", type=int, default=50)
    parser.add_argument("--precision", default="q8_0", help="of llama.cpp's weights")
    parser.add_argument("--threads", type=int, default=hardware.default_threads())
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        model.mkdir()
        write_model(model, SHAPES[options.shape])
        request = LoadRequest(model=str(model), method="lora", threads=options.threads)
        trainer = TorchBackend().load(request)
        generator = LlamaCppBackend(cache=Path(folder)).load(
            LoadRequest(model=str(model), method="lora", threads=options.threads, precision=options.precision)
        )
        seconds, memory, drawn = list[float](), list[int](), set[str]()
        for number in range(options.swaps):
            train(trainer, number, request.lora_alpha)
            began = time.perf_counter()
            generator.set_adapter(trainer.adapter(), request.lora_alpha)
            seconds.append(time.perf_counter() - began)
            group = generator.generate([PROMPT], 1, Sampling(max_new_tokens=4), seed=0)[0]
            drawn.add(str(group[0].logprobs))
            memory.append(psutil.Process().memory_info().rss)
        settled = memory[min(SETTLED, options.swaps) - 1]
        result = {
            "shape": options.shape,
            "generator": generator.info.precision,
            "swaps": options.swaps,
            "swap_s": {"median": round(statistics.median(seconds), 3), "max": round(max(seconds), 3)},
            "memory_mib": {"after_10": settled >> 20, "at_end": memory[-1] >> 20, "most": max(memory) >> 20},
            "different_answers": len(drawn),
        }
        generator.close()
        trainer.close()
        print(json.dumps(result))


if __name__ == "__main__":
    main()
