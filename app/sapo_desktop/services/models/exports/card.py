"""The model card: what a model's record says to later readers, and the journal behind it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sapo_backends.errors import ModelNotFound
from sapo_desktop.services.against_base import base_scores, describe_difference, format_rate
from sapo_desktop.services.bases.fetching import OTHER, UNKNOWN, licence_of
from sapo_desktop.services.machine.load_request import local_folder
from sapo_desktop.services.models.exports.job import AskedQuestion
from sapo_desktop.services.models.shelf.history import STORY, undone_evaluations
from sapo_desktop.services.models.shelf.overview import shown_preset
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import wilson_interval
from sapo_swarm.events import (
    CheckpointSaved,
    Evaluated,
    ExternalSwitched,
    RoundFinished,
    RunStarted,
    TaskScore,
    settled_evaluations,
)
from sapo_swarm.node.journal import read_only
from sapo_swarm.node.training_count import TrainingCount, TrainingCounts, count_of
from sapo_swarm.protocol.safe_text import safe_text

# The model card: what a model's record says to later readers.

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_VERIFIED = (
    "It was rewarded for right final answers to the tasks above and for nothing else: not for being helpful, harmless or "
    "truthful, and not for right reasoning on the way."
)
_JUDGED = (
    "It was rewarded for what a judge model called good on the tasks above and for nothing else: not for being right, "
    "harmless or truthful. A judge can be fooled, and nothing was verified."
)


@dataclass(frozen=True)
class ModelCardRecord:
    """What is known about a model; every field but the first two may be left out.

    base: starter, a folder, or a hub id. licence: of the base, as an SPDX identifier in lower case, or "unknown". tokens:
    generated for training. swarm: external groups were trained on. held_out: the newest evaluation at or before the exported
    state, measured: when it was made; system: the system prompt used in training. asked: how the tasks ask.
    judged: its rewards were verdicts of a judge; else they were verified. thinking: whether it reasoned, where its chat
    template has a switch for that. four_bit: its base was in 4 bits.
    """

    name: str
    base: str
    licence: str = UNKNOWN
    tasks: tuple[str, ...] = ()
    preset: str = ""
    algorithm: str = ""
    method: str = ""
    system: str = ""
    trained: TrainingCount = TrainingCount()  # noqa: RUF009 - frozen
    measured: str = ""
    asked: tuple[AskedQuestion, ...] = ()
    tokens: int = 0
    swarm: bool = False
    held_out: Evaluated | None = None
    settings: dict[str, str] = field(default_factory=dict)
    judged: bool = False
    thinking: bool | None = None
    four_bit: bool = False

    @property
    def slug(self) -> str:
        """The name, usable in a file name on every system."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.name).strip("-.")[:60] or "model"

    @property
    def base_name(self) -> str:
        """The base without anybody's folders in it."""
        return self.base if _HUB_ID.fullmatch(self.base) and not Path(self.base).is_dir() else Path(self.base).name


def render_model_card(record: ModelCardRecord, format_name: str, use: str, checked: str) -> str:
    """README.md of an export. use: how it is loaded, as markdown. checked: the sentence about the agreement check."""
    parts = [
        _front(record, format_name),
        f"# {_plain(record.name)}\n",
        f"{_plain(record.base_name)}, {_method(record)} on {_count(record.tasks)} with sapo-desktop.\n",
        "## Use\n",
        use,
        _reasoning(record),
        _system(record),
        _asked(record),
        f"{checked}\n" if checked else "",
        "## Training\n",
        *(f"- {line}" for line in _training(record)),
        "\n## Held-out results\n",
        *_held_out(record),
        "\n## What it is not\n",
        f"{_JUDGED if record.judged else _VERIFIED} Other abilities of the base model may have suffered and were not "
        "measured. The base model's licence and limits hold for this model too.\n",
        f"Licence of the base: {_licence_line(record)}",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _practised(record: ModelCardRecord) -> bool:
    """Whether it has learned from its own attempts, not from examples alone."""
    return bool(record.trained.rounds) or not record.trained.steps


def _method(record: ModelCardRecord) -> str:
    rewards = "the verdicts of a judge model" if record.judged else "verifiable rewards"
    examples = "fine-tuned on verified right answers" if record.trained.steps else ""
    practice = f"post-trained by reinforcement learning with {rewards}" if _practised(record) else ""
    return " and ".join(part for part in (examples, practice) if part)


def _reasoning(record: ModelCardRecord) -> str:
    if record.thinking is None:
        return ""
    return (
        f"Its chat template has a switch for reasoning, which was {'on' if record.thinking else 'off'} in training: "
        f"`apply_chat_template(…, enable_thinking={record.thinking})`; of a server "
        f'`"chat_template_kwargs": {{"enable_thinking": {str(record.thinking).lower()}}}`.\n'
    )


def _system(record: ModelCardRecord) -> str:
    if not record.system:
        return ""
    return f"It was trained under this system prompt; begin every conversation with it:\n\n{_quoted(record.system)}\n"


def _asked(record: ModelCardRecord) -> str:
    """How the tasks ask: a question in other words is none that it was trained on."""
    parts = []
    for asked in record.asked:
        about = f" of {_plain(asked.task)}" if len(record.asked) > 1 else ""
        if asked.wording:
            parts.append(
                f"Every question{about} was worded like this, the names in braces being columns of its table; ask yours in the "
                f"same words:\n\n{_quoted(asked.wording)}\n"
            )
            rows = "It shows a row of the table: take it out before you publish this card if that is private."
            parts.append(f"A whole message, to try it with. {rows}\n\n{_quoted(asked.example)}\n")
        else:
            parts.append(f"A question{about} as it was asked in training:\n\n{_quoted(asked.example)}\n")
    return "\n".join(parts)


def _quoted(text: str) -> str:
    """A text of others as an indented block, in which nothing is markup."""
    return textwrap.indent(safe_text(text), "    ")


def _count(tasks: tuple[str, ...]) -> str:
    return f"{len(tasks)} reasoning tasks" if len(tasks) != 1 else f"the task {_plain(tasks[0])}"


def _plain(text: str) -> str:
    """Text from a person or a folder as plain markdown on one line."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(safe_text(text).split()))


def _front(record: ModelCardRecord, format_name: str) -> str:
    practice = ["reinforcement-learning", *([] if record.judged else ["rlvr"])] if _practised(record) else []
    lines = ["---", f"tags: [{', '.join([*practice, 'sapo-desktop'])}]"]
    if record.licence != UNKNOWN:
        lines.append(f"license: {record.licence}")
    if _HUB_ID.fullmatch(record.base_name):
        kind = {"adapter": "adapter", "gguf": "quantized"}.get(format_name, "finetune")
        lines += [f"base_model: {record.base_name}", f"base_model_relation: {kind}"]
    on_gguf = record.base_name.casefold().endswith(".gguf")  # its adapter is a GGUF file too
    library = {"hf": "transformers", "adapter": "gguf" if on_gguf else "peft", "mlx": "mlx", "gguf": "gguf"}[
        format_name
    ]
    return "\n".join([*lines, f"library_name: {library}", "pipeline_tag: text-generation", "---", ""])


def _training(record: ModelCardRecord) -> Iterator[str]:
    yield f"base: {_plain(record.base_name)}{', in 4 bits (NF4) while it was trained' if record.four_bit else ''}"
    how = {"lora": "a LoRA adapter", "full": "all weights"}.get(record.method, "the weights")
    together = "its own rollouts and those of others in a swarm (SAPO, arXiv 2509.08721)"
    done = record.trained
    parts = [f"{count_of(done.steps, 'step')} of imitating right answers"] if done.steps else []
    if _practised(record):
        practice = " of practice" if done.steps else ""
        by = f"by {record.algorithm or 'policy gradient'} on {together if record.swarm else 'its own rollouts'}"
        parts.append(f"{count_of(done.rounds, 'round')}{practice} {by}")
    yield f"trained: {how}, in {', then '.join(parts)}"
    yield f"tokens generated for training: {record.tokens:,}"
    if record.tasks:
        preset = f" (preset {record.preset})" if record.preset else ""
        yield f"tasks{preset}: {', '.join(map(_plain, record.tasks))}"
    yield from (f"{key}: {_plain(value)}" for key, value in record.settings.items())


def _held_out(record: ModelCardRecord) -> Iterator[str]:
    """pass@1 by task with intervals, beside the base where it was measured."""
    now = record.held_out
    if now is None:
        yield "It has not been measured on held-out questions since it was trained.\n"
        return
    yield (
        f"{'Judged good' if record.judged else 'Strict pass@1'} at temperature {now.temperature:g} on held-out questions that "
        f"no training seed can reach, measured {record.measured or 'after training'}, with 95 % intervals.\n"
    )
    olds = base_scores(now)
    yield "| task | questions | base | this model |\n|---|---|---|---|"
    for score in now.tasks:
        yield f"| {_plain(score.task)} | {score.items} | {_rate(olds.get(score.task), score.items)} | {_score(score)} |"
    total = f"{100 * now.pass_at_1:.1f} % ({100 * now.low:.1f} to {100 * now.high:.1f})"
    base_rate = None if now.delta is None else now.pass_at_1 - now.delta
    yield f"| all | {now.items} | {_rate(base_rate, now.items)} | {total} |\n"
    if now.delta is not None or now.so_far is not None:
        yield f"Paired on the same questions: {describe_difference(now)}.\n"
    if (greedy := now.greedy) is not None:
        base = "" if greedy.delta is None else f", the base {100 * (greedy.pass_at_1 - greedy.delta):.1f} %"
        yield f"At temperature 0, as most chats answer: {format_rate(greedy.pass_at_1, greedy.low, greedy.high)}{base}.\n"
    shortcuts = [_plain(score.task) for score in now.tasks if score.shortcut]
    if shortcuts:
        yield (
            f"At least half of the score on {', '.join(shortcuts)} would be had with the answers to other questions: an "
            "answer-only shortcut.\n"
        )


def _rate(rate: float | None, items: int) -> str:
    """The base's rate with its interval, over the same number of items."""
    if rate is None:
        return "not measured"
    low, high = wilson_interval(rate * items, items)
    return f"{100 * rate:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def _score(score: TaskScore) -> str:
    return f"{100 * score.pass_at_1:.1f} % ({100 * score.low:.1f} to {100 * score.high:.1f})"


def _licence_line(record: ModelCardRecord) -> str:
    if record.licence == UNKNOWN:
        where = (
            f"https://huggingface.co/{record.base_name}" if _HUB_ID.fullmatch(record.base_name) else "where you got it"
        )
        return f"not stated in its files; look it up ({where}) before you pass this model on.\n"
    return f"{record.licence}.\n" if record.licence != OTHER else "see the licence file beside this card.\n"


# A model's record from the journal of its run.


def record_of(name: str, config: RunConfig, journal: Path, rounds: int) -> ModelCardRecord:
    """What the journal says about the model at that running number; without a journal, what the config says.

    Raises JournalError when it is damaged.
    """
    events = read_only(journal, kinds=STORY) if journal.exists() else []
    counts = TrainingCounts.of(events)
    rounds_done = [event for event in events if isinstance(event, RoundFinished) and event.round < rounds]
    bounded = Evaluated | ExternalSwitched | CheckpointSaved
    events = [event for event in events if not isinstance(event, bounded) or event.round <= rounds]
    undone = undone_evaluations(events)
    evaluations = [event for event in settled_evaluations(events) if event not in undone]
    trained = [event for event in evaluations if event.round > 0]
    newest = {event.round: event for event in rounds_done}.values()  # a round redone after a kill counts once
    judged = next((event.judged for event in reversed(events) if isinstance(event, RunStarted)), False)
    judge = {"judge": config.judge_model} if judged else {}
    return ModelCardRecord(
        name=name,
        base=config.model,
        licence=_licence(config),
        tasks=config.tasks,
        preset=shown_preset(config),
        algorithm=config.algorithm,
        trained=counts.at(rounds),
        tokens=sum(event.tokens_generated for event in newest),
        swarm=any(event.external_groups for event in newest),
        held_out=trained[-1] if trained else None,
        measured=counts.at(trained[-1].round).when if trained else "",
        settings={"seed": str(config.seed), "group size": str(config.group_size), **judge},
        judged=judged,
    )


def _licence(config: RunConfig) -> str:
    try:
        return licence_of(config.model, local_folder(config))
    except ModelNotFound:
        return UNKNOWN
