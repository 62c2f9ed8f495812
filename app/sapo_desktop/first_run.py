"""What the first-run questions offer and what the answers change in the settings. Pure but for looking at the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sapo_desktop import settings
from sapo_desktop.dashboard.messages import FirstRunAnswers, FirstRunInfo

LIMITS: dict[str, dict[str, Any]] = {
    "gentle": {"pause_on_battery": True, "max_celsius": 85.0, "nice": 10},
    "full": {"pause_on_battery": True, "max_celsius": 95.0, "nice": 0},
    "none": {"pause_on_battery": False, "max_celsius": 0.0, "nice": 0},
}
"""Answer -> the [limits] section."""


def info() -> FirstRunInfo:
    """The choices, with what was detected on this machine. Imports no engine."""
    import sapo_assets
    from sapo_backends import registry
    from sapo_backends.hardware import detect

    found = detect()
    machine = f"{found.cores} cores, {found.available / 2**30:.0f} of {found.memory / 2**30:.0f} GiB free"
    engines = [n for n in registry.installed() if n in {"torch", "mlx"}]
    best = f"{engines[0]} here: {machine}" if engines else "no engine is installed yet: see sapo-desktop doctor"
    models = tuple((name, "bundled, nothing to download") for name in sapo_assets.models())
    return FirstRunInfo(
        hardware=(("auto", best), *((name, f"always {name}") for name in engines)),
        models=models or (("starter", "bundled"),),
        tasks=(
            ("starter", "nine reasoning tasks, easy settings"),
            ("paper", "the same nine, as hard as in the paper"),
        ),
    )


def persist(answers: FirstRunAnswers, path: Path, invite: Path) -> settings.Settings:
    """Write the answers into the settings file and keep the invite, if there is one. Raises UsageError, AppError."""
    if answers.mode == "swarm":
        from sapo_desktop import membership  # the network's libraries: not before the first frame

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
