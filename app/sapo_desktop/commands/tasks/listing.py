"""The list of tasks, sample questions with accepted answers, and the score of giving one answer to every question."""

from __future__ import annotations

from sapo_desktop.errors import UsageError
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.tasks import catalogue
from sapo_swarm.tasks.catalogue import held_out
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.spec import BadTask
from sapo_swarm.types import Question


def list_tasks() -> int:
    """Print all tasks, custom ones first; a broken one with its fault."""
    for name in library.task_names():
        try:
            task = library.load_task(name)
            description = f"own: {len(task.train):,} rows, {len(task.held_out):,} held out. {task.spec.description}"
        except BadTask as error:
            description = str(error)
        print(f"{name:<28} {safe_text(description, 200, lines=False)}")
    for name, presets in catalogue.CATALOGUE.items():
        print(f"{name:<28} {', '.join(presets)}")
    return 0


async def print_samples(task: str, preset: str, count: int) -> int:
    """Print held-out questions, and for a built-in task what its verifier accepts besides the true answer."""
    from sapo_desktop.services.tasks import looking
    from sapo_swarm.scoring.scorer import Scorer

    async with Scorer() as scorer:
        for question in await scorer.questions([held_out(task, preset, i) for i in range(count)]):
            text = question.prompt if isinstance(question, Question) else f"(does not regenerate: {question.reason})"
            print(f"--- {question.ref.label}\n{safe_text(text).strip()}\n")
    if not catalogue.is_own(task):
        print("\n".join(looking.describe_acceptance(task, preset)))
    return 0


async def give_to_all(task: str, preset: str, answers: list[str], count: int) -> int:
    """Print the score of each answer given to all questions; if it is high, the task can be passed without solving it."""
    from sapo_desktop.services.against_base import format_rate
    from sapo_swarm.evaluation import held_out_items, wilson_interval
    from sapo_swarm.node import evaluation
    from sapo_swarm.scoring.declared import enclose_answer
    from sapo_swarm.scoring.scorer import Scorer

    own = library.load_task(task).spec if catalogue.is_own(task) else None
    if own is not None and own.rubric:
        raise UsageError(
            f"{task} is judged by a model, not verified: nothing is known of what one answer to all would earn."
        )
    how = own.extract if own is not None else "tags"
    refs = held_out_items([task], preset, count)
    async with Scorer() as scorer:
        for text in answers:
            verdicts = await evaluation.give_to_all(scorer, refs, enclose_answer(how, text))
            if not verdicts:
                raise UsageError(f"None of the held-out questions of {task} ({preset}) regenerates here.")
            right = sum(verdicts)
            shown = safe_text(text, lines=False)
            print(
                f"{shown}: right on {right} of {len(verdicts)} held-out questions of {task} ({preset}), "
                f"{format_rate(right / len(verdicts), *wilson_interval(right, len(verdicts)))}",
                flush=True,
            )
    return 0
