"""Which dead groups a hint revives: a model that is not trained, its peers' verified attempts, the same dead questions for all.

    python tests/benchmarks/revived.py [--model starter-1m] [--preset starter] [--questions 72] [--group 4] [--seed 1]

A peer is the same model with other random numbers. A group is dead where all of the model's own attempts failed; here those
count at which the peer succeeded. Each stage then generates for them again. Prints one line of JSON: revived of dead, with a
95 % Wilson interval.
"""

from __future__ import annotations

import argparse
import asyncio
import json

import msgspec
import numpy as np

from sapo_backends.base import Engine, Sampling
from sapo_desktop.services.machine.engines import engine_builder
from sapo_swarm.config import PAPER_TASKS, RunConfig
from sapo_swarm.evaluation import wilson_interval
from sapo_swarm.node.rollouts import prompt_ids
from sapo_swarm.sapo.stages import STAGES, AnsweredPrompt, StageMaterial, StagePrompt
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.catalogue import train_seed
from sapo_swarm.types import Group, Question, Rollout, TaskRef

PROMPTS_A_CALL = 32


async def generated(
    engine: Engine, scorer: Scorer, prompts: list[StagePrompt], options: argparse.Namespace, seed: int
) -> list[Group]:
    """A group for each prompt, rewarded strictly."""
    tokenizer, sampling = engine.tokenizer, Sampling(1.0, 1.0, options.tokens)
    rows = []
    for prompt in prompts:
        question = msgspec.structs.replace(prompt.question, prompt=prompt.text or prompt.question.prompt)
        rows.append([*prompt_ids(tokenizer, scorer, question), *tokenizer.encode_text(prompt.start)])
    groups = []
    for at in range(0, len(rows), PROMPTS_A_CALL):
        drawn = engine.generate(rows[at : at + PROMPTS_A_CALL], options.group, sampling, seed + at)
        for prompt, row in zip(prompts[at:], drawn, strict=False):
            start = tuple(tokenizer.encode_text(prompt.start))
            texts = [tokenizer.decode(start + c.tokens) for c in row]
            scored = await scorer.score(prompt.question.ref, texts)
            rollouts = (Rollout(t, c.finish, r) for t, c, r in zip(texts, row, scored.rewards, strict=True))
            groups.append(Group(prompt.question, tuple(rollouts)))
    return groups


async def measure(options: argparse.Namespace) -> dict[str, object]:
    """All figures."""
    engine = engine_builder(RunConfig(model=options.model, threads=1, precision="float32"))(lambda *_: None)
    tasks = [task for task in PAPER_TASKS if task != "propositional_logic"]
    refs = [
        TaskRef(task, options.preset, train_seed("revived", "benchmark", 0, slot, options.seed))
        for task in tasks
        for slot in range(options.questions)
    ]
    async with Scorer() as scorer:
        asked = [StagePrompt(q) for q in await scorer.questions(refs) if isinstance(q, Question)]
        own = await generated(engine, scorer, asked, options, 1_000 * options.seed)
        dead = [group for group in own if not group.solved]
        peer = await generated(
            engine, scorer, [StagePrompt(group.question) for group in dead], options, 77_000 + options.seed
        )
        hintable = [(mine, theirs) for mine, theirs in zip(dead, peer, strict=True) if theirs.solved]
        found: dict[str, object] = {"groups": len(own), "dead": len(dead), "dead_that_the_peer_solved": len(hintable)}
        for name, stage in STAGES.items():
            prompts: list[StagePrompt] = []
            for mine, theirs in hintable:
                known = mine if name == "critique" else theirs
                material = StageMaterial((), (known,), 1)
                first = [] if name == "critique" else [AnsweredPrompt(StagePrompt(mine.question), mine)]
                prompts += stage.prompts(material, first, np.random.default_rng(options.seed))
            groups = await generated(engine, scorer, prompts, options, 555_000 + options.seed)
            revived = sum(group.solved for group in groups)
            low, high = wilson_interval(revived, len(groups))
            share = [round(100 * x, 1) for x in (revived / max(1, len(groups)), low, high)]
            found[name] = {"revived": revived, "of": len(groups), "percent": share}
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="starter-1m")
    parser.add_argument("--preset", default="starter")
    for name, default in (("questions", 72), ("group", 4), ("tokens", 64), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    print(json.dumps(vars(options) | asyncio.run(measure(options))))


if __name__ == "__main__":
    main()
