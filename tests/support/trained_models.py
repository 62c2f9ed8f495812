"""Checkpoints of small trained models, as a node keeps them, without running a node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.benchmarks.shapes import SHAPES, write_model

from sapo_backends.base import PolicyUpdate, Sampling, TrainSample
from sapo_desktop.services.machine import engines
from sapo_desktop.services.models.exports import ExportSource, ModelCardRecord
from sapo_swarm.config import RunConfig
from sapo_swarm.node.checkpoints import CheckpointInfo, CheckpointStore
from sapo_swarm.node.training_count import TrainingCount
from sapo_swarm.scoring.prompts import build_messages

SHAPE = replace(SHAPES["tiny"], layers=3)
QUESTIONS = ("What is 12 + 7?", "Reverse these letters: a b c d", "How many of 3, 8, 9 and 12 are odd?")
SCALE = 0.2
"""Standard deviation of random weights that do not all say the same."""


def random_model(folder: Path, architecture: str) -> Path:
    """A random model in Hugging Face's layout: qwen2, qwen3 or llama."""
    folder.mkdir(parents=True)
    return write_model(folder, SHAPE, architecture=architecture, scale=SCALE, chat=True)


def trained(folder: Path, model: str, updates: int = 2, **settings: Any) -> ExportSource:
    """A checkpoint in `folder` after a few updates with arbitrary advantages. settings: of the run."""
    chosen = {"trainer": "torch", "device": "cpu", "threads": 1, "lora_rank": 4, "max_new_tokens": 64, **settings}
    config = RunConfig(model=model, **chosen)
    engine = engines.engine_builder(config)(lambda fraction, phrase: None)
    prompts = [engine.tokenizer.encode_chat(build_messages(question)) for question in QUESTIONS]
    for seed in range(updates):
        groups = engine.generate(prompts, 4, Sampling(max_new_tokens=12), seed)
        batch = [
            TrainSample(tuple(prompt), completion.tokens, 1.0 if i % 2 else -1.0)
            for prompt, group in zip(prompts, groups, strict=True)
            for i, completion in enumerate(group)
        ]
        engine.update(batch, PolicyUpdate(3e-3), seed)
    checkpoint = CheckpointStore(folder / "checkpoints", 1).write(engine, CheckpointInfo(updates, "stop")).path
    engine.close()
    return ExportSource(
        config,
        checkpoint,
        ModelCardRecord(name="my model", base=model, tasks=config.tasks, trained=TrainingCount(0, updates)),
    )
