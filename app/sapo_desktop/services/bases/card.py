"""One card before anything starts: what a base needs of this machine, in figures and in a few lines.

Only the hub's listing and a config.json of a kilobyte are downloaded for it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

from sapo_backends.checkpoints import hub_cache, locate
from sapo_backends.checkpoints.gguf_header import read_header
from sapo_backends.checkpoints.gguf_view import gguf_of
from sapo_backends.checkpoints.spec import why_not
from sapo_backends.checkpoints.tokenizer import read_json
from sapo_backends.common import hardware
from sapo_backends.common.round_memory import FULL_BELOW, ModelSize
from sapo_backends.errors import BackendError, DownloadFailed, ModelNotFound, size_text
from sapo_backends.measure import machine_limits
from sapo_backends.measure.choice import MeasuredRates
from sapo_backends.measure.precision import model_size
from sapo_desktop.paths import Home
from sapo_desktop.services.bases import fetching, forecast, question_tokens
from sapo_desktop.services.bases.forecast import ROUNDS, TrainingForecast
from sapo_desktop.services.bases.recommended import RecommendedBase, find_recommended_base
from sapo_desktop.services.machine import engines, load_request, memory_plan, speed
from sapo_desktop.services.machine.memory_plan import MemoryPlan
from sapo_swarm.algorithms import local_groups
from sapo_swarm.config import RunConfig
from sapo_swarm.node.checkpoints import BYTES_A_PARAMETER, free_bytes, over_budget
from sapo_swarm.node.clock import format_duration
from sapo_swarm.node.training_count import count_of
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.tasks.own.folder import OwnTask

UNTIMED = 3
"""Lines of a card above those about memory and time, which wait for the questions to be counted."""
_BYTES = {"float32": 4, "float": 4}
Source = Literal["bundled", "folder", "file", "downloaded", "hub", "list"]


@dataclass(frozen=True, slots=True)
class BaseCard:
    """source: where the figures come from; "list": the hub was not asked or cannot be reached. download: bytes still to
    fetch; disk: free bytes.

    plan: None where the memory is not known (a GPU's own, another engine). budget: bytes that the model may take on the disk,
    0: no limit. time: None where unknown; measured: by bench or by earlier rounds here, else estimated. slow: why the
    engine's own decoder cannot compute it, "" when it can. new_tokens: the length at which answers are cut. planned: rounds of
    practice that the run asks for, 0: until it is stopped.
    """

    model: str
    source: Source
    license: str
    gated: bool
    parameters: int
    bytes: int
    download: int
    disk: int
    plan: MemoryPlan | None
    time: TrainingForecast | None
    measured: bool
    slow: str = ""
    rounds: int = 0
    size: ModelSize | None = None
    budget: int = 0
    new_tokens: int = 0
    planned: int = 0

    @property
    def fits(self) -> bool:
        """Whether the download fits on the disk, a round in memory and two checkpoints in the disk budget, as far as that is
        known."""
        return self.download <= self.disk and (self.plan is None or self.plan.fits) and not self.over_budget

    @property
    def over_budget(self) -> str:
        """Why the model's checkpoints can never fit its disk budget, and what to do; "" where they can."""
        return over_budget(BYTES_A_PARAMETER * self.size.trainable if self.size else 0, self.budget)

    @property
    def brief(self) -> bool:
        """Its answers are cut at the default length, which suits the bundled models, though this one is far larger."""
        return self.parameters > FULL_BELOW and self.new_tokens <= RunConfig().max_new_tokens

    @property
    def hours(self) -> float | None:
        """Hours until the planned rounds of practice are done (200 where none are), the examples and evaluations included."""
        return None if self.time is None else self.time.whole(self.planned or ROUNDS) / 3600

    @property
    def sentence(self) -> str:
        """Download, memory and time on one line of a screen."""
        parts = [f"{size_text(self.download)} to download"] if self.download else []
        if self.plan is not None:
            parts.append(f"a round needs {size_text(self.plan.needed)}" + ("" if self.plan.fits else ", too much here"))
        if self.over_budget:
            parts.append("its checkpoints exceed the disk budget")
        if self.time is not None:
            parts.append(self.time.parts)
        return "; ".join(parts)

    @property
    def short(self) -> str:
        """One line for a list: licence, size, whether access must be granted by its owner, and whether it fits."""
        where = "here" if not self.download else f"{size_text(self.download)}{', gated' if self.gated else ''}"
        return f"{fetching.licence_in_words(self.license)}, {where}, {'fits' if self.fits else 'does not fit'}"


def build_base_card(
    home: Home, config: RunConfig, *, ask: bool = True, measure: bool = True, table: OwnTask | None = None
) -> BaseCard:
    """The card of config.model. ask: the hub may be asked; otherwise only this disk and the list count. measure: the
    machine's limits may be measured now (takes seconds). table: the run's one task, where it is not stored yet. Blocks.
    Raises ModelNotFound, DownloadFailed."""
    facts = _facts(config, ask)
    plan = None
    if facts.size is not None:
        prompt = 0.0 if table is not None else question_tokens.mean_prompt(home, config)
        plan = memory_plan.plan_round_memory(config, None, facts.size, bool(facts.slow), prompt)
    return add_time_forecast(home, config, replace(facts, plan=plan), measure=measure, table=table)


def add_time_forecast(
    home: Home, config: RunConfig, found: BaseCard, *, measure: bool = True, table: OwnTask | None = None
) -> BaseCard:
    """The card with the training time and the memory, forecast from its tasks' questions. measure, table: see build_base_card.
    Blocks."""
    if config.method == "none":
        return found
    round_seconds = speed.recent_round_seconds(home, config) if table is None else []
    speeds, measured = find_engine_rates(home, config, found, measure)
    if speeds is None or found.size is None:
        return found
    counts = question_tokens.count_question_tokens(home, config, make=measure, table=table)
    groups = local_groups(config, found.size.parameters) + config.external_groups
    seconds = median(round_seconds) if round_seconds else 0.0
    time = forecast.forecast_training(config, speeds, groups * config.group_size, counts, seconds)
    plan = found.plan
    if counts is not None:
        plan = memory_plan.plan_round_memory(config, None, found.size, bool(found.slow), counts.prompt)
    return replace(
        found,
        plan=plan,
        time=time,
        measured=measured or bool(round_seconds),
        rounds=len(round_seconds),
        planned=config.rounds,
    )


def _facts(config: RunConfig, ask: bool) -> BaseCard:
    """What is known about the model itself. Raises ModelNotFound."""
    model = config.model
    request, base = load_request.build_load_request(config), find_recommended_base(model)
    empty = BaseCard(
        model,
        "hub",
        base.license if base else "",
        base.gated if base else False,
        0,
        0,
        0,
        free_bytes(hub_cache.hub_cache_folder()),
        None,
        None,
        False,
        budget=int(config.disk_budget_gb * 1e9),
        new_tokens=config.max_new_tokens,
    )
    try:
        folder = locate.resolve_local_model(model)
    except ModelNotFound:
        if not locate.is_hub_id(model):
            raise
        if not ask:
            if base is None:
                raise
            return _of_list(config, base, empty)
        try:
            return _of_hub(config, empty)
        except DownloadFailed:
            if base is None:
                raise
            return _of_list(config, base, empty)
    locate.require_tokenizer(folder)
    size, _ = model_size(folder, request)
    source: Source = (
        "bundled"
        if model in locate.BUNDLED
        else "file"
        if locate.gguf_file(model)
        else "downloaded"
        if hub_cache.hub_cache_folder() in folder.parents
        else "folder"
    )
    files = locate.weight_files(folder) if source == "file" else [file for file in folder.iterdir() if file.is_file()]
    weight = sum(file.stat().st_size for file in files)
    stated = fetching.licence_name(model, folder)
    return replace(
        empty,
        source=source,
        license=empty.license if stated == fetching.UNKNOWN else stated,
        parameters=size.parameters,
        bytes=weight,
        slow=_slow(folder),
        size=size,
    )


def _of_list(config: RunConfig, base: RecommendedBase, empty: BaseCard) -> BaseCard:
    size = base.size(config)
    return replace(empty, source="list", parameters=base.parameters, bytes=base.bytes, download=base.bytes, size=size)


def _of_hub(config: RunConfig, empty: BaseCard) -> BaseCard:
    from sapo_backends.checkpoints import hub_download

    repository = hub_download.inspect_repository(config.model)
    folder = hub_download.config_of(repository)
    weights = sum(file.size for file in repository.files if file.name.endswith(".safetensors"))
    settings = read_json(folder / "config.json")
    stored = _BYTES.get(str(settings.get("dtype") or settings.get("torch_dtype")), 2)
    parameters = repository.parameters or weights // stored
    size, _ = model_size(folder, load_request.build_load_request(config), parameters)
    return replace(
        empty,
        license=repository.license or empty.license,
        gated=repository.gated,
        parameters=parameters,
        bytes=repository.size,
        download=hub_download.remaining_bytes(repository),
        slow=_slow(folder),
        size=size,
    )


def _slow(folder: Path) -> str:
    return why_not(read_json(folder / "config.json"))


def expected_training_time(home: Home, config: RunConfig, *, measure: bool) -> TrainingForecast | None:
    """How long training with these settings takes for a base on this disk; None where unknown. measure: see build_base_card.
    Blocks."""
    try:
        facts = _facts(config, ask=False)
    except (BackendError, OSError):
        return None
    return add_time_forecast(home, config, facts, measure=measure).time


def find_engine_rates(
    home: Home, config: RunConfig, found: BaseCard, measure: bool
) -> tuple[forecast.EngineRates | None, bool]:
    """How fast the base runs here, and whether that was measured with this base."""
    try:
        if (best := speed.choose_fastest(home, config)) is not None:
            measurement = next(
                entry for entry in speed.load_measurements(home, config) if entry.candidate == best.candidate
            )
            return MeasuredRates(measurement), True
        trainer = engines.choose_trainer(config)
    except BackendError:
        return None, False
    generator, _, trainer = trainer.rpartition("+")
    if (size := found.size) is None or trainer not in ("torch", "mlx"):
        return None, False
    library = () if trainer == "torch" else (trainer,)
    limits = speed.machine_limits(home, config, *library) if measure else speed.known_limits(home, config, *library)
    kind = memory_plan.computes_in(config, trainer)
    if hardware.is_four_bit(config.precision):
        kind = f"{hardware.FOUR_BIT}-{kind}"
    few_bits = quantisation_of(config.model) if generator == "llamacpp" else ""
    by_limits = machine_limits.RateEstimator(
        size, limits, kind, bool(found.slow), generator, few_bits, trainer == "mlx"
    )
    return (by_limits, False) if by_limits.known else (None, False)


def quantisation_of(model: str) -> str:
    """The quantisation of a GGUF file's weights, such as "Q4_K_M"; "" for anything else, and where it cannot be read."""
    with contextlib.suppress(BackendError, OSError):
        if (path := gguf_of(locate.resolve_local_model(model))) is not None:
            return read_header(path).quantisation
    return ""


def base_card_lines(card: BaseCard) -> list[str]:
    """The card for a terminal."""
    title = f"{card.model}: {card.parameters / 1e6:,.0f}M parameters, {fetching.licence_in_words(card.license)}"
    here = (
        "nothing, it is on this disk" if not card.download else f"{size_text(card.download)} of {size_text(card.bytes)}"
    )
    if card.source == "list":
        here += " (by the list that ships; the hub was not asked or is away)"
    rows = [
        title
        + (", gated: accept its terms on its page, then sapo-desktop login" if card.gated and card.download else ""),
        f"download    {here}",
        f"disk        {size_text(card.disk)} free" + ("" if card.download <= card.disk else ": too little"),
        f"memory      {card.plan.sentence if card.plan else 'not known here: the engine decides when it loads'}",
        *_time(card),
    ]
    if card.brief:
        rows.append(f"answers     cut at {card.new_tokens} tokens, else as the examples need: --max-new-tokens")
    if card.slow:
        rows.append(f"slower      transformers computes it, not the app's own decoder ({card.slow})")
    if card.plan is not None and not card.plan.fits:
        rows.append(f"too large   {card.plan.suggestion}")
    if card.over_budget:
        rows.append(f"too large   {card.over_budget}")
    return [safe_text(row, 400, lines=False) for row in rows]  # names of licence and architecture come from the hub


def _time(card: BaseCard) -> list[str]:
    if card.time is None or card.hours is None:
        return ["time        not known; measure it: sapo-desktop bench"]
    over = f"over {card.rounds} round{'' if card.rounds == 1 else 's'} " if card.rounds else ""
    how = (
        f"measured {over}here"
        if card.measured
        else "a rough estimate from this machine's limits; sapo-desktop bench measures it"
    )
    return [
        f"time        {card.time.parts}",
        f"in all      {format_duration(3600 * card.hours)} for {count_of(card.planned or ROUNDS, 'round')} of practice ({how})",
        f"counted     {card.time.basis}",
    ]


def as_json(card: BaseCard) -> dict[str, object]:
    """For programs."""
    plain = {name: getattr(card, name) for name in card.__slots__ if name not in ("plan", "size", "time")}
    time = (
        {name: getattr(card.time, name) for name in ("trial", "examples", "round", "evaluation")} if card.time else {}
    )
    memory = {"needed": card.plan.needed, "available": card.plan.available} if card.plan else None
    plain |= {"seconds": card.time.round if card.time else None, "parts_s": time}
    return {**plain, "memory": msgspec.to_builtins(memory), "hours": card.hours, "fits": card.fits}
