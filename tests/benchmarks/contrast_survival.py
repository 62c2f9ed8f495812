"""What run.contrast costs honest answers, and what it leaves of one that reads nothing: the share of reasoning_gym's own true
answers, and of `(P ∨ Q)` in propositional_logic, that keep their reward.

Run: python tests/benchmarks/contrast_survival.py [--questions 200] [--contrast 2 4]
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from sapo_swarm.config import PAPER_TASKS
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.catalogue import train_seed
from sapo_swarm.tasks.questions import generate_entry
from sapo_swarm.types import Question, RewardRule, TaskRef

UNREAD = {"propositional_logic": "(P ∨ Q)"}


def true_answer(ref: TaskRef) -> str:
    entry = generate_entry(ref)[1]
    return str(entry["answer"] or entry["metadata"]["example_answer"])


async def kept(scorer: Scorer, refs: Sequence[TaskRef], answers: Sequence[str], contrast: int) -> float:
    """Mean reward of these answers, one a question."""
    groups = [(ref, (f"<answer>{text}</answer>",)) for ref, text in zip(refs, answers, strict=True)]
    scored = await scorer.score_local(groups, RewardRule(contrast=contrast))
    return sum(one.rewards[0] for one in scored) / len(refs)


async def main(questions: int, counts: Sequence[int]) -> None:
    async with Scorer() as scorer:
        for preset in ("paper", "starter"):
            for task in PAPER_TASKS:
                drawn = [TaskRef(task, preset, train_seed("contrast", preset, i, 0)) for i in range(questions)]
                refs = [q.ref for q in await scorer.questions(drawn) if isinstance(q, Question)]
                rows = {"true answers": [true_answer(ref) for ref in refs]}
                if task in UNREAD:
                    rows[UNREAD[task]] = [UNREAD[task]] * len(refs)
                for name, answers in rows.items():
                    shares = [100 * await kept(scorer, refs, answers, count) for count in (0, *counts)]
                    print(
                        f"{preset:<8} {task:<24} {name:<13}" + "".join(f"{share:7.1f}" for share in shares), flush=True
                    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=200, help="a task and preset")
    parser.add_argument("--contrast", type=int, nargs="+", default=[2, 4], help="other questions; 0 is always shown")
    args = parser.parse_args()
    asyncio.run(main(args.questions, args.contrast))
