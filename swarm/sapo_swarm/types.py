"""The nouns of a swarm, as msgspec structs: the same on the wire, in the journal and in the code.

Nothing here carries a reward or a truth from another node: what is shared is coordinates and decoded text.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

PROTOCOL_VERSION = 1
GENERATOR_VERSION = "reasoning-gym-0.1.25"
"""Part of every TaskRef: the same coordinates give the same question only under the same generator."""

MAX_COMPLETION_BYTES = 8192
SEED_LIMIT = 2**32

Name = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,39}\Z")]
"""A dataset or preset name."""
NodeId = Annotated[str, Meta(pattern=r"^[a-z2-7]{26}\Z")]
"""base32(SHA-256(public key))[:26], lower case."""
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Finish = Literal["stop", "length"]


class TaskRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """Coordinates from which any node regenerates the same question."""

    dataset: Name
    preset: Name
    seed: Annotated[int, Meta(ge=0, lt=SEED_LIMIT)]
    index: Annotated[int, Meta(ge=0, lt=2**20)] = 0
    generator: Annotated[str, Meta(max_length=40, pattern=r"^[a-z0-9.-]+\Z")] = GENERATOR_VERSION

    @property
    def label(self) -> str:
        """The coordinates as one word, for seeds, keys and messages."""
        return f"{self.dataset}/{self.preset}/{self.seed}+{self.index}"


class Question(msgspec.Struct, frozen=True):
    """What a TaskRef regenerates: the text a model sees. The verifier stays in the scorer worker."""

    ref: TaskRef
    prompt: str
    prompt_sha256: Sha256


class Rollout(msgspec.Struct, frozen=True):
    """One completion of a question with the reward that this node's own verifier gave it.

    reward: in [0, 1] (strict 0/1 by default). tokens: completion tokens incl. end of sequence. shortcut: right on other
    questions of its task too (an answer-only shortcut), and rewarded less for it (run.contrast).
    """

    text: str
    finish: Finish
    reward: float
    tokens: int = 0
    shortcut: bool = msgspec.field(default=False, name="unread")


Source = Literal["own", "external"]


class Group(msgspec.Struct, frozen=True):
    """A question with its rollouts, as this node holds it.

    node: who generated the completions ("" = this node). advantages: as used in the last update, empty if unused.
    """

    question: Question
    rollouts: tuple[Rollout, ...]
    source: Source = "own"
    node: str = ""
    model: str = ""
    advantages: tuple[float, ...] = ()

    @property
    def rewards(self) -> tuple[float, ...]:
        """(G,) one a rollout."""
        return tuple(r.reward for r in self.rollouts)

    @property
    def nonzero_advantage(self) -> bool:
        """Rewards are not all equal: the group has a policy gradient."""
        return len(set(self.rewards)) > 1


class RewardRule(msgspec.Struct, frozen=True, array_like=True):
    """How a verdict becomes a reward. partial: the task's partial credit instead of strict 0/1. contrast: a text is
    scored on so many other questions of its task too, and the best of these scores is subtracted, so that an answer-only
    shortcut earns nothing (docs/decisions/0015-contrast.md)."""

    partial: bool = False
    contrast: int = 0


STRICT = RewardRule()
