"""What a node reports: one tagged union for the journal, the control API and the dashboard.

Stored events go to the journal with a sequence number and are replayed to every new client; ephemeral ones (`Phase`,
`Vitals`) are only streamed. The dashboard's state is a pure function of this stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from sapo_swarm.types import Group, Peer

Mode = Literal["silo", "swarm"]
State = Literal["starting", "running", "pausing", "paused", "finishing", "stopped", "failed"]
STATES: tuple[State, ...] = get_args(State)
PhaseName = Literal[
    "open", "questions", "generate", "score", "exchange", "update", "checkpoint", "evaluate", "trial", "examples"
]


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """seq: position in the journal, 0 for ephemeral events. time: seconds since the Unix epoch."""

    seq: int = 0
    time: float = 0.0


class RunStarted(_Event, frozen=True, kw_only=True, tag="run_started"):
    """A node process opened the model (the first time or after a stop); round: the next round.

    name: the model's name, base: what it was made from; both "" in runs from before models had names. changed: what is
    different from the last time, one sentence each ("joined swarm X"). trial: the trial's name in an open swarm; else "".
    weights: SHA-256 of the trainable weights that training starts from, see CheckpointSaved; "" if none are trained. solved:
    tasks that the model solved at least once. judged: its rewards are verdicts of a judge; else they are verified.
    computed_by: which decoder and decode path of the engine, in words; "" from engines and versions that do not say.
    held_out: identifies the held-out questions (tasks, preset and version): another name means other questions; "" if
    unknown. rounds_planned: rounds of practice; examples_rounds: rounds of examples (RoundFinished) among those before
    `round`.
    """

    run_id: str
    mode: Mode
    model: str
    backend: str
    device: str
    precision: str
    method: str
    parameters: int
    tasks: tuple[str, ...]
    algorithm: str
    group_size: int
    local_groups: int = msgspec.field(name="own_groups")
    external_groups: int
    round: int
    rounds_planned: int
    seed: int
    versions: dict[str, str]
    name: str = ""
    base: str = ""
    changed: tuple[str, ...] = ()
    weights: str = ""
    solved: tuple[str, ...] = ()
    computed_by: str = ""
    held_out: str = ""
    judged: bool = False
    trial: str = ""
    examples_rounds: int = 0


class StateChanged(_Event, frozen=True, kw_only=True, tag="state"):
    """One sentence: what the node does, or why it does not and what changes that. anyway_until: Unix time until which the
    limits are off."""

    state: State
    sentence: str
    reason: str = ""
    anyway_until: float = 0.0


class Phase(_Event, frozen=True, kw_only=True, tag="phase"):
    """Ephemeral: progress in a round or in opening the model. fraction in [0, 1]; eta_s: seconds left in it, -1 unknown."""

    round: int
    phase: PhaseName
    fraction: float
    eta_s: float
    detail: str = ""


class Vitals(_Event, frozen=True, kw_only=True, tag="vitals"):
    """Ephemeral: the current state of the machine. None for what cannot be read. memory in bytes (node process tree)."""

    tokens_per_s: float | None
    rounds_per_hour: float | None
    memory: int
    cpu_percent: float | None
    celsius: float | None


class RoundFinished(_Event, frozen=True, kw_only=True, tag="round"):
    """The figures of one round. Rewards are means in [0, 1]; None if there were no such groups.

    reward_local: local groups, before the update, unfiltered. reward_external: sampled external groups. reward_batch: the
    whole training batch. nonzero_groups: those of local_groups (in the lab: of all that were generated) with unequal rewards.
    truncated: how many of `completions` were cut at the token limit. seconds: by phase. figures: further ones by name:
    "replayed", earlier local groups trained on again, "judge_tokens" that the judge read and wrote, "kl" of the policy from
    the base in nats a token (graded tasks alone), and those of experiments (sapo_lab.running.figures_of_round). covers:
    rounds that this record stands for, `round` being the last: old rounds are stored in blocks, with sums of counts and
    seconds and means of figures; lowest and highest: their extremes. taught: task -> external groups that were trained on for
    a success at it. examples: verified texts that the update imitated; such a round samples nothing and has no reward. 0: a
    round of practice.
    """

    round: int
    reward_local: float | None
    reward_external: float | None
    reward_batch: float | None
    local_groups: int = msgspec.field(name="own_groups")
    external_groups: int
    external_wanted: int
    nonzero_groups: int = msgspec.field(name="informative")
    truncated: int
    well_formed: int
    completions: int
    tokens_generated: int
    tokens_trained: int
    bytes_sent: int
    bytes_received: int
    loss: float | None
    grad_norm: float | None
    entropy: float | None
    clip_fraction: float | None
    logprob_local: float | None = msgspec.field(name="logprob_own")
    logprob_external: float | None
    ratio_max: float | None
    task_rewards: dict[str, float]
    seconds: dict[str, float]
    figures: dict[str, float] = {}
    covers: int = 1
    lowest: dict[str, float] = {}
    highest: dict[str, float] = {}
    taught: dict[str, int] = {}
    examples: int = 0


class GroupRecorded(_Event, frozen=True, kw_only=True, tag="group"):
    """A group that was generated or received in the round. first_solved: it is the task's first success on this node."""

    round: int
    group: Group
    trained: bool
    first_solved: bool = False


class FirstSuccess(_Event, frozen=True, kw_only=True, tag="first_success"):
    """The first success at a task, in this node's round: its own (node ""), or the first one that it received from others.

    step: the other node's round, as that node says. taught: external groups that were trained on for a success before its
    own, from round `since` to `until`.
    """

    round: int
    task: str
    node: str = ""
    step: int = 0
    taught: int = 0
    since: int = -1
    until: int = -1


class TaskScore(msgspec.Struct, frozen=True):
    """Held-out result of one task: correct answers out of items * samples, with its 95 % interval.

    permuted: pass@1 of the answer-permutation check, in which each item gets the model's answers to another item of the task;
    None if it was not measured. Whatever score remains then does not come from reading the question. base: the untrained
    model's pass@1 on the same items; None if they were not compared.
    """

    task: str
    items: int
    pass_at_1: float
    low: float
    high: float
    well_formed: float
    truncated: float
    permuted: float | None = msgspec.field(default=None, name="swapped")
    base: float | None = None

    @property
    def shortcut(self) -> bool:
        """An answer-only shortcut: at least half of the score remains under the answer-permutation check. Requires three
        items in both, so that chance does not look like one."""
        permuted = self.permuted or 0.0
        return min(permuted, self.pass_at_1) * self.items >= 3 and permuted >= 0.5 * self.pass_at_1


class PairedSoFar(msgspec.Struct, frozen=True):
    """The comparison with the base on those `items` questions of an evaluation that the base had answered by then, as many of
    each task as possible. base, now: pass@1 of both on them; delta: the paired difference with its 95 % interval."""

    items: int
    base: float
    now: float
    delta: float
    low: float
    high: float


class GreedyScore(msgspec.Struct, frozen=True):
    """Held-out pass@1 at temperature 0: each model's likeliest answer, as a chat gives it. The fields are those of Evaluated,
    on the same items."""

    items: int
    pass_at_1: float
    low: float
    high: float
    delta: float | None = None
    delta_low: float | None = None
    delta_high: float | None = None
    tasks: tuple[TaskScore, ...] = ()
    base_missing: int = 0
    so_far: PairedSoFar | None = None


class Evaluated(_Event, frozen=True, kw_only=True, tag="evaluation"):
    """Held-out pass@1 on fixed items. asked: including those that do not regenerate here; 0: unknown. delta: paired
    difference to the base on them; None for the base, or with base_missing. greedy: the same items answered at temperature 0;
    None in journals of versions that only asked at 1. so_far: with base_missing, the difference on the others, where the base
    is asked beside training. belated: published because the base has answered everything only now: its own result (round 0),
    or the newest result once more with its difference; nobody answered anything for it, and no weights are judged by it."""

    round: int
    temperature: float
    items: int
    pass_at_1: float
    low: float
    high: float
    delta: float | None
    delta_low: float | None
    delta_high: float | None
    tasks: tuple[TaskScore, ...]
    seconds: float
    base_missing: int = 0
    asked: int = 0
    greedy: GreedyScore | None = None
    so_far: PairedSoFar | None = None
    belated: bool = False


class BaseAsked(_Event, frozen=True, kw_only=True, tag="base_asked"):
    """The untrained model answered some more held-out questions between two rounds, while its adapter is being trained.

    round: rounds done. answered: of `items` questions of a regular evaluation, at both temperatures. pass_at_1, low, high: at
    temperature 1 on those, with the 95 % interval; greedy: at temperature 0. seconds: that these answers took.
    """

    round: int
    answered: int
    items: int
    pass_at_1: float
    low: float
    high: float
    greedy: float
    seconds: float


class TaskTrial(msgspec.Struct, frozen=True):
    """One task's part of a TrialMeasured, in counts; the fields are the same."""

    task: str
    questions: int
    answers: int
    right: int
    greedy: int
    well_formed: int
    truncated: int
    unequal: int


Plan = Literal["practice", "examples", "only", "nothing"]
"""What follows from a trial: practice at once, examples and then practice, examples alone, or there is nothing to start with."""


class TrialMeasured(_Event, frozen=True, kw_only=True, tag="base_trial"):
    """How the model answers training questions (never held-out ones), before the first round, or later if practice found
    nothing to learn from and there are successes to imitate.

    answers: completions at `temperature`, group_size per question; right, well_formed, truncated: among them; low, high: 95 %
    interval of the share that is right. unequal: questions with both right and wrong answers, from which practice can learn.
    greedy: questions right at temperature 0. examples: verified texts of a pass; sources: how many of them are rows of tables
    ("table"), fresh questions with the task's answer ("task"), and successes that the "person", the model itself ("own") and
    "others" wrote. limits: task -> token limit of an answer from now on, {} if the settings decide. sample: an answer as it
    was written, safe to show. sentence: what the node does now, and why. unfinished: answers that the trial's time limit cut
    off; they count as not right and are no reason for anything. left_out: questions that it left no time for. greedy_asked:
    questions answered to the end at temperature 0; -1: all. tried_at: Unix time of an earlier trial under the same conditions,
    whose counts these are; 0: made now.
    """

    round: int
    temperature: float
    group_size: int
    questions: int
    answers: int
    right: int
    low: float
    high: float
    greedy: int
    well_formed: int
    truncated: int
    unequal: int
    tasks: tuple[TaskTrial, ...]
    seconds: float
    sample: str
    examples: int
    plan: Plan
    sentence: str
    limits: dict[str, int] = {}
    sources: dict[str, int] = {}
    unfinished: int = 0
    left_out: int = 0
    greedy_asked: int = -1
    tried_at: float = 0.0


class ExamplesRead(_Event, frozen=True, kw_only=True, tag="examples"):
    """The progress of the examples phase: its set-aside training rows, which are never examples, were answered.

    round: rounds done. step: rounds of examples among them. passes: over the examples, so far. right: of `items` rows, at
    temperature 0. logprob: mean log-probability per token of the right answers to the set-aside rows; None: not measured.
    tokens: trained on in the phase; seconds: worked in it, readings included. over: the phase ends here, and `sentence` says
    why.
    """

    round: int
    step: int
    passes: float
    right: int
    items: int
    logprob: float | None
    tokens: int
    seconds: float
    over: bool
    sentence: str


class SwarmUpdated(_Event, frozen=True, kw_only=True, tag="swarm"):
    """The coordinator's figures and our own count. Shares in [0, 1]; window: seconds. node: this one among the peers, ""
    unknown.

    share: my accepted groups / all accepted groups in the window. uptake: how often others sampled mine in the window.
    external_share: J_actual / (I + J) of the last batches. rejected: reason -> count, of groups received. refused: of those
    sent. held: the person's limit that holds the exchange, "" = none. unheard: peers whose groups are never taken.
    """

    coordinator: str
    connected: bool
    sentence: str
    window: float
    share: float
    uptake: int
    external_share: float
    nodes: int
    rounds_per_s: float
    made: int
    accepted: int
    rejected: dict[str, int]
    refused: dict[str, int]
    peers: tuple[Peer, ...] = ()
    node: str = ""
    held: str = ""
    unheard: tuple[str, ...] = ()


class ExternalSwitched(_Event, frozen=True, kw_only=True, tag="external"):
    """External groups are taken from now on, or not; or the held-out tripwire looked closer and found nothing.

    round: rounds done. by: who decided it. sentence: for people. restored: rounds of the checkpoint whose weights were
    restored (tripwire, not taking). best, now: pass@1 of the best checkpoint and of the current weights on this many fresh
    items.
    """

    round: int
    taking: bool
    by: Literal["tripwire", "person"]
    sentence: str
    restored: int = 0
    best: float = 0.0
    now: float = 0.0
    items: int = 0


class CheckpointSaved(_Event, frozen=True, kw_only=True, tag="checkpoint"):
    """The weights after `round` rounds are on disk: a link in the hash chain of a model's history.

    weights: SHA-256 of the trainable weights (of their file as it was written; if an engine writes several, of the sorted
    lines "digest  name"). parent: the `weights` of the checkpoint from which training led here, "" for the first. optimizer:
    the optimizer's state is saved with them (only the newest keeps it). bytes: size of all its files. reason: why it was
    saved (start, time, pause, stop, evaluation, rollback, redone). restored: a person went back to the weights of the
    checkpoint with this many rounds, and this step, which trains nothing, counts as a round; -1: training led here.
    """

    round: int
    weights: str
    parent: str
    optimizer: bool
    bytes: int
    reason: str
    restored: int = -1


class LogLine(_Event, frozen=True, kw_only=True, tag="log"):
    """A sentence for the log; text of peers in it has passed safe_text."""

    level: Literal["info", "warning", "error"]
    text: str


Event = (
    RunStarted
    | StateChanged
    | Phase
    | Vitals
    | RoundFinished
    | GroupRecorded
    | FirstSuccess
    | Evaluated
    | BaseAsked
    | TrialMeasured
    | ExamplesRead
    | SwarmUpdated
    | ExternalSwitched
    | CheckpointSaved
    | LogLine
)
EPHEMERAL: tuple[type, ...] = (Phase, Vitals)

_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def settled_evaluations(events: Iterable[object]) -> list[Evaluated]:
    """The evaluations among the events in order of what they measured: a belated one takes the place of the result that it
    repeats, and the base's own comes before those of trained weights."""
    settled: list[Evaluated] = []
    for event in events:
        if not isinstance(event, Evaluated):
            continue
        same = [place for place, earlier in enumerate(settled) if earlier.round == event.round]
        if event.belated and same:
            settled[same[-1]] = event
        elif event.belated:
            settled.insert(0, event)
        else:
            settled.append(event)
    return settled


def encode_event(event: Event) -> bytes:
    """The event as one JSON line, without the newline."""
    return msgspec.json.encode(event)


def decode_event(line: bytes) -> Event:
    """Inverse of encode_event. Raises msgspec.ValidationError."""
    return _decoder.decode(line)
