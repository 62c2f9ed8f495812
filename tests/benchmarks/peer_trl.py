"""TRL's GRPOTrainer as a peer: takes one step each time a line arrives on standard input, prints its seconds.

Run by bench_round.py in the environment of make_peers.sh: python peer_trl.py '<json of the request>'
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
import warnings
from typing import Any

import torch
import transformers
from datasets import Dataset
from peer_generate import contiguous_head
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

REPORT = sys.stdout


class StepOnDemand(TrainerCallback):
    """Holds each step back until it is asked for, and reports how long it took."""

    def __init__(self, clock: str, on_gpu: bool) -> None:
        self.on_gpu = on_gpu
        self.now = time.process_time if clock == "processor" else time.perf_counter
        self.began = 0.0
        self.generated = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        sys.stdin.readline()
        self.began = self.now()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        seconds = self.now() - self.began
        peak = (
            torch.cuda.max_memory_allocated()
            if self.on_gpu
            else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        )
        print(json.dumps({"seconds": seconds, "tokens": self.generated, "peak": peak}), file=REPORT, flush=True)


def main() -> None:
    request = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(request["threads"])
    clock = StepOnDemand(request["clock"], request["device"].startswith("cuda"))
    lengths: list[int] = []

    def reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        clock.generated = sum(map(len, completion_ids))
        lengths.append(clock.generated)
        return [float(i % 2) for i in range(len(completion_ids))]  # every group has a gradient

    config = GRPOConfig(
        output_dir=request["scratch"],
        use_cpu=not clock.on_gpu,
        bf16=request["bfloat16"],
        per_device_train_batch_size=request["groups"] * request["group_size"] // request["accumulation"],
        gradient_accumulation_steps=request["accumulation"],
        num_generations=request["group_size"],
        max_completion_length=request["new_tokens"],
        max_steps=request["steps"],
        temperature=1.0,
        beta=0.0,
        learning_rate=1e-5,
        gradient_checkpointing=False,
        logging_steps=10_000,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    peft = None
    if request["lora"]:
        from peft import LoraConfig

        peft = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    kind = torch.bfloat16 if request["lora"] and request["bfloat16"] else torch.float32
    model = AutoModelForCausalLM.from_pretrained(request["model"], dtype=kind)
    contiguous_head(model)
    prompts = [{"prompt": text} for text in request["prompts"]] * request["steps"]
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(prompts),
        processing_class=AutoTokenizer.from_pretrained(request["model"]),
        callbacks=[clock],
        peft_config=peft,
    )
    print(json.dumps({"ready": True}), file=REPORT, flush=True)
    sys.stdout = sys.stderr  # the trainer prints its metrics
    trainer.train()


if __name__ == "__main__":
    main()
