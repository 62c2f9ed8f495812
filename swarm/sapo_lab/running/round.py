"""One synchronous round of a lab swarm: all draw, all share, all update. The phases are those of a node."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from sapo_lab.conditions import is_away, tampered
from sapo_lab.running import figures_of_round, judge
from sapo_lab.running.adaptive import move, observe
from sapo_lab.running.nodes import RULE, LabNode
from sapo_lab.running.off_policy import correction
from sapo_lab.running.pool import History, Shared, key_of, shared
from sapo_lab.schema import Arm, Conditions
from sapo_swarm.events import RoundFinished
from sapo_swarm.node.round import phases
from sapo_swarm.node.round.context import RoundWork
from sapo_swarm.node.round.phases import RoundContext
from sapo_swarm.node.round.record import record
from sapo_swarm.node.swarm.likelihood import least_likely
from sapo_swarm.sapo.assemble import questions_to_ask
from sapo_swarm.sapo.sample_external import has_signal
from sapo_swarm.types import Group, TaskRef


async def play(nodes: Sequence[LabNode], arm: Arm, history: History, seed: int, round_number: int) -> None:
    """Every present node goes through the round; the honest ones journal it."""
    terms = arm.conditions
    asked = judge.question(arm.run.tasks, arm.run.preset, round_number) if terms.judge else None
    present = [n for n in nodes if not is_away(terms, seed, n.index, round_number)]
    drawn: list[tuple[LabNode, RoundContext, RoundWork]] = []
    for node in present:
        context = node.bench_now()
        asking = _ahead(node, context, history, round_number) if terms.starved == "ahead" else context
        drawn.append((node, context, await _draw(asking, terms, round_number)))
    sharing = [await _share(node, context, work, terms) for node, context, work in drawn]
    history.add([item for items in sharing for item in items], round_number)
    for (node, context, work), items in zip(drawn, sharing, strict=True):
        node.mailbox.sent = sum(item.size for item in items)
        if not node.hostile:
            await _learn(node, context, work, terms, history, asked)


async def _draw(context: RoundContext, terms: Conditions, round_number: int) -> RoundWork:
    """Own groups of the round, with those that dynamic sampling adds."""
    work = await _attempt(context, round_number)
    wanted = context.config.local_groups
    attempts = 1
    while terms.own_filter == "resample" and attempts < terms.resample_limit:
        if sum(has_signal(group) for group in work.own or ()) >= wanted:
            break
        _merge(work, await _attempt(_further(context, wanted, attempts), round_number))
        attempts += 1
    return work


async def _attempt(context: RoundContext, round_number: int) -> RoundWork:
    work = RoundWork(round_number)
    await phases.ask(context, work)
    await phases.generate(context, work)
    await phases.score(context, work)
    return work


def _further(context: RoundContext, groups: int, attempt: int) -> RoundContext:
    """A context that samples so many other questions, with random numbers of its own."""
    config = msgspec.structs.replace(context.config, local_groups=groups, external_groups=0)
    return replace(context, config=config, node_key=f"{context.node_key}/more-{attempt}")


def _merge(work: RoundWork, more: RoundWork) -> None:
    assert work.questions is not None
    assert work.completions is not None
    assert work.own is not None
    work.questions += more.questions or []
    work.prompts += more.prompts
    work.completions += more.completions or []
    work.own += more.own or []
    work.well_formed += more.well_formed
    for phase, seconds in more.seconds.items():
        work.seconds[phase] = work.seconds.get(phase, 0.0) + seconds


async def _share(node: LabNode, context: RoundContext, work: RoundWork, terms: Conditions) -> list[Shared]:
    """What the node hands out; nothing where nobody draws from it."""
    assert work.own is not None
    assert work.completions is not None
    if not context.config.external_groups and not terms.adaptive:
        return []
    groups = work.own
    if node.hostile:
        groups = [await _judged(context, tampered(group, terms.attack, work.round)) for group in groups]
    keep = terms.off_policy in ("token", "sequence", "clip") and not node.hostile
    return shared(
        groups,
        work.completions,
        node.key,
        work.round,
        figures_of_round.upload_bytes(groups, work.round),
        keep_logprobs=keep,
    )


async def _judged(context: RoundContext, group: Group) -> Group:
    """The group with the rewards that every receiver's verifier would give it."""
    scored = await context.scorer.score(
        group.question.ref, [r.text for r in group.rollouts], context.config.reward_rule
    )
    rollouts = tuple(
        msgspec.structs.replace(rollout, reward=reward)
        for rollout, reward in zip(group.rollouts, scored.rewards, strict=True)
    )
    return msgspec.structs.replace(group, rollouts=rollouts)


async def _learn(
    node: LabNode, context: RoundContext, work: RoundWork, terms: Conditions, history: History, asked: TaskRef | None
) -> None:
    """Sample from the others, assemble, update, answer the judge, journal."""
    offered = history.pool(node.index, work.round, node.used) if context.config.external_groups else []
    refused = 0
    if terms.logprob_floor < 0:
        likely = [item for item in offered if await _likely(context, item.group, terms.logprob_floor)]
        refused, offered = len(offered) - len(likely), likely
    node.mailbox.groups = tuple(item.group for item in offered)
    node.mailbox.received = sum(item.size for item in offered if item.group.node != node.key)
    await phases.share(context, work)
    if terms.starved == "fill":
        await _fill(context, work, offered)
    assert work.completions is not None
    by_key = {item.key: item for item in offered}
    temperature = context.policy.temperature
    context = replace(
        context, correction=correction(terms.off_policy, context.host, by_key, work.completions, temperature)
    )
    await _update(context, work, terms)
    verdict = await judge.ask(context, asked) if asked is not None else None
    figures = {"pool": float(len(offered)), "refused": float(refused)}
    if verdict is not None:
        figures["judged"] = verdict
    finished = _journal(node, context, work, figures)
    if terms.adaptive:
        _adapt(node, finished, context.config.group_size)


async def _likely(context: RoundContext, group: Group, floor: float) -> bool:
    """As sapo_swarm.protocol.receive: could this policy have written what it would be taught?"""
    mean = sum(group.rewards) / len(group.rewards)
    taught = [r.text for r in group.rollouts if r.reward > mean]
    return not taught or (await least_likely(context.host, group.question, taught))[0] >= floor


def _ahead(node: LabNode, context: RoundContext, history: History, round_number: int) -> RoundContext:
    """A bench that asks own questions for what the pool lacks before the round, as a node of the app does; they are shared."""
    own, external = context.config.local_groups, context.config.external_groups
    asked = questions_to_ask(own, external, _on_offer(context, history.pool(node.index, round_number, node.used)))
    return replace(context, config=msgspec.structs.replace(context.config, local_groups=asked))


def _on_offer(context: RoundContext, offered: Sequence[Shared]) -> int:
    """How many of these groups a batch can take, at most J."""
    sources = [item.group.node for item in offered if context.config.sampling == "uniform" or has_signal(item.group)]
    found = len(sources) if context.per_source is None else len(set(sources))
    return min(found, context.config.external_groups)


async def _fill(context: RoundContext, work: RoundWork, offered: Sequence[Shared]) -> None:
    """Own questions in the place of external groups that will be missing; nobody else sees them."""
    missing = context.config.external_groups - _on_offer(context, offered)
    if missing:
        _merge(work, await _attempt(_further(context, missing, 0), work.round))


async def _update(context: RoundContext, work: RoundWork, terms: Conditions) -> None:
    """The node's update with the own groups that the arm trains on; the record still sees all of them."""
    assert work.own is not None
    everything, kept = work.own, work.own
    if not terms.train_own:
        kept = []
    elif terms.own_filter == "resample":
        kept = [group for group in everything if has_signal(group)]
    work.own = kept
    await phases.update(context, work)
    work.own = everything


def _journal(node: LabNode, context: RoundContext, work: RoundWork, figures: dict[str, float]) -> RoundFinished:
    assert work.own is not None
    finished = next(
        event
        for event in record(work, context.config.external_groups, node.solved, "")
        if isinstance(event, RoundFinished)
    )
    external = [group for group in work.trained if group.source == "external"]
    node.used |= {key_of(group) for group in external}
    node.tokens += finished.tokens_generated
    figures |= {
        "generated_groups": float(len(work.own)),
        "distinct": figures_of_round.distinct(work.own),
        "planted": figures_of_round.planted(work.own),
        "replayed": float(sum(group.node == node.key for group in external)),
    }
    trained = len(work.trained) - len(external)  # a filter may leave nothing; then this is 0, not all of them
    finished = msgspec.structs.replace(finished, time=time.time(), local_groups=trained, figures=figures)
    node.journal.append([finished])
    return finished


def _adapt(node: LabNode, event: RoundFinished, group_size: int) -> None:
    """Move the node's I and J for the next round."""
    gap = None
    if event.logprob_external is not None and event.logprob_local is not None:
        gap = event.logprob_local - event.logprob_external
    groups = event.completions / group_size
    node.split = move(observe(node.split, event.nonzero_groups / max(groups, 1.0), gap, RULE), RULE)
