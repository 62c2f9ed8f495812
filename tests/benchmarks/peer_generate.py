"""transformers' generate as a peer: draws the round's completions each time a line arrives on standard input.

Run by bench_round.py in the environment of make_peers.sh: python peer_generate.py '<json of the request>'
"""

from __future__ import annotations

import json
import resource
import sys
import time

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer


def contiguous_head(model: torch.nn.Module) -> None:
    """generate() hands the head a strided view; without gradients torch's CPU matmul then multiplies in batches and copies the
    head once a sequence: 17 GB for 64 of them and a vocabulary of 152k."""
    model.lm_head.register_forward_pre_hook(lambda module, inputs: (inputs[0].contiguous(), *inputs[1:]))


def main() -> None:
    request = json.loads(sys.argv[1])
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(request["threads"])
    kind = torch.bfloat16 if request["bfloat16"] else torch.float32
    model = AutoModelForCausalLM.from_pretrained(request["model"], dtype=kind).eval().to(request["device"])
    contiguous_head(model)
    inputs = AutoTokenizer.from_pretrained(request["model"])(request["prompts"], return_tensors="pt").to(
        request["device"]
    )
    new, on_gpu = request["new_tokens"], request["device"].startswith("cuda")
    now = time.process_time if request["clock"] == "processor" else time.perf_counter
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        began = now()
        with torch.inference_mode():
            drawn = model.generate(
                **inputs,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                num_return_sequences=request["group_size"],
                min_new_tokens=new,
                max_new_tokens=new,
            )
        if on_gpu:
            torch.cuda.synchronize()
        seconds = now() - began
        tokens = drawn.shape[0] * (drawn.shape[1] - inputs["input_ids"].shape[1])
        peak = (
            torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        )
        print(json.dumps({"seconds": seconds, "tokens": tokens, "peak": peak}), flush=True)


if __name__ == "__main__":
    main()
