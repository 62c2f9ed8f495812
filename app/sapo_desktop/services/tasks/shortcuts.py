"""What a task pays without being solved: for the best constant answer, for another row's answer, for the question itself.

A person sees a shortcut here before a model finds it. Everything is judged in the scorer worker, as in training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sapo_desktop.services.tasks.review import chance
from sapo_swarm.scoring.declared import enclose_answer
from sapo_swarm.scoring.scorer import Scored, Scorer, ScoringFailed, Unanswerable
from sapo_swarm.tasks.catalogue import held_out
from sapo_swarm.tasks.own.folder import OwnTask
from sapo_swarm.tasks.own.spec import TRUTHFUL, right_answer, truth_column
from sapo_swarm.types import RewardRule, TaskRef

LOOKED_AT = 400
"""Held-out rows, and training rows for the truth itself, at most."""
MUCH = 0.3
"""What may not be earned without reading the question, unless a guess earns nearly as much."""
COMMON = 6
JUNK = ("0", "1", "yes", "no", "true", "null", "[]", "{}", "a", ",", ".*")


@dataclass(frozen=True)
class Shortcuts:
    """Strict scores in [0, 1] over the held-out rows.

    truth: of the rows' own answers (None where the verifiers have none to compare with). wrong: where the training rows stand
    whose own answer is judged wrong; hanging: those that could not be judged at all, with the reason. constant: the best of
    the answers tried on every row, and its score. permuted: of another row's answer where that is another one. echo: of the
    question given back. chance: of a guess among the options, 0 where there are none.
    """

    rows: int
    truth: float | None
    wrong: tuple[str, ...]
    hanging: tuple[str, ...]
    constant: tuple[str, float]
    permuted: float | None
    echo: float
    chance: float = 0.0


async def measure(task: OwnTask, scorer: Scorer, places: Sequence[str]) -> Shortcuts:
    """Needs the task in the library in force. places: where each training row stands. Raises ScorerUnavailable."""
    rows = task.held_out[:LOOKED_AT]
    refs = [held_out(task.spec.name, "own", index) for index in range(len(rows))]
    truths = [right_answer(task.spec, row) for row in rows] if _has_truth(task) else []
    if not refs:
        return Shortcuts(0, None, (), (), ("", 0.0), None, 0.0)
    (first,) = await scorer.questions(refs[:1])
    if isinstance(first, Unanswerable):
        return Shortcuts(len(rows), None, (), (first.reason,), ("", 0.0), None, 0.0)
    best, score = "", -1.0
    for text in candidates(task):
        found = _mean(await _judge(scorer, task, refs, [text] * len(refs)))
        if found > score:
            best, score = text, found
    right = await _judge(scorer, task, refs, truths) if truths else []
    turned = await _judge(scorer, task, *_permuted(refs, truths))
    echo = await _judge(scorer, task, refs, [task.spec.fill(row) for row in rows])
    wrong, hanging = await _own_answers(task, scorer, places) if truths else ((), ())
    return Shortcuts(
        rows=len(rows),
        truth=_mean(right) if truths else None,
        wrong=wrong,
        hanging=hanging,
        constant=(best, max(score, 0.0)),
        permuted=_mean(turned) if turned else None,
        echo=_mean(echo),
        chance=chance(task),
    )


def candidates(task: OwnTask) -> list[str]:
    """Constant answers worth trying: the commonest truths, and junk that careless verifiers let pass."""
    truths = Counter(right_answer(task.spec, row).strip() for row in task.train) if _has_truth(task) else Counter[str]()
    return list(dict.fromkeys([text for text, _ in truths.most_common(COMMON) if text] + list(JUNK)))


def sentences(found: Shortcuts) -> list[str]:
    """What was found, for a person: plain figures first, then what is wrong with them."""
    if not found.rows:
        return ["Shortcuts were not looked for: there are no held-out rows here."]
    text, score = found.constant
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    guess = f" (a guess: {100 * found.chance:.1f} %)" if found.chance else ""
    lines = [f"Best constant answer: {shown!r} is right on {100 * score:.1f} % of {found.rows} held-out rows{guess}."]
    if found.permuted is not None:
        lines.append(f"Answer-permutation check: another row's other answer is right on {100 * found.permuted:.1f} %.")
    lines += warnings(found)
    return lines


def warnings(found: Shortcuts) -> list[str]:
    """Only what a person should do something about."""
    lines = []
    much = max(MUCH, 1.5 * found.chance)
    if found.constant[1] >= much:
        lines.append("Shortcut: so much can be earned without reading the question. Take fewer rows with that answer.")
    if found.permuted is not None and found.permuted >= much:
        lines.append("Shortcut: the verifier hardly tells one row's answer from another's. Make it stricter.")
    if found.echo >= 0.1:
        lines.append(f"Shortcut: giving the question back is right on {100 * found.echo:.1f} %.")
    if found.wrong:
        shown = ", ".join(found.wrong[:5]) + (", …" if len(found.wrong) > 5 else "")
        lines.append(
            f"The row's own answer is judged wrong in {len(found.wrong)} of the rows looked at ({shown}): nobody can earn "
            "anything there. Mend them or choose another verifier."
        )
    lines += [f"Could not be judged: {reason}" for reason in found.hanging[:5]]
    return lines


def _has_truth(task: OwnTask) -> bool:
    """The task's answer column holds what a right answer looks like. One turn in an environment is none."""
    spec = task.spec
    return not spec.turns and any(
        isinstance(part, TRUTHFUL) and truth_column(spec, part) == spec.answer for part in spec.verifier
    )


def _permuted(refs: Sequence[TaskRef], truths: Sequence[str]) -> tuple[list[TaskRef], list[str]]:
    """Rows, and for each the next row's answer that is another than its own: of five categories one in five is the same by
    right. None where all are the same."""
    plain = [" ".join(truth.split()).casefold() for truth in truths]
    pairs = []
    for place, own in enumerate(plain):
        others = (at % len(plain) for at in range(place + 1, place + len(plain)))
        other = next((at for at in others if plain[at] != own), None)
        if other is not None:
            pairs.append((refs[place], truths[other]))
    return [ref for ref, _ in pairs], [truth for _, truth in pairs]


async def _own_answers(task: OwnTask, scorer: Scorer, places: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Training rows whose own answer is judged wrong, and those that cannot be judged."""
    rows = task.train[:LOOKED_AT]
    refs = [TaskRef(task.spec.name, "own", number, 0, task.generator) for number in range(len(rows))]
    texts = [enclose_answer(task.spec.extract, right_answer(task.spec, row), scorer.answer_format) for row in rows]
    verdicts = await scorer.score_many([(ref, (text,)) for ref, text in zip(refs, texts, strict=True)])
    found = list(zip(places, verdicts, strict=False))
    wrong = [place for place, verdict in found if isinstance(verdict, Scored) and verdict.rewards[0] < 1.0]
    hanging = [f"{place}: {verdict.reason}" for place, verdict in found if isinstance(verdict, ScoringFailed)]
    return tuple(wrong), tuple(hanging)


async def _judge(scorer: Scorer, task: OwnTask, refs: Sequence[TaskRef], answers: Sequence[str]) -> list[float]:
    texts = [enclose_answer(task.spec.extract, answer, scorer.answer_format) for answer in answers]
    pairs = [(ref, (text,)) for ref, text in zip(refs, texts, strict=True)]
    return [scored.rewards[0] for scored in await scorer.score_local(pairs, RewardRule())]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
