"""What the first-run questions offer and what the answers change in the settings. Looks at the machine, starts no node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sapo_desktop import settings
from sapo_desktop.paths import Home
from sapo_desktop.services.first_questions import FirstRunAnswers, FirstRunInfo

LIMITS: dict[str, dict[str, Any]] = {
    "gentle": {"pause_on_battery": True, "max_celsius": 85.0, "nice": 10},
    "full": {"pause_on_battery": True, "max_celsius": 95.0, "nice": 0},
    "none": {"pause_on_battery": False, "max_celsius": 0.0, "nice": 0},
}
"""Answer -> the [limits] section."""
_GLANCE_S = 0.7
"""Seconds of measuring while the questions are read."""


def info() -> FirstRunInfo:
    """The choices, with what was detected on this machine. Imports no engine."""
    import sapo_assets
    from sapo_backends import registry
    from sapo_backends.common.hardware import detect

    found = detect()
    machine = f"{found.cores} cores, {found.available / 2**30:.0f} of {found.memory / 2**30:.0f} GiB free"
    engines = [n for n in registry.installed() if n in {"torch", "mlx"}]
    best = f"{engines[0]} here: {machine}" if engines else "no engine is installed yet: see sapo-desktop doctor"
    models = tuple((name, "bundled, nothing to download") for name in sapo_assets.models())
    return FirstRunInfo(
        hardware=(("auto", best), *((name, f"always {name}") for name in engines)),
        models=models or (("starter", "bundled"),),
        measure=measured,
        tasks=(
            ("starter", "nine reasoning tasks, easy settings"),
            ("paper", "the same nine, as hard as in the paper"),
        ),
    )


async def measured(hardware: str, model: str) -> str:
    """How fast that engine is here with that model, and what a round needs; "" when it cannot be told. A few seconds, in a
    process that ends with the task."""
    from sapo_backends.base import BackendError
    from sapo_backends.measure import probe
    from sapo_backends.measure.choice import Candidate
    from sapo_desktop.services.machine import engines, load_request, memory_plan
    from sapo_swarm.config import RunConfig

    config = RunConfig(model=model, trainer=hardware)
    try:
        candidate = Candidate(engines.choose_trainer(config))
        plan = memory_plan.plan(config)
    except BackendError:
        return ""
    found = await probe.glance(candidate, load_request.request(config), _GLANCE_S)
    if found.failure or not found.generation:
        return ""
    rate = f"{max(found.generation.values()):,.0f} tok/s written, {found.update:,.0f} trained"
    return f"{rate}; a round needs {plan.needed / 2**30:.1f} GiB" if plan else rate


def persist(answers: FirstRunAnswers, path: Path, invite: Path) -> settings.Settings:
    """Write the answers into the settings file and keep the invite, if there is one. Raises UsageError, AppError."""
    if answers.mode == "swarm":
        from sapo_desktop.services.swarms import membership  # the network's libraries: not before the first frame

        membership.save(answers.invite, invite)
    tables = settings.read(path)
    run = tables.setdefault("run", {})
    run |= {"model": answers.model, "trainer": answers.hardware, "preset": answers.tasks}
    tables.setdefault("limits", {}).update(LIMITS[answers.limits])
    tables.setdefault("person", {})["name"] = answers.name
    tables.setdefault("swarm", {})["join"] = answers.mode == "swarm"
    checked = settings.convert(tables, "first-run answers")
    settings.write(path, tables)
    return checked


def first_model(answers: FirstRunAnswers, home: Home) -> list[str]:
    """Keep the answers, and make the model that they describe; its name, or nothing where Esc was pressed: then the node
    goes on with the model used last, or makes one.

    Raises UsageError, AppError, BackendError.
    """
    from sapo_desktop.services.models.shelf import creating, names, store

    kept = persist(answers, home.settings, home.invite)
    if answers.skipped:
        return []
    taken = [model.name for model in store.all_models(home)]
    return [creating.new(home, names.free(names.FIRST, taken), kept.run).name]
