"""Judged tasks: which judge, how far it agrees with the person, and whether that is enough to train on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.bases.tokens import keep_word
from sapo_desktop.services.models.shelf.store import train_on
from sapo_desktop.services.tasks import ratings
from sapo_desktop.services.tasks.proposal.draft import encoding_taken
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import wilson_interval
from sapo_swarm.loopback import is_loopback
from sapo_swarm.protocol import identity
from sapo_swarm.scoring.rubric import (
    LEAST,
    LEAST_EACH,
    BadEndpoint,
    JudgeAgreement,
    JudgeAway,
    JudgeEndpoint,
    RubricJudge,
    compute_agreement,
    validate_judge_url,
)
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.import_rows import Row
from sapo_swarm.types import UNREADABLE
from sapo_swarm.whole_file import write_atomically

KEY = "judge-key"
_FILE = "judges.json"
_MOST = 500
"""Ratings shown to a judge: the newest."""
_PROBLEMS = 5
"""Unreadable rows of a file that are reported."""


@dataclass(frozen=True)
class JudgeCalibration:
    """The result of comparing a judge with the person."""

    found: JudgeAgreement
    endpoint: JudgeEndpoint


def keep_key(home: Home, typed: str) -> str:
    """Keep the API key of the judge's endpoint and say where; "" forgets it. Raises UsageError, AppError."""
    no = "This is no key: it is one word, which the endpoint's owner gave you."
    return keep_word(home, KEY, typed, "The judge's key", no)


def task_rubrics(tasks: Sequence[str]) -> dict[str, str]:
    """The judged ones of these tasks, with their rubrics. Raises BadTask."""
    return {
        name: rubric for name in tasks if library.has_task(name) and (rubric := library.load_task(name).spec.rubric)
    }


def never_mixed(tasks: Sequence[str]) -> None:
    """Raise UsageError where judged and verified tasks are mixed."""
    judged = task_rubrics(tasks)
    if judged and len(judged) < len(set(tasks)):
        verified = [name for name in tasks if name not in judged]
        raise UsageError(
            f"{', '.join(judged)} is judged and {', '.join(verified)} is verified: such rewards are never mixed in one figure. "
            "Train a model on the one or on the other."
        )


def same_kind(before: Sequence[str], now: Sequence[str]) -> None:
    """Raise UsageError where a model would continue with judged rewards after verified ones, or the other way round."""
    if bool(task_rubrics(before)) != bool(task_rubrics(now)):
        raise UsageError(
            "This model was trained on one kind of reward so far, verified or judged, and these tasks are of the other: one "
            "curve would show both. Train a new model on them: sapo-desktop new NAME"
        )


def judge_endpoint(home: Home, config: RunConfig) -> JudgeEndpoint:
    """The judge in the settings. Raises UsageError."""
    if not config.judge_url or not config.judge_model:
        raise UsageError(
            "No judge is set. Serve the base of a model (sapo-desktop serve-model NAME --checkpoint base), or take any endpoint "
            "with OpenAI's chat completions, then: --judge-url URL --judge-model NAME, or set run.judge_url and "
            "run.judge_model."
        )
    try:
        url = validate_judge_url(config.judge_url)
    except BadEndpoint as error:
        raise UsageError(f"judge_url: {error}") from error
    return JudgeEndpoint(url, config.judge_model, identity.kept_text(home.config, KEY))


def judge_for(home: Home, config: RunConfig) -> RubricJudge | None:
    """The judge of a run; None where its tasks are verified. Raises UsageError where none is set, or it was never compared
    with the person's ratings, or agrees too little with them."""
    never_mixed(config.tasks)
    judged = task_rubrics(config.tasks)
    if not judged:
        return None
    endpoint = judge_endpoint(home, config)
    for name, rubric in judged.items():
        if text := judge_refusal(name, _kept(home).get(_digest(rubric, endpoint)), endpoint, config.judge_kappa):
            raise UsageError(text)
    return RubricJudge(endpoint)


def judge_of(home: Home, configs: Sequence[RunConfig]) -> RubricJudge | None:
    """One judge for models that are compared; None where their tasks are verified. Raises UsageError as judge_for does."""
    tasks = tuple(dict.fromkeys(task for config in configs for task in config.tasks))
    return judge_for(home, msgspec.structs.replace(configs[-1], tasks=tasks))


def judge_refusal(name: str, found: JudgeAgreement | None, asked: JudgeEndpoint, least: float) -> str:
    """Why no model is trained on this judge's verdicts on the task; "" where nothing is in the way."""
    command = f"sapo-desktop tasks judge {name}"
    if found is None:
        return (
            f"Task {name!r} is judged, and {asked.model} at {asked.host} was never compared with your own ratings under its "
            f"rubric. Do that first: {command}"
        )
    if not found.enough:
        return (
            f"{asked.model} was compared with {found.items} ratings, {found.good} of them good; it takes {LEAST} with at "
            f"least {LEAST_EACH} good and {LEAST_EACH} bad ones. Rate more answers in the chat (F3, F4), then: {command}"
        )
    if found.kappa < least or found.kappa_low <= 0:
        return (
            f"{asked.model} agrees too little with you on {name!r}: Cohen's kappa {found.kappa:.2f} "
            f"({found.kappa_low:.2f} to {found.kappa_high:.2f}), needed {least:.2f} and an interval above 0. Make the rubric "
            f"plainer, or take a larger judge, then: {command}"
        )
    return ""


def privacy_note(asked: JudgeEndpoint) -> str:
    """Who reads the answers, in a sentence."""
    if is_loopback(asked.host):
        return f"Judged by {asked.model} on this machine; nothing leaves it."
    return f"Judged by {asked.model}: questions and answers of the task are sent to {asked.host}."


async def calibrate_judge(
    home: Home, config: RunConfig, name: str, file: Path | None, encoding: str, say: Callable[[str], None]
) -> JudgeCalibration:
    """Ask the judge about answers that the person rated, and store how far they agree. file: None is every rating from the
    chat; encoding: as for read_table. Raises UsageError, AppError, BadTask, OSError.
    """
    if not library.has_task(name) or not (rubric := library.load_task(name).spec.rubric):
        raise UsageError(
            f"{name!r} is no task of yours that is judged. Make one: sapo-desktop tasks new FILE --rubric TEXT"
        )
    endpoint = judge_endpoint(home, config)
    rows = _rated(home, file, encoding, say)
    say(privacy_note(endpoint))
    judge = RubricJudge(endpoint)
    cases = [(rubric, row["question"], row["answer"]) for row in rows]
    try:
        verdicts = await judge.verdicts(cases)
    except JudgeAway as error:
        raise AppError(str(error).removesuffix(" The round's rollouts are kept.")) from error
    person = [row[ratings.COLUMN] == ratings.GOOD for row in rows]
    right = sum(rating == (verdict is True) for rating, verdict in zip(person, verdicts, strict=True))
    agreement = compute_agreement(person, verdicts, wilson_interval(right, len(rows)), judge.tokens)
    agreements = {**_kept(home), _digest(rubric, endpoint): agreement}
    try:
        write_atomically(home.data / _FILE, msgspec.json.encode(agreements))
    except OSError as error:
        raise AppError(f"What was found is not kept: {home.data / _FILE}: {error}.") from error
    return JudgeCalibration(agreement, endpoint)


def describe_calibration(name: str, made: JudgeCalibration, config: RunConfig) -> list[str]:
    """The result, for a person."""
    stats = made.found
    sentences = [
        f"{made.endpoint.model} and you on {stats.items} answers, {stats.good} of which you rated good:",
        f"  agreement       {100 * stats.accuracy:.0f} % (95 %: {100 * stats.accuracy_low:.0f} to "
        f"{100 * stats.accuracy_high:.0f})",
        f"  Cohen's kappa   {stats.kappa:.2f} (95 %: {stats.kappa_low:.2f} to {stats.kappa_high:.2f}); 0 is chance, 1 is always",
    ]
    if stats.unreadable:
        sentences.append(
            f"  no verdict      {stats.unreadable} replies ended with neither YES nor NO; they count as bad"
        )
    if stats.tokens:
        tokens_each = stats.tokens / stats.items
        groups = config.local_groups or 8
        cost = tokens_each * groups * config.group_size
        sentences.append(
            f"  cost            {tokens_each:,.0f} tokens a verdict; {cost:,.0f} a round of {groups} x {config.group_size}"
        )
    no = judge_refusal(name, stats, made.endpoint, config.judge_kappa)
    return [*sentences, "", no or f"That is enough to train on: {train_on(name)}"]


def _rated(home: Home, file: Path | None, encoding: str, say: Callable[[str], None]) -> list[Row]:
    """Rated answers without duplicates, the newest file's rating first. Raises UsageError, BadTask, OSError."""
    if file is None:
        rows_by_file = [ratings.read_ratings(path) for path in ratings.rated_files(home)]
    else:
        table = ratings.of_file(file, encoding)
        rows_by_file = [table.rows]
        for sentence in filter(None, (encoding_taken(file.name, table), *table.problems[:_PROBLEMS])):
            say(sentence)
    rows: dict[tuple[str, str], Row] = {}
    for file_rows in rows_by_file:
        for row in reversed(file_rows):
            if row[ratings.COLUMN] in (ratings.GOOD, ratings.BAD):
                rows.setdefault((row["question"], row["answer"]), row)
    if not rows:
        raise UsageError(
            "There are no ratings of yours to compare a judge with. Rate answers in the chat (screen 4, t; F3 good, F4 bad), or "
            f"name a file with the columns question, answer and rating (good, bad): --ratings FILE. It takes {LEAST}."
        )
    return list(rows.values())[:_MOST]


def _digest(rubric: str, asked: JudgeEndpoint) -> str:
    return hashlib.sha256("\0".join((rubric, asked.url, asked.model)).encode()).hexdigest()


def _kept(home: Home) -> dict[str, JudgeAgreement]:
    try:
        return msgspec.json.decode((home.data / _FILE).read_bytes(), type=dict[str, JudgeAgreement])
    except (OSError, *UNREADABLE):
        return {}
