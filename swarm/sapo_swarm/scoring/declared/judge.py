"""A completion against a row of an own task: extraction, then every declared verifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sapo_swarm.scoring.declared import function, generated, items, numbers, sql, values, words
from sapo_swarm.scoring.declared.case import Case
from sapo_swarm.tasks.own import verifiers as kinds
from sapo_swarm.tasks.own.folder import OwnTask
from sapo_swarm.tasks.own.spec import truth_column
from sapo_swarm.types import AnswerFormat

JUDGES: dict[type[kinds.Part], Callable[[Any, Case], float]] = {
    kinds.Exact: words.exact,
    kinds.Number: numbers.number,
    kinds.Choice: words.choice,
    kinds.Items: items.in_order,
    kinds.ItemSet: items.as_set,
    kinds.Order: items.ranked,
    kinds.Regex: words.regex,
    kinds.JsonSchema: values.fits_schema,
    kinds.JsonEqual: values.equal,
    kinds.Sql: sql.same_result,
    kinds.Length: words.length,
    kinds.Format: words.form,
    kinds.PythonTests: generated.passes_tests,
    kinds.Function: function.own_function,
    kinds.Environment: lambda _part, case: case.environment,
    kinds.Judged: lambda _part, _case: 0.0,  # only its judge says anything else, outside the worker: Scorer.score_local
}


def declared(
    task: OwnTask,
    row: Mapping[str, str],
    answer: str,
    text: str,
    environment: float = 0.0,
    answer_format: AnswerFormat = "tags",
) -> float:
    """The weighted mean of all parts, in [0, 1]; exactly 1.0 where every part says so. May raise what a part raises."""
    total = weights = 0.0
    for part in task.spec.verifier:
        truth = row.get(truth_column(task.spec, part), "")
        case = Case(task, answer, truth, text, row, environment, answer_format)
        total += part.weight * JUDGES[type(part)](part, case)
        weights += part.weight
    return total / weights
