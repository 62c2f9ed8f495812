"""One synchronous round of a lab swarm: all generate, all share, all update. The phases are those of a node."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from sapo_lab.conditions import is_away, tamper_group
from sapo_lab.running import figures_of_round, judge
from sapo_lab.running.adaptive import adjust_split, observe_round
from sapo_lab.running.nodes import RULE, LabNode
from sapo_lab.running.pool import GroupHistory, SharedGroup, as_shared_groups, key_of
from sapo_lab.schema import Arm, ArmConditions
from sapo_swarm.config import RunConfig
from sapo_swarm.events import RoundFinished
from sapo_swarm.node import round_phases
from sapo_swarm.node.round_phases import RoundContext, RoundWork, record_round, update_policy
from sapo_swarm.node.swarm_exchange import least_likely
from sapo_swarm.protocol.receive import PROBED
from sapo_swarm.sapo.training_batch import has_advantage, questions_to_sample
from sapo_swarm.types import Group, TaskRef


async def run_round(nodes: Sequence[LabNode], arm: Arm, history: GroupHistory, seed: int, round_number: int) -> None:
    """Every present node goes through the round; the honest ones journal it."""
    terms = arm.conditions
    judged = judge.pick_judge_question(arm.run.tasks, arm.run.preset, round_number) if terms.judge else None
    present = [n for n in nodes if not is_away(terms, seed, n.index, round_number)]
    generated: list[tuple[LabNode, RoundContext, RoundWork]] = []
    for node in present:
        began = time.process_time()
        context = node.round_context()
        larger = _ahead(node, context, history, round_number) if terms.starved == "ahead" else context
        work = await _generate(larger, terms, round_number)
        generated.append((node, context, work))
        node.cpu_s = time.process_time() - began + work.seconds.get("score", 0.0)
    sharing = [await _share(node, context, work, terms) for node, context, work in generated]
    history.add([item for items in sharing for item in items], round_number)
    for (node, context, work), items in zip(generated, sharing, strict=True):
        node.mailbox.sent = sum(item.size for item in items)
        if not node.hostile:
            began = time.process_time() - node.cpu_s
            await _train(node, context, work, terms, history, judged, began)


def uses_shared_groups(config: RunConfig) -> bool:
    """The arm uses groups of the pool in its batch."""
    return bool(config.external_groups)


async def _generate(context: RoundContext, terms: ArmConditions, round_number: int) -> RoundWork:
    """The local groups of the round, including those that dynamic sampling adds."""
    work = await _attempt(context, round_number)
    wanted = context.config.local_groups
    attempts = 1
    while terms.own_filter == "resample" and attempts < terms.resample_limit:
        if sum(has_advantage(group) for group in work.local or ()) >= wanted:
            break
        _merge(work, await _attempt(_further(context, wanted, attempts), round_number))
        attempts += 1
    return work


async def _attempt(context: RoundContext, round_number: int) -> RoundWork:
    work = RoundWork(round_number)
    await round_phases.sample_questions(context, work)
    await round_phases.generate_groups(context, work)
    await round_phases.score_groups(context, work)
    return work


def _further(context: RoundContext, groups: int, attempt: int) -> RoundContext:
    """A context that samples this many other questions, with separate random numbers."""
    config = msgspec.structs.replace(context.config, local_groups=groups, external_groups=0)
    return replace(context, config=config, node_key=f"{context.node_key}/more-{attempt}")


def _merge(work: RoundWork, more: RoundWork) -> None:
    assert work.questions is not None
    assert work.completions is not None
    assert work.local is not None
    work.questions += more.questions or []
    work.prompts += more.prompts
    work.completions += more.completions or []
    work.local += more.local or []
    work.well_formed += more.well_formed
    for phase, seconds in more.seconds.items():
        work.seconds[phase] = work.seconds.get(phase, 0.0) + seconds


async def _share(node: LabNode, context: RoundContext, work: RoundWork, terms: ArmConditions) -> list[SharedGroup]:
    """What the node shares; nothing if nobody samples from it."""
    assert work.local is not None
    if not uses_shared_groups(context.config) and not terms.adaptive:
        return []
    groups = work.local
    if node.hostile:
        groups = [await _rescored(context, tamper_group(group, terms.attack, work.round)) for group in groups]
    return as_shared_groups(groups, node.key, work.round, figures_of_round.upload_bytes(groups, work.round))


async def _rescored(context: RoundContext, group: Group) -> Group:
    """The group with the rewards that every receiver's verifier would give it."""
    scored = await context.scorer.score(
        group.question.ref, [r.text for r in group.rollouts], context.config.reward_rule
    )
    rollouts = tuple(
        msgspec.structs.replace(rollout, reward=reward)
        for rollout, reward in zip(group.rollouts, scored.rewards, strict=True)
    )
    return msgspec.structs.replace(group, rollouts=rollouts)


async def _train(
    node: LabNode,
    context: RoundContext,
    work: RoundWork,
    terms: ArmConditions,
    history: GroupHistory,
    judged: TaskRef | None,
    began: float,
) -> None:
    """Sample from the pool, assemble, update, answer the judge, journal. began: in processor seconds, reduced by what the
    node has used in the round before.

    Scoring runs in a child process. The wall-clock seconds of waiting for it count as its processor seconds: an upper bound.
    """
    available = history.pool(node.index, work.round, node.used) if uses_shared_groups(context.config) else []
    verify_s = await _verify_arrivals(context, available, work.round - terms.staleness)
    refused = 0
    if terms.logprob_floor < 0:
        likely = [item for item in available if await _likely(node, context, item, work.round, terms)]
        refused, available = len(available) - len(likely), likely
    node.mailbox.groups = tuple(item.group for item in available)
    node.mailbox.received = sum(item.size for item in available if item.group.node != node.key)
    await round_phases.share_groups(context, work)
    await _update(context, work, terms)
    cpu_s = time.process_time() - began + verify_s
    node.spent_s += cpu_s
    verdict = await judge.score_judge_question(context, judged) if judged is not None else None
    figures = {"cpu_s": cpu_s, "verify_s": verify_s, "pool": float(len(available)), "refused": float(refused)}
    if verdict is not None:
        figures["judged"] = verdict
    finished = _journal(node, context, work, figures)
    if terms.adaptive:
        _adapt(node, finished, context.config.group_size)


async def _verify_arrivals(context: RoundContext, available: Sequence[SharedGroup], arrived: int) -> float:
    """Score again what others generated in round `arrived`, once, as every receiver does; returns the seconds. The lab's nodes
    have the same verifier, so only the cost is of interest."""
    began = time.monotonic()
    for item in available:
        if item.round == arrived and item.group.node != context.node_key:
            await _rescored(context, item.group)
    return time.monotonic() - began


async def _likely(
    node: LabNode, context: RoundContext, item: SharedGroup, round_number: int, terms: ArmConditions
) -> bool:
    """As in sapo_swarm.protocol.receive: could this policy have written what it would be trained on, and the author's other
    texts, each of which counts in the round it arrives?"""
    group = item.group
    mean = sum(group.rewards) / len(group.rewards)
    trained_on = [r.text for r in group.rollouts if r.reward > mean]
    if not trained_on:
        return True
    probed = random.sample(trained_on, min(PROBED, len(trained_on)))
    unlikely = (await least_likely(context.host, group.question, probed))[0] < terms.logprob_floor
    if terms.unlikely_sources and item.round == round_number - terms.staleness:
        node.unlikely.judged(group.node, unlikely)
    return not unlikely and node.unlikely.allows(group.node)


def _ahead(node: LabNode, context: RoundContext, history: GroupHistory, round_number: int) -> RoundContext:
    """A context that samples more questions to make up for what the pool lacks before the round, as a node of the app does;
    their groups are shared."""
    local, external = context.config.local_groups, context.config.external_groups
    available = _usable(context, history.pool(node.index, round_number, node.used))
    wanted = questions_to_sample(local, external, available)
    return replace(context, config=msgspec.structs.replace(context.config, local_groups=wanted))


def _usable(context: RoundContext, available: Sequence[SharedGroup]) -> int:
    """How many of these groups a batch can take, at most J."""
    uniform = context.config.sampling == "uniform"
    sources = Counter(item.group.node for item in available if uniform or has_advantage(item.group))
    most = context.per_source or sources.total()
    return min(sum(min(most, count) for count in sources.values()), context.config.external_groups)


async def _update(context: RoundContext, work: RoundWork, terms: ArmConditions) -> None:
    """The node's update with the local groups that the arm trains on; the record still covers all of them."""
    assert work.local is not None
    everything = work.local
    if terms.own_filter == "resample":
        work.local = [group for group in everything if has_advantage(group)]
    await update_policy(context, work)
    work.local = everything


def _journal(node: LabNode, context: RoundContext, work: RoundWork, figures: dict[str, float]) -> RoundFinished:
    assert work.local is not None
    finished = next(
        event
        for event in record_round(work, context.config.external_groups, node.solved)
        if isinstance(event, RoundFinished)
    )
    external = [group for group in work.trained if group.external]
    node.used |= {key_of(group) for group in external}
    node.tokens += finished.tokens_generated
    figures |= {
        "generated_groups": float(len(work.local)),
        "distinct": figures_of_round.distinct_answer_share(work.local, context.config.answer_format),
        "planted": figures_of_round.planted_share(work.local),
        "replayed": float(work.replayed + sum(group.node == node.key for group in external)),
    }
    trained = len(work.trained) - len(external)  # a filter may leave nothing; then this is 0, not all of them
    nonzero = sum(group.nonzero_advantage for group in work.local)
    counts = {"local_groups": trained, "nonzero_groups": nonzero}
    finished = msgspec.structs.replace(finished, time=time.time(), figures=figures, **counts)
    node.journal.append([finished])
    return finished


def _adapt(node: LabNode, event: RoundFinished, group_size: int) -> None:
    """Move the node's I and J for the next round."""
    gap = None
    if event.logprob_external is not None and event.logprob_local is not None:
        gap = event.logprob_local - event.logprob_external
    groups = event.completions / group_size
    node.split = adjust_split(observe_round(node.split, event.nonzero_groups / max(groups, 1.0), gap, RULE), RULE)
