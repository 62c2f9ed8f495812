"""One round (generate and update) of ours beside TRL's GRPOTrainer, and its generation beside transformers': same model,
prompts and lengths, taken in turns.

    python tests/benchmarks/bench_round.py --peer .venv-peers/bin/python [--shape S] [--rounds 5]

Prints one line of JSON: medians in seconds, the ratios, the peaks of memory and what was planned, and the shares of this
machine's limits, measured in the same run: of the bfloat16 multiplication rate (2 FLOP a weight and generated token, 6 a weight
and trained token, 4 with an adapter) and of the rate at which memory is read (a generated token of the whole batch reads the
weights once).
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from peers import Peer
from shapes import SHAPES, Shape, write_model

from sapo_backends.base import Engine, LoadRequest, PolicyUpdate, Sampling, TrainSample
from sapo_backends.common import hardware, round_memory
from sapo_backends.measure import machine_limits
from sapo_backends.measure.precision import model_size
from sapo_backends.torch_backend import TorchBackend

GROUP_SIZE, PROMPT = 8, 40
ADAPTED = (SHAPES["135M"], SHAPES["L"])
"""Large enough that "auto" trains an adapter."""
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "processor": time.process_time}
POLICY = PolicyUpdate(learning_rate=1e-5)


def prompts(groups: int) -> list[str]:
    """Different texts of PROMPT bytes, one token each."""
    return [f"{i} + {7 * i} = ? " + "abcdefghijklmnopqrstuvwxyz"[: PROMPT - 20] * 2 for i in range(groups)]


def our_round(engine: Engine, texts: list[str], new_tokens: int, seed: int, now: Clock) -> dict[str, float]:
    """Seconds of generation and update, tokens generated."""
    ids = [engine.tokenizer.encode_text(text[:PROMPT]) for text in texts]
    began = now()
    groups = engine.generate(ids, GROUP_SIZE, Sampling(max_new_tokens=new_tokens), seed)
    middle = now()
    batch = [
        TrainSample(tuple(prompt), completion.tokens, 1.0 if i % 2 else -1.0)
        for prompt, group in zip(ids, groups, strict=True)
        for i, completion in enumerate(group)
    ]
    engine.update(batch, POLICY, seed)
    end = now()
    return {
        "generate": middle - began,
        "update": end - middle,
        "round": end - began,
        "tokens": sum(len(sample.completion) for sample in batch),
    }


def peers(model: Path, scratch: Path, options: argparse.Namespace, device: str) -> dict[str, Peer]:
    """TRL's whole round and transformers' generation alone; none without an environment for them."""
    if not options.peer:
        return {}
    request = {
        "model": str(model),
        "scratch": str(scratch),
        "prompts": [text[:PROMPT] for text in prompts(options.groups)],
        "groups": options.groups,
        "group_size": GROUP_SIZE,
        "new_tokens": options.new_tokens,
        "steps": options.rounds + 2,
        "threads": options.threads,
        "device": device,
        "bfloat16": options.peer_precision == "bfloat16",
        "accumulation": options.peer_accumulation,
        "clock": options.clock,
        "lora": SHAPES[options.shape] in ADAPTED,
    }
    scripts = {"trl": "peer_trl.py", "transformers_generate": "peer_generate.py"}
    scripts = {name: script for name, script in scripts.items() if name in options.peers}
    return {name: Peer(options.peer, script, request) for name, script in scripts.items()}


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def summary(
    shape: Shape,
    ours: dict[str, float],
    theirs: dict[str, dict[str, float]],
    limits: machine_limits.MachineLimits,
    steps: int,
    peak: int,
) -> dict[str, Any]:
    """One line: seconds, shares of the machine's limits, peaks in GB (1e9 bytes), and theirs / ours."""
    tokens, trained = ours["tokens"], 4 if shape in ADAPTED else 6
    rate, read = limits.multiply["bfloat16"], limits.read
    result: dict[str, Any] = {
        "ours": {key: round(value, 4) for key, value in ours.items()},
        "generated_tokens_per_second": round(tokens / ours["generate"]),
        "bf16_gflops": round(rate / 1e9, 1),
        "generate_percent_of_rate": round(100 * 2 * shape.multiplied * tokens / ours["generate"] / rate, 1),
        "update_percent_of_rate": round(100 * trained * shape.multiplied * tokens / ours["update"] / rate, 1),
        "read_gb_per_second": round(read / 1e9, 1),
        "generate_percent_of_read": round(100 * 2 * shape.multiplied * steps / ours["generate"] / read, 1),
        "peak_gb": {"ours": peak_gb(peak)},
    }
    for name, row in theirs.items():
        result[name] = {key: round(row[key], 4) for key in ("seconds", "tokens")}
        result["peak_gb"][name] = peak_gb(row["peak"])
    if "trl" in theirs:
        result["ratio"] = round(theirs["trl"]["seconds"] / ours["round"], 2)
    if "transformers_generate" in theirs:
        result["generation_ratio"] = round(theirs["transformers_generate"]["seconds"] / ours["generate"], 2)
    return result


def peak_gb(size: float) -> float:
    return round(size / 1e9, 2)


def run(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        model, scratch = Path(folder, "model"), Path(folder, "scratch")
        model.mkdir()
        write_model(model, SHAPES[options.shape])
        request = LoadRequest(
            model=str(model), precision=options.precision, device=options.device, threads=options.threads
        )
        engine = TorchBackend().load(request)
        others = peers(model, scratch, options, engine.info.device)
        try:
            said = {"shape": options.shape, "precision": engine.info.precision, "clock": options.clock}
            said |= {"groups": options.groups, "plan_gb": peak_gb(planned(model, request, engine, options))}
            return take_turns(engine, others, options) | said
        finally:
            for peer in others.values():
                peer.close()


def planned(model: Path, request: LoadRequest, engine: Engine, options: argparse.Namespace) -> int:
    """Bytes of the round, on a GPU of its own memory, as the app plans them."""
    size, _ = model_size(model, request)
    device = engine.info.device
    return round_memory.bytes_of_round(
        size,
        round_memory.RoundShape(options.groups, GROUP_SIZE, PROMPT, options.new_tokens),
        compute_bytes=2 if engine.info.precision == "bfloat16" else 4,
        workers=options.threads if device == "cpu" and size.parameters < round_memory.SHARDED_BELOW else 1,
        card=machine_limits.card_memory(device).total if device.startswith("cuda") else 0,
    )


def take_turns(engine: Engine, others: Mapping[str, Peer], options: argparse.Namespace) -> dict[str, Any]:
    """Ours, then each peer in as many turns as it has, then again; the first turn warms up."""
    ours, now, device = [], CLOCKS[options.clock], engine.info.device
    theirs: dict[str, list[dict[str, float]]] = {name: [] for name in others}
    for number in range(options.rounds + 1):
        ours.append(our_round(engine, prompts(options.groups), options.new_tokens, number, now))
        if number <= options.peer_rounds:
            for name, peer in others.items():
                theirs[name].append(peer.step())
        turn = {"ours": ours[-1]["round"], **{name: rows[-1]["seconds"] for name, rows in theirs.items()}}
        print(json.dumps({"turn": number, **turn}), file=sys.stderr, flush=True)
    own_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if device == "cpu" else on_gpu(device)
    found = {name: medians(rows[1:]) for name, rows in theirs.items()}
    limits = machine_limits.measure_limits("torch", options.threads if options.clock == "wall" else 1, device)
    return summary(SHAPES[options.shape], medians(ours[1:]), found, limits, options.new_tokens, own_peak)


def on_gpu(device: str) -> int:
    """Bytes of its memory that torch held at most; 0 where torch does not count them."""
    return torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="python of the environment of make_peers.sh; without it only ours is measured")
    parser.add_argument(
        "--clock", default="wall", choices=tuple(CLOCKS), help="processor: of all threads, for busy machines"
    )
    parser.add_argument("--peer-precision", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--peer-accumulation", type=int, default=1, help="micro-batches of the peer")
    parser.add_argument("--peers", nargs="+", default=["trl", "transformers_generate"])
    parser.add_argument(
        "--peer-rounds", type=int, default=sys.maxsize, help="of --rounds, behind the one that warms up"
    )
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--shape", default="S", choices=tuple(SHAPES))
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--device", default="auto", help="of the peers too")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=hardware.default_threads())
    print(json.dumps(run(parser.parse_args())))


if __name__ == "__main__":
    main()
