"""Held-out evaluation: which items, and what the verdicts on them say. Pure; nothing generates here.

A result holds the strict 0/1 verdicts of each item's samples. Two results on the same items are compared pair by pair.

    items.py       which items; the verdicts on one item
    statistics.py  intervals, pass@k, paired tests
    comparison.py  after against before on the same items
    summary.py     scores by task, the event of an evaluation
"""

from sapo_swarm.evaluation.comparison import Comparison, compare, gained_and_lost
from sapo_swarm.evaluation.items import (
    ItemResult,
    eval_items,
    held_out_items,
    held_out_name,
    item_result,
    permutation_partners,
    regular_items,
)
from sapo_swarm.evaluation.statistics import (
    Interval,
    mcnemar_exact,
    pass_at_k,
    stratified_bootstrap,
    wilson,
)
from sapo_swarm.evaluation.summary import evaluated, greedy_score, mean_pass_at_k, task_scores

__all__ = [
    "Comparison",
    "Interval",
    "ItemResult",
    "compare",
    "eval_items",
    "evaluated",
    "gained_and_lost",
    "greedy_score",
    "held_out_items",
    "held_out_name",
    "item_result",
    "mcnemar_exact",
    "mean_pass_at_k",
    "pass_at_k",
    "permutation_partners",
    "regular_items",
    "stratified_bootstrap",
    "task_scores",
    "wilson",
]
