"""Completions of prompts: sampled call by call, as single answers or as episodes of several turns."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import groupby

from sapo_backends.base import CancelToken, Completion, Engine, RowSeed, Sampling, TokenIds, Tokenizer
from sapo_backends.errors import Cancelled, OutOfMemory
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.scoring.environments import EpisodeStep
from sapo_swarm.scoring.prompts import build_conversation
from sapo_swarm.scoring.scorer import ScoredTexts, Scorer
from sapo_swarm.tasks.own import library
from sapo_swarm.types import STRICT, EpisodeTurn, Group, Question, RewardRule, Rollout, TaskRef

# Episodes as completions: the model's turns and the environment's answers between them, in one row of tokens with a
# mask.
#
# An episode's whole state follows from its tokens, so an interrupted one continues from what was kept.

Episode = tuple[TaskRef, Sequence[int], Completion]
"""The question it belongs to, its prompt, and its tokens so far."""
Place = tuple[int, int]
"""(prompt, completion) of a table of completions."""


def prompt_ids(tokenizer: Tokenizer, scorer: Scorer, question: Question) -> list[int]:
    """A question as the model reads it, with the tools of its environment. Raises BadTask."""
    return tokenizer.encode_chat(build_conversation(question, scorer.answer_format), scorer.tools(question.ref))


def turn_length(completion: Completion) -> int:
    """Tokens that the model has written since the environment last answered."""
    if completion.loss_mask is None:
        return len(completion.tokens)
    mask = completion.loss_mask
    return next((i for i, sampled in enumerate(reversed(mask)) if not sampled), len(mask))


def turns_before(completion: Completion) -> int:
    """The number of environment answers it holds."""
    return sum(not sampled for sampled, _ in groupby(completion.loss_mask or ()))


def model_turns(tokenizer: Tokenizer, completion: Completion) -> tuple[str, ...]:
    """What the model wrote, turn by turn; the last turn may be empty."""
    mask = completion.loss_mask or (True,) * len(completion.tokens)
    runs = [(sampled, list(run)) for sampled, run in groupby(zip(mask, completion.tokens, strict=True), lambda x: x[0])]
    turns = [tokenizer.decode([token for _, token in run]) for sampled, run in runs if sampled]
    return tuple(turns if mask and mask[-1] else [*turns, ""])


async def score_answers(
    engine: Engine, scorer: Scorer, episodes: Sequence[Episode], limits: Sequence[int]
) -> list[tuple[Completion, bool]]:
    """Each episode with the environment's answer to its last turn, and whether it is over. limits: tokens per turn of each.

    An episode is also over if prompt, turns and one more turn of full length exceed the model's context.
    """
    tokenizer = engine.tokenizer
    steps = await scorer.play([(ref, model_turns(tokenizer, c)) for ref, _, c in episodes]) if episodes else []
    extended = []
    for (_, prompt, completion), step, limit in zip(episodes, steps, limits, strict=True):
        longer = None if step.over else _extended(tokenizer, completion, step)
        room = engine.info.context_length - len(prompt) - limit
        fits = longer is not None and len(longer.tokens) <= room
        extended.append((longer, False) if longer is not None and fits else (completion, True))
    return extended


def _extended(tokenizer: Tokenizer, completion: Completion, step: EpisodeStep) -> Completion:
    """The turn up to the end of its tool call, followed by the answer: context that carries no loss."""
    start = len(completion.tokens) - turn_length(completion)
    kept_tokens = _cut(tokenizer, completion.tokens, start, step.cut)
    reply = tokenizer.encode_reply(step.replies[-1])
    if (
        kept_tokens
        and completion.tokens[kept_tokens - 1] in tokenizer.eos_ids
        and reply
        and reply[0] in tokenizer.eos_ids
    ):
        reply = reply[1:]  # the model ended its turn itself
    mask = completion.loss_mask or (True,) * len(completion.tokens)
    return Completion(
        (*completion.tokens[:kept_tokens], *reply),
        (*completion.logprobs[:kept_tokens], *(0.0 for _ in reply)),
        "length",
        (*mask[:kept_tokens], *(False for _ in reply)),
    )


def _cut(tokenizer: Tokenizer, tokens: TokenIds, start: int, characters: int) -> int:
    """How many tokens to keep so that the last turn has at least this many characters; all, if only the end of the turn
    follows."""
    whole = tokenizer.decode(tokens[start:])
    if characters >= len(whole):
        return len(tokens)
    low, high = start, len(tokens)
    while low < high:
        middle = (low + high) // 2
        if len(tokenizer.decode(tokens[start:middle])) < characters:
            low = middle + 1
        else:
            high = middle
    return low


async def score_episodes(
    tokenizer: Tokenizer,
    scorer: Scorer,
    groups: Sequence[tuple[TaskRef, Sequence[Completion]]],
    rule: RewardRule = STRICT,
) -> list[tuple[ScoredTexts, list[tuple[EpisodeTurn, ...]]]]:
    """Rewards of finished episodes, and their turns as text; by group. Raises ScorerUnavailable."""
    written = [[model_turns(tokenizer, c) for c in completions] for _, completions in groups]
    flat = [(ref, turns) for (ref, _), group in zip(groups, written, strict=True) for turns in group]
    steps = iter(await scorer.play(flat, final=True, rule=rule))
    results = []
    for group in written:
        ends = [next(steps) for _ in group]
        scored = ScoredTexts(tuple(step.reward for step in ends), tuple(step.well_formed for step in ends))
        results.append((scored, [_woven(turns, step.replies) for turns, step in zip(group, ends, strict=True)]))
    return results


def _woven(written: Sequence[str], replies: Sequence[str]) -> tuple[EpisodeTurn, ...]:
    turns: list[EpisodeTurn] = []
    for place, text in enumerate(written):
        turns.append(EpisodeTurn(text))
        if place < min(len(replies), len(written) - 1):
            turns.append(EpisodeTurn(replies[place], environment=True))
    return tuple(turns)


def encode_rollout(tokenizer: Tokenizer, rollout: Rollout) -> tuple[tuple[int, ...], tuple[bool, ...] | None]:
    """Tokens and loss mask of a rollout known only by its text: a replayed one, or another node's."""
    end = (tokenizer.eot_id,) if rollout.finish == "stop" else ()
    if not rollout.turns:
        return (*tokenizer.encode_text(rollout.text), *end), None
    ids: list[int] = []
    mask: list[bool] = []
    for turn in rollout.turns:
        part = tokenizer.encode_reply(turn.text) if turn.environment else tokenizer.encode_text(turn.text)
        ids += part
        mask += [not turn.environment] * len(part)
    return (*ids, *end), (*mask, *(True for _ in end))


async def score_completions(
    tokenizer: Tokenizer,
    scorer: Scorer,
    questions: Sequence[Question],
    completions: Sequence[Sequence[Completion]],
    rule: RewardRule = STRICT,
) -> list[tuple[ScoredTexts, list[str], list[tuple[EpisodeTurn, ...]]]]:
    """For each question, by completion: the rewards, what the model wrote, and the turns of an episode (empty for others).
    Episodes are judged by their environment, the others by their verifier. Raises ScorerUnavailable."""
    both = list(zip(questions, completions, strict=True))
    episodes = [(q.ref, group) for q, group in both if library.max_episode_turns(q.ref)]
    single = [
        (q.ref, [tokenizer.decode(c.tokens) for c in group])
        for q, group in both
        if not library.max_episode_turns(q.ref)
    ]
    played = iter(await score_episodes(tokenizer, scorer, episodes, rule))
    read = iter(zip(single, await scorer.score_local(single, rule), strict=True))
    results: list[tuple[ScoredTexts, list[str], list[tuple[EpisodeTurn, ...]]]] = []
    for question, group in both:
        if library.max_episode_turns(question.ref):
            scored, turns = next(played)
            texts = ["\n".join(t.text for t in episode if not t.environment) for episode in turns]
        else:
            (_, texts), scored = next(read)
            scored = scored.finished_only(question.ref, [completion.finish for completion in group])
            turns = [()] * len(texts)
        results.append((scored, texts, turns))
    return results


async def score_local_groups(
    tokenizer: Tokenizer,
    scorer: Scorer,
    questions: Sequence[Question],
    completions: Sequence[Sequence[Completion]],
    rule: RewardRule,
    label: str,
) -> list[tuple[Group, int]]:
    """Each question as a group of this node, and how many of its rollouts hold an answer. label: of the model. Raises
    ScorerUnavailable."""
    groups = []
    said = await score_completions(tokenizer, scorer, questions, completions, rule)
    for question, group, (scored, texts, turns) in zip(questions, completions, said, strict=True):
        rollouts = tuple(
            Rollout(text, c.finish, reward, c.sampled, place in scored.shortcut, episode)
            for place, (text, c, reward, episode) in enumerate(zip(texts, group, scored.rewards, turns, strict=True))
        )
        groups.append((Group(question, rollouts, model=label), sum(scored.well_formed)))
    return groups


async def answer_turns(
    engine: Engine,
    scorer: Scorer,
    questions: Sequence[Question],
    prompts: Sequence[Sequence[int]],
    table: list[list[Completion]],
    over: set[Place],
    limits: Sequence[int],
) -> bool:
    """Add the environments' answers to turns that ended to the table; returns False if no turn is to follow. over: episodes
    that get no further answer. limits: tokens per turn of each question."""
    places = [
        (i, j)
        for i, question in enumerate(questions)
        if library.max_episode_turns(question.ref)
        for j in range(len(table[i]))
        if (i, j) not in over
    ]
    episodes = [(questions[i].ref, prompts[i], table[i][j]) for i, j in places]
    answers = await score_answers(engine, scorer, episodes, [limits[i] for i, _ in places])
    for (i, j), (completion, last) in zip(places, answers, strict=True):
        table[i][j] = completion
        if last:
            over.add((i, j))
    return not all(last for _, last in answers)


# Completions of prompts, sampled call by call into a table, so that an interruption loses nothing.
#
# Finished completions stay, unfinished ones are continued. Every completion has its own random numbers (RowSeed), so
# that it does not matter when it is sampled, beside which others, or in how many pieces.

NOTHING = Completion((), (), "length")
Table = list[list[Completion]]
"""table[i][j]: completion j of prompt i, as far as it has been sampled."""


def is_turn_over(completion: Completion, most: int) -> bool:
    """Nothing more is to be added to its turn."""
    return completion.finish == "stop" or turn_length(completion) >= most


def shared_limits(most: Sequence[int]) -> list[int]:
    """For each limit the one of the call that it is sampled in: limits that differ by less than half are sampled together,
    under the largest of them. A few tokens too many cost less than another call, in which the weights are read once more
    for every token."""
    shared: dict[int, int] = {}
    largest = 0
    for limit in sorted(set(most), reverse=True):
        largest = largest if 2 * limit > largest else limit
        shared[limit] = largest
    return [shared[limit] for limit in most]


def cut_at_limits(table: Table, most: Sequence[int]) -> None:
    """Cut turns that a call with a larger limit made longer than their own: they end as if it had been theirs."""
    for row, limit in zip(table, most, strict=True):
        for j, completion in enumerate(row):
            if (extra := turn_length(completion) - limit) > 0:
                mask = completion.loss_mask
                row[j] = Completion(
                    completion.tokens[:-extra],
                    completion.logprobs[:-extra],
                    "length",
                    None if mask is None else mask[:-extra],
                )


SHRINK = 4


class BatchSizer:
    """Rows in one call of the engine; 0 = all. An interrupted call makes the next ones smaller, a completed one makes them
    larger again: an undisturbed node never works in small batches. most: rows that fit into memory."""

    def __init__(self, most: int = 0) -> None:
        self.rows, self.most = 0, most

    def interrupted(self, rows: int) -> None:
        """A call with this many rows was cancelled. Its tokens are kept, but continuing a completion means processing its
        text again before the first new token; with fewer rows that costs less."""
        self.rows = max(1, rows // SHRINK)

    def refused(self, rows: int) -> None:
        """There was no memory for this many rows: use half of them from now on."""
        self.most = max(1, rows // 2)

    def completed(self, rows: int) -> None:
        """A call with this many rows completed."""
        self.rows = 0 if not self.rows or rows < self.rows else 2 * self.rows

    def of(self, rows: int) -> int:
        """Rows of the next call when this many are left."""
        return min(rows, self.rows or rows, self.most or rows)


def next_call(
    table: Table, most: Sequence[int], portion: BatchSizer, shared: Sequence[int] | None = None
) -> list[Place]:
    """The completions to work on next, all with one limit and either all started or all new: the longest first. Empty when
    all are complete. most: tokens per turn of each prompt; shared: see shared_limits()."""
    call_limits = shared or most
    open_rows = [(i, j) for i, row in enumerate(table) for j, c in enumerate(row) if not is_turn_over(c, most[i])]
    if not open_rows:
        return []

    def far(place: Place) -> tuple[int, bool, int]:
        row = table[place[0]][place[1]]
        return turn_length(row), bool(row.tokens), call_limits[place[0]]

    furthest = max(map(far, open_rows))
    alike = [place for place in open_rows if far(place) == furthest]
    if any(furthest[:2]):
        return alike[: portion.of(len(alike))]
    prompts = list(dict.fromkeys(i for i, _ in alike))
    rows = list(itertools.accumulate(len(table[i]) for i in prompts))
    whole = max(1, bisect.bisect_right(rows, portion.of(rows[-1])))
    return [place for place in alike if place[0] in set(prompts[:whole])]


async def extend_completions(
    host: EngineThread,
    portion: BatchSizer,
    prompts: Sequence[Sequence[int]],
    table: Table,
    call: Sequence[Place],
    sampling: Sampling,
    seeds: Sequence[RowSeed],
    on_tokens: Callable[[int, int], None],
    untrained: bool = False,
    cancel: CancelToken | None = None,
) -> None:
    """Extend these completions; what is there at an interruption is added too. sampling: for what is still missing.
    untrained: the model answers as it was loaded (Engine.untrained). cancel: instead of the thread's own.

    Raises Cancelled, BackendError.
    """
    size = len(table[call[0][0]])
    alike = all(len(table[i]) == size for i, _ in call)
    fresh = not table[call[0][0]][call[0][1]].tokens
    grouped = fresh and alike and all((i, j) in call for i, _ in call for j in range(size))
    if grouped:
        asked = [prompts[i] for i in dict.fromkeys(i for i, _ in call)]
    else:
        asked = [[*prompts[i], *table[i][j].tokens] for i, j in call]
    engine, count = host.engine, size if grouped else 1

    def generate() -> list[list[Completion]]:
        with engine.untrained() if untrained else nullcontext():
            return engine.generate(asked, count, sampling, seeds, cancel or host.cancel, on_tokens)

    try:
        completions = await host.call(generate)
    except Cancelled as stopped:
        _add(table, call, [c for group in stopped.partial for c in group])
        if host.cancel.cancelled:
            portion.interrupted(len(call))
        raise
    except OutOfMemory:
        portion.refused(len(call))
        raise
    _add(table, call, [c for group in completions for c in group])
    portion.completed(len(call))


def _add(table: Table, call: Sequence[Place], more: Sequence[Completion]) -> None:
    for (i, j), new in zip(call, more, strict=False):
        old = table[i][j]
        mask = None if old.loss_mask is None else old.loss_mask + (True,) * len(new.tokens)
        table[i][j] = Completion(old.tokens + new.tokens, old.logprobs + new.logprobs, new.finish, mask)
