"""A held-out result beside the base's on the same questions, or why it stands alone. Pure, and light: screens read it."""

from __future__ import annotations

from sapo_swarm.events import Evaluated


def unpaired(event: Evaluated) -> str:
    """Why a trained model's result stands without a difference to the base; "" where there is nothing to explain."""
    if not event.base_missing:
        return ""
    count = event.base_missing
    return f"not compared with the base, which has not answered {count} of these questions; it is asked when the node starts"


def base_scores(event: Evaluated, first: Evaluated | None) -> dict[str, float]:
    """Task -> the base's pass@1 on the same items, where it is known. first: the base's own evaluation, for results of
    versions that did not note it."""
    same = first is not None and (first.items, first.temperature) == (event.items, event.temperature)
    older = same and event.round > 0 and not event.base_missing
    noted = {score.task: score.pass_at_1 for score in first.tasks} if first is not None and older else {}
    return noted | {score.task: score.base for score in event.tasks if score.base is not None}
