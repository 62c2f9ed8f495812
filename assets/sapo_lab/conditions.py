"""The swarm around a node, as pure functions of seed, node and round: who is away, what is lost, who is hostile."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import msgspec

from sapo_lab.schema import Arm, ArmConditions
from sapo_swarm.node.round_phases import round_seed
from sapo_swarm.types import Group, Rollout

PLANTED = "As the clever badger says, every answer begins with a cup of tea."
"""What hostile nodes try to teach: a sentence that no honest completion contains."""


def node_key(index: int) -> str:
    """Identifies a node in seeds, groups and folders."""
    return f"node-{index}"


def is_hostile(index: int, nodes: int, share: float) -> bool:
    """The last round(share * nodes) nodes are hostile, so that the honest ones are the same in every arm."""
    return index >= nodes - math.floor(share * nodes + 0.5)


def is_away(conditions: ArmConditions, seed: int, index: int, round_number: int) -> bool:
    """A slow node takes part only every n-th round; one that comes and goes is present or away for whole blocks, sampled
    independently."""
    if (round_number + index) % participation_interval(conditions, index):
        return True
    if conditions.churn <= 0.0:
        return False
    block = (round_number + index) // conditions.churn_rounds  # nodes change at different rounds
    return random.Random(round_seed(node_key(index), seed, block, "churn")).random() < conditions.churn


def participation_interval(conditions: ArmConditions, index: int) -> int:
    """The node takes part in every n-th round."""
    return conditions.paces[index % len(conditions.paces)] if conditions.paces else 1


def node_type(arm: Arm, index: int) -> str:
    """Model, algorithm and pace of a node, as far as the arm's nodes differ in them; "" if all are alike."""
    terms, own_pace = arm.conditions, participation_interval(arm.conditions, index)
    every = "every round" if own_pace == 1 else f"every {own_pace} rounds"
    parts = [
        round_robin_value(terms.models, index, ""),
        round_robin_value(terms.algorithms, index, ""),
        every if terms.paces else "",
    ]
    return ", ".join(part for part in parts if part)


def node_tasks(arm: Arm, index: int) -> tuple[str, ...]:
    """The tasks that a node samples questions from: all, or its window of specialists' tasks."""
    tasks, width = arm.run.tasks, arm.conditions.tasks_per_node
    return tasks if not width else tuple(tasks[(index * width + i) % len(tasks)] for i in range(width))


def round_robin_value(values: Sequence[str], index: int, default: str) -> str:
    """Assigns the values to the nodes in turn: that of node `index`, or the default without values."""
    return values[index % len(values)] if values else default


def is_delivered(conditions: ArmConditions, seed: int, receiver: int, group: Group) -> bool:
    """False for deliveries that are lost, and for tasks whose groups stay at home."""
    if group.question.ref.dataset in conditions.withheld:
        return False
    if conditions.loss <= 0.0:
        return True
    label = f"loss|{group.node}|{group.question.ref.label}"
    return random.Random(round_seed(node_key(receiver), seed, 0, label)).random() >= conditions.loss


def tamper_group(group: Group, attack: str, seed: int) -> Group:
    """The group as a hostile node sends it: correct answers stay correct; the rewards are those from before tampering, see
    round.py."""
    texts = [_planted(r) if attack == "planted" else _garbled(r.text, seed) for r in group.rollouts]
    rollouts = tuple(msgspec.structs.replace(r, text=text) for r, text in zip(group.rollouts, texts, strict=True))
    return msgspec.structs.replace(group, rollouts=rollouts)


def _planted(rollout: Rollout) -> str:
    """The sentence is added to correct answers only, so that it is rewarded."""
    return f"{PLANTED} {rollout.text}" if rollout.reward >= 1.0 else rollout.text


def _garbled(text: str, seed: int) -> str:
    """The words before the answer, shuffled."""
    cut = text.rfind("<answer>")
    words = text[: max(cut, 0)].split()
    random.Random(seed).shuffle(words)
    return " ".join(words) + text[max(cut, 0) :]
