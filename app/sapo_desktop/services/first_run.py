"""What the first-run questions offer and how the answers change the settings. Inspects the machine, starts no node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sapo_backends.errors import size_text
from sapo_desktop import settings
from sapo_desktop.errors import USER_ERRORS
from sapo_desktop.paths import Home
from sapo_desktop.services.first_questions import LIST, OTHER, OWN, BaseGroup, BaseOffer, FirstRunAnswers, FirstRunInfo
from sapo_swarm.config import RunConfig
from sapo_swarm.node.governor.rules import PRESETS

if TYPE_CHECKING:
    from sapo_desktop.services.bases.local_models import LocalBase, LocalBaseListing
    from sapo_swarm.tasks.own.folder import OwnTask

_GLANCE_S = 0.7
"""Seconds of measuring while the person reads the questions."""
_CHOSEN = (
    (LIST, "yours, or one to download: Enter lists them"),
    (OTHER, "drop a GGUF file here, or type a file, a folder or a hub id"),
)
_TASKS = (
    ("starter", "nine reasoning tasks, easy settings"),
    ("paper", "the same nine, as hard as in SAPO's paper"),
    (OWN, "my own table (CSV, JSONL): Enter asks which"),
)
_NAMED = 3
"""Models on this computer that are answers themselves; the list has all of them."""


def initial_choices() -> FirstRunInfo:
    """What can be chosen on any machine, at once; its `whole` is detect_choices() in a thread."""
    import sapo_assets

    toys = sapo_assets.models() or ("starter",)
    return FirstRunInfo(
        hardware=(("auto", "looking at this machine …"),),
        models=(*((name, sapo_assets.describe_model(name)) for name in toys), *_CHOSEN),
        toys=tuple(toys),
        measure=measure_speed,
        check=wrong_with,
        offers=list_starting_models,
        let_in=invite_refusal,
        tasks=_TASKS,
        whole=lambda: asyncio.to_thread(detect_choices),
    )


def detect_choices() -> FirstRunInfo:
    """The choices, with what was detected on this machine; its `whole` also names the models on this computer. Imports no
    engine."""
    from sapo_backends import registry
    from sapo_backends.common.hardware import detect_hardware

    machine = detect_hardware()
    cores = f"{machine.cores} core{'' if machine.cores == 1 else 's'}"
    free = f"{cores}, {size_text(machine.available)} of {size_text(machine.memory)} free"
    engines = [n for n in registry.installed_backends() if n in {"torch", "mlx"}]
    best = f"{engines[0]} here: {free}" if engines else "no engine is installed yet: see sapo-desktop doctor"
    hardware = (("auto", best), *((name, f"always {name}") for name in engines))
    known_so_far = replace(initial_choices(), hardware=hardware)
    return replace(known_so_far, whole=lambda: asyncio.to_thread(_with_local, known_so_far))


def _with_local(info: FirstRunInfo) -> FirstRunInfo:
    """The choices with the models on this computer that a person's table can be tried on."""
    from sapo_desktop.services.bases import local_models

    try:
        bases = local_models.scan_local_bases(_config(Home.find(), info.toys[0])).recommended[:_NAMED]
    except USER_ERRORS:  # damaged settings: reported at the start
        bases = ()
    choices = tuple((base.base, base.short.removeprefix("fits, ")) for base in bases)
    own_base = choices[0][0] if choices else LIST
    toys = tuple(pair for pair in info.models if pair[0] in info.toys)
    return replace(info, models=(*toys, *choices, *_CHOSEN), own_base=own_base, whole=None)


async def list_starting_models(again: bool = False) -> tuple[BaseGroup, ...]:
    """What a person can start from: models on this computer, the recommended ones, the bundled toys. Whether the hub can be
    reached is tested now, in parallel with the disk scan; without it, models that are here can still be chosen."""
    from sapo_backends.checkpoints import hub_cache
    from sapo_desktop.services.bases import local_models

    home = Home.find()
    config = await asyncio.to_thread(_config, home, "starter")
    local, away = await asyncio.gather(
        asyncio.to_thread(local_models.scan_local_bases, config, fresh=again), asyncio.to_thread(hub_cache.why_away)
    )
    return await asyncio.to_thread(_groups, home, local, away)


def _groups(home: Home, local: LocalBaseListing, away: str) -> tuple[BaseGroup, ...]:
    import sapo_assets

    local_offers = tuple(BaseOffer(base.base, base.short, _more(base), base.reason) for base in local.bases)
    nothing = (
        "None in the folders of LM Studio, Ollama, llama.cpp, the hub, nor in Downloads. Drop a GGUF file here.",
    )
    notes = (*(() if local_offers or local.notes else nothing), *local.sentences)
    toys = tuple(BaseOffer(name, sapo_assets.describe_model(name)) for name in sapo_assets.models())
    return (
        BaseGroup("On this computer", local_offers, notes),
        BaseGroup(f"To download{f' (not now: {away})' if away else ''}", _recommended(home, away, local_offers)),
        BaseGroup("Bundled", toys),
    )


def _more(one: LocalBase) -> str:
    """What does not fit in the list."""
    size = f"{one.parameters / 1e6:,.0f}M parameters, {one.architecture}" if one.parameters else ""
    plan = one.plan.sentence if one.plan else ""
    also = f"also {', '.join(one.model.also[:3])}" if one.model.also else ""
    return "; ".join(filter(None, (size, plan, also, str(one.model.path))))


def _recommended(home: Home, away: str, here: tuple[BaseOffer, ...]) -> tuple[BaseOffer, ...]:
    """Size, whether it fits and how soon it improves, from the list that ships; the hub is not asked."""
    from sapo_desktop.services.bases import card, recommended

    offers = []
    for base in recommended.load_recommended_list().bases:
        if any(offer.value == base.id for offer in here):
            continue
        try:
            base_card = card.build_base_card(home, _config(home, base.id), ask=False, measure=False)
        except USER_ERRORS as error:  # the cache is damaged
            offers.append(BaseOffer(base.id, "cannot be used", str(error), str(error)))
            continue
        detail = ", ".join(
            filter(None, ("fits" if base_card.fits else "too large", size_text(base.bytes), base.brief_promise))
        )
        gated = "; its owner lets people in by name: sapo-desktop login" if base.gated else ""
        details = "; ".join(filter(None, (f"licence {base_card.license}{gated}", base.promise, base_card.sentence)))
        offers.append(BaseOffer(base.id, detail, details, away))
    return tuple(offers)


async def wrong_with(model: str) -> str:
    """Why a typed model cannot be used: asks the hub and checks the disk and the memory. "" = it can."""
    from sapo_desktop.services.bases import card, fetching

    home = Home.find()
    try:
        config = await asyncio.to_thread(_config, home, model, fetching.fetch_base_metadata)
        base_card = await asyncio.to_thread(card.build_base_card, home, config, measure=False)
    except USER_ERRORS as error:
        return str(error)
    if base_card.plan is not None and not base_card.plan.fits:
        return f"{model} does not fit: {base_card.plan.sentence}. {base_card.plan.suggestion}"
    return "" if base_card.fits else f"{model} does not fit on the disk: {base_card.sentence}."


async def invite_refusal(invite: str) -> str:
    """Why the coordinator admits no node with this invite; "" where it admits this one, or cannot be reached."""
    from sapo_desktop.services.swarms import membership

    home = Home.find()
    try:
        person = settings.load_settings(home.settings)
        await membership.request_admission(
            home, membership.parse_typed_invite(invite), person.person.name, person.run.model
        )
    except USER_ERRORS as error:
        return str(error)
    return ""


async def measure_speed(hardware: str, model: str, tasks: str = "", file: str = "") -> str:
    """How fast that engine runs that model here, and what a round needs; "" when unknown. Takes a few seconds, in a process
    that ends with the asyncio task; for any model that is not bundled its card, without asking the hub. tasks: the answer to
    that question; file: the table, where it is known already."""
    from sapo_backends.checkpoints import locate
    from sapo_backends.measure import probe
    from sapo_backends.measure.choice import EngineCandidate
    from sapo_desktop.services.bases import question_tokens
    from sapo_desktop.services.machine import engines, load_request, memory_plan

    home = Home.find()
    try:
        config = msgspec.structs.replace(_config(home, model), trainer=hardware)
        if model not in locate.BUNDLED:
            return await asyncio.to_thread(_card_sentence, home, config, tasks, file)
        candidate = EngineCandidate(engines.choose_trainer(config))
        prompt = await asyncio.to_thread(question_tokens.mean_prompt, home, config)
        plan = await asyncio.to_thread(memory_plan.plan_round_memory, config, prompt=prompt)
    except USER_ERRORS:
        return ""
    measurement = await probe.measure_async(candidate, load_request.build_load_request(config), _GLANCE_S)
    if measurement.failure or not measurement.generation:
        return ""
    rate = f"{max(measurement.generation.values()):,.0f} tok/s written, {measurement.update:,.0f} trained"
    return f"{rate}; a round needs {size_text(plan.needed)}" if plan else rate


def _card_sentence(home: Home, config: RunConfig, tasks: str, file: str) -> str:
    """What a run of that base needs on these tasks: of a table only if it is known, else from the shortest answers to the
    longest. Raises USER_ERRORS."""
    from sapo_desktop.services.bases import card

    table = _table(file, config.model) if tasks == OWN and file else None
    if table is not None:
        room = max(config.max_new_tokens, table.spec.max_new_tokens)
        config = msgspec.structs.replace(config, tasks=(table.spec.name,), preset="starter", max_new_tokens=room)
    elif tasks == OWN:
        config = msgspec.structs.replace(config, tasks=())
    elif tasks:
        config = msgspec.structs.replace(config, tasks=RunConfig().tasks, preset=tasks)
    return card.build_base_card(home, config, ask=False, table=table).sentence


def _table(file: str, model: str) -> OwnTask | None:
    """The task that the wizard would propose; None where it will say what is wrong with the file."""
    from sapo_desktop.paths import typed_path
    from sapo_desktop.services.tasks.looking import is_reasoning_model
    from sapo_desktop.services.tasks.proposal.draft import ImportOptions, draft_task

    with contextlib.suppress(*USER_ERRORS):
        return draft_task(typed_path(file), ImportOptions(base=model, reasons=is_reasoning_model(model))).task
    return None


def _config(home: Home, model: str, look: Callable[[RunConfig], None] = lambda _: None) -> RunConfig:
    """The settings of a run of that model so far. look: see flags.answer_facts. Raises AppError, BadTask."""
    from sapo_desktop.settings import flags

    return flags.propose_run(settings.load_settings(home.settings).run, look, model=model)


def save_answers(answers: FirstRunAnswers, path: Path, invite: Path) -> settings.Settings:
    """Write the answers to the settings file and keep the invite, if there is one. Raises UsageError, AppError."""
    from sapo_desktop.settings import flags

    if answers.mode == "swarm":
        from sapo_desktop.services.swarms import membership  # the network's libraries: not before the first frame

        membership.save_invite(answers.invite, invite, answers.listed)
    tables = settings.read_tables(path)
    run = tables.setdefault("run", {})
    run |= {"model": flags.as_kept(answers.model), "trainer": answers.hardware, "preset": answers.tasks}
    if answers.task:
        run |= {"preset": "starter", "tasks": [answers.task]}
    else:
        run.pop("tasks", None)  # a custom task from an earlier answer
    _answer(tables, "limits", PRESETS[answers.limits], PRESETS["balanced"])
    _answer(tables, "person", {"name": answers.name}, {"name": ""})
    _answer(tables, "swarm", {"join": answers.mode == "swarm"}, {"join": False})
    checked = settings.settings_from_tables(tables, "first-run answers")
    settings.write_tables(path, tables)
    return checked


def _answer(
    tables: dict[str, dict[str, object]], section: str, values: Mapping[str, object], defaults: Mapping[str, object]
) -> None:
    """Set the values in that section; what equals its default is not written, as nobody chose a number of it."""
    table = {**tables.pop(section, {}), **values}
    table = {key: value for key, value in table.items() if key not in defaults or value != defaults[key]}
    if table:
        tables[section] = table


def first_model(answers: FirstRunAnswers, home: Home) -> list[str]:
    """Keep the answers and create the model that they describe; returns its name, in a list.

    Raises UsageError, AppError, BackendError.
    """
    from sapo_desktop.services.bases import fetching
    from sapo_desktop.services.models.shelf import keeping, store
    from sapo_desktop.settings import flags

    saved = save_answers(answers, home.settings, home.invite)
    chosen = {"tasks": saved.run.tasks} if answers.task else {}
    run = flags.propose_run(saved.run, fetching.fetch_base_metadata, **chosen)
    return [
        keeping.create_model(
            home, store.unused_name(store.suggest_model_name(answers.task), store.taken_model_names(home)), run
        ).name
    ]
