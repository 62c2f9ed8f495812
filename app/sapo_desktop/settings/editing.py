"""The settings as display rows, and validated changes: shared by `config` and the dashboard's F2 screen."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sapo_desktop import settings
from sapo_desktop.errors import UsageError
from sapo_desktop.settings import Settings, flags
from sapo_swarm.errors import suggest_names
from sapo_swarm.node.governor.rules import PRESETS

# Display rows of the settings.

SIMPLE = frozenset(
    {
        *(
            "run.model",
            "run.tasks",
            "run.preset",
            "run.rounds",
            "run.external_groups",
            "run.trainer",
            "run.disk_budget_gb",
        ),
        *("limits.pause_on_battery", "limits.pause_when_active", "limits.max_celsius", "limits.min_free_memory"),
        *("limits.min_free_disk", "limits.schedule"),
        *("ui.theme", "ui.glyphs", "person.name", "swarm.join", "swarm.directories"),
    }
)
"""Settings that a person may want to change without knowing how training works."""

NEVER = "it is part of what this model is. For a model with another: screen 4, then n"


@dataclass(frozen=True)
class SettingRow:
    """One setting, every value as text.

    kind: the allowed values; choices: all of them, if they are a fixed set. saved: the key is in the file (otherwise the
    default applies). running: the running node's value, if it differs. counts: when a change takes effect.
    owner: the model that the setting belongs to, "" for the settings file.
    """

    key: str
    help: str
    kind: str
    choices: tuple[str, ...]
    value: str
    default: str
    saved: bool
    counts: str
    running: str = ""
    owner: str = ""

    @property
    def fixed(self) -> bool:
        """Whether the setting cannot be changed."""
        return self.counts == NEVER


def readable_value(row: SettingRow, value: str) -> str:
    """The value for display: lists can wrap, and an empty value is put in words."""
    return (value.replace(",", ", ") if row.kind == "list" else value) or "(empty)"


_RESTART = "when the node starts again"
_COUNTS = {
    "limits.nice": _RESTART,
    "limits": "within a second",
    "swarm.directories": "at once",
    "ui.theme": "at once, in this dashboard",
    "ui.glyphs": "when the dashboard opens again",
}
"""Key or section -> when a change takes effect."""


def setting_rows(path: Path) -> tuple[SettingRow, ...]:
    """Every setting of the schema; unknown keys in the file are left out. Raises UsageError, AppError."""
    tables = settings.read_tables(path)
    known = settings.known_part(tables)
    current, names = settings.settings_from_tables(known, str(path)), _names()
    return tuple(
        _row(field, current, known.get(field.key.partition(".")[0], {}), names) for field in settings.setting_fields()
    )


def strange_keys(path: Path) -> list[str]:
    """The unknown keys in the file. Raises UsageError, AppError."""
    return settings.unknown_keys(settings.read_tables(path))


def describe_unknown_keys(path: Path) -> tuple[str, ...]:
    """A sentence about each unknown key: the nearest setting, and how to remove the key. Raises UsageError, AppError."""
    return tuple(
        f"{path}: {settings.unknown_sentence(key)} Take it out: sapo-desktop config reset {key}"
        for key in strange_keys(path)
    )


def _names() -> dict[str, tuple[str, ...]]:
    """Key -> allowed names, for settings whose names come from a registry and not from the schema."""
    from sapo_swarm.algorithms import ALGORITHMS
    from sapo_swarm.sapo.training_batch import STRATEGIES

    return {
        "run.algorithm": tuple(ALGORITHMS),
        "run.preset": ("starter", "paper", "hard", "library"),
        "run.sampling": tuple(STRATEGIES),
    }


def _row(
    field: settings.SettingField, current: Settings, table: dict[str, object], names: dict[str, tuple[str, ...]]
) -> SettingRow:
    section, _, name = field.key.partition(".")
    return SettingRow(
        key=field.key,
        help=field.help,
        kind=field.kind.replace("|", " or "),
        choices=field.choices or names.get(field.key, ()),
        value=settings.setting_text(current, field.key),
        default=settings.format_value(field.default),
        saved=name in table,
        counts=_COUNTS.get(field.key) or _COUNTS.get(section) or _RESTART,
    )


def require_setting(key: str) -> str:
    """Returns the key. Raises UsageError with the nearest match if there is no such setting."""
    keys = {field.key for field in settings.setting_fields()}
    if key not in keys:
        raise UsageError(f"There is no setting {key!r}. {suggest_names(key, keys)}")
    return key


def change_setting(path: Path, key: str, value: str) -> str:
    """Write one setting, checking names of tasks, presets, engines and algorithms too; returns the value as it was parsed.

    Raises UsageError, UnknownTask, AppError; the file is then unchanged.
    """

    def check(changed: Settings) -> None:
        if key.startswith("run."):
            flags.check_config(changed.run)
            if key == "run.model":
                _check_folder(changed.run.model)
        elif key == "swarm.directories":
            _check_directories(changed.swarm.directories)

    value = flags.as_kept(value) if key == "run.model" else value
    return settings.setting_text(settings.write_setting(path, require_setting(key), value, check), key)


def _check_folder(model: str) -> None:
    """If `model` is a path, check that it holds a trainable model; the hub is not asked. Raises UsageError."""
    from sapo_backends.checkpoints import locate
    from sapo_backends.errors import ModelNotFound

    path = os.path.expanduser(model)
    if os.path.exists(path) or os.path.isabs(path):
        try:
            locate.require_tokenizer(locate.resolve_local_model(model))
        except ModelNotFound as error:
            raise UsageError(str(error)) from error


def _check_directories(lines: tuple[str, ...]) -> None:
    """Raises UsageError."""
    from sapo_swarm.protocol.directory import BadDirectory, parse_address

    for line in lines:
        try:
            parse_address(line)
        except BadDirectory as error:
            raise UsageError(str(error)) from error


def apply_preset(path: Path, name: str) -> tuple[SettingRow, ...]:
    """Set only the limits of a preset; returns the rows that changed. Raises UsageError, AppError."""
    if name not in PRESETS:
        raise UsageError(f"There is no preset {name!r}. Write: sapo-desktop config preset {'|'.join(PRESETS)}")
    tables = settings.read_tables(path)
    merged = {**tables, "limits": {**settings.known_part(tables).get("limits", {}), **PRESETS[name]}}
    settings.settings_from_tables(settings.known_part(merged), str(path))
    settings.write_tables(path, merged)
    return tuple(row for row in setting_rows(path) if row.key.removeprefix("limits.") in PRESETS[name])


def reset_setting(path: Path, key: str) -> str:
    """Reset to the default and return it; "" for an unknown key in the file. Raises UsageError, AppError."""
    stranger = key in strange_keys(path)
    changed = settings.remove_setting(path, key if stranger else require_setting(key))
    return "" if stranger else settings.setting_text(changed, key)
