"""One round (generate and update) of ours beside TRL's GRPOTrainer: same model, prompts and lengths, taken in turns.

    python tests/benchmarks/bench_round.py --peer .venv-peers/bin/python [--shape S] [--rounds 5]

Prints one line of JSON: medians in seconds, the ratio, and the share of this machine's measured bfloat16
multiplication rate (2 FLOP a weight and generated token, 6 a weight and trained token).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from shapes import SHAPES, Shape, write_model

from sapo_backends import hardware
from sapo_backends.base import Engine, LoadRequest, PolicyUpdate, Sampling, TrainSample
from sapo_backends.torch_backend import TorchBackend

GROUPS, GROUP_SIZE, NEW_TOKENS, PROMPT = 8, 8, 64, 40
POLICY = PolicyUpdate("grpo", learning_rate=1e-5)


def prompts() -> list[str]:
    """Different texts of PROMPT bytes, one token each."""
    return [f"{i} + {7 * i} = ? " + "abcdefghijklmnopqrstuvwxyz"[: PROMPT - 20] * 2 for i in range(GROUPS)]


def our_round(engine: Engine, texts: list[str], seed: int) -> dict[str, float]:
    """Seconds of generation and update, tokens generated."""
    ids = [engine.tokenizer.encode_text(text[:PROMPT]) for text in texts]
    began = time.perf_counter()
    groups = engine.generate(ids, GROUP_SIZE, Sampling(max_new_tokens=NEW_TOKENS), seed)
    middle = time.perf_counter()
    batch = [
        TrainSample(tuple(prompt), completion.tokens, 1.0 if i % 2 else -1.0)
        for prompt, group in zip(ids, groups, strict=True)
        for i, completion in enumerate(group)
    ]
    engine.update(batch, POLICY, seed)
    end = time.perf_counter()
    return {
        "generate": middle - began,
        "update": end - middle,
        "round": end - began,
        "tokens": sum(len(sample.completion) for sample in batch),
    }


def multiply_rate() -> float:
    """FLOP/s of a 2048-cube bfloat16 product, the best of three."""
    a, b = (torch.randn(2048, 2048, dtype=torch.bfloat16) for _ in range(2))

    def once() -> float:
        began = time.perf_counter()
        torch.mm(a, b)
        return time.perf_counter() - began

    once()
    return 2 * 2048**3 / min(once() for _ in range(3))


class Peer:
    """A process that takes one TRL step each time it is asked."""

    def __init__(self, python: str, model: Path, scratch: Path, options: argparse.Namespace) -> None:
        request = {
            "model": str(model),
            "scratch": str(scratch),
            "prompts": [text[:PROMPT] for text in prompts()],
            "groups": GROUPS,
            "group_size": GROUP_SIZE,
            "new_tokens": NEW_TOKENS,
            "steps": options.rounds + 2,
            "threads": options.threads,
            "bfloat16": options.peer_precision == "bfloat16",
            "accumulation": options.peer_accumulation,
            "lora": options.shape == "L",
        }
        script = Path(__file__).with_name("peer_trl.py")
        self._process = subprocess.Popen(
            [python, str(script), json.dumps(request)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("The peer ended early; its message is above.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def step(self) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def summary(shape: Shape, ours: dict[str, float], theirs: dict[str, float] | None, rate: float) -> dict[str, Any]:
    tokens = ours["tokens"]
    result: dict[str, Any] = {
        "ours": {key: round(value, 4) for key, value in ours.items()},
        "generated_tokens_per_second": round(tokens / ours["generate"]),
        "bf16_gflops": round(rate / 1e9, 1),
        "generate_percent_of_rate": round(100 * 2 * shape.multiplied * tokens / ours["generate"] / rate, 1),
        "update_percent_of_rate": round(100 * 6 * shape.multiplied * tokens / ours["update"] / rate, 1),
    }
    if theirs is not None:
        result["trl"] = {key: round(value, 4) for key, value in theirs.items()}
        result["ratio"] = round(theirs["seconds"] / ours["round"], 2)
    return result


def run(options: argparse.Namespace, take_turns: Callable[[Engine, Peer | None], dict[str, Any]]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        model, scratch = Path(folder, "model"), Path(folder, "scratch")
        model.mkdir()
        write_model(model, SHAPES[options.shape])
        request = LoadRequest(model=str(model), precision=options.precision, threads=options.threads)
        engine = TorchBackend().load(request)
        peer = Peer(options.peer, model, scratch, options) if options.peer else None
        try:
            return take_turns(engine, peer) | {"shape": options.shape, "precision": engine.info.precision}
        finally:
            if peer is not None:
                peer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="python of the environment of make_peers.sh; without it only ours is measured")
    parser.add_argument("--peer-precision", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--peer-accumulation", type=int, default=1, help="micro-batches of the peer")
    parser.add_argument("--shape", default="S", choices=tuple(SHAPES))
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=hardware.default_threads())
    options = parser.parse_args()

    def take_turns(engine: Engine, peer: Peer | None) -> dict[str, Any]:
        ours, theirs, rates = [], [], []
        for number in range(options.rounds + 1):  # the first warms up
            ours.append(our_round(engine, prompts(), seed=number))
            rates.append(multiply_rate())
            if peer is not None:
                theirs.append(peer.step())
        peers = medians(theirs[1:]) if theirs else None
        return summary(SHAPES[options.shape], medians(ours[1:]), peers, statistics.median(rates))

    print(json.dumps(run(options, take_turns)))


if __name__ == "__main__":
    main()
