"""What F2 knows of the settings: rows to show."""

from __future__ import annotations

from dataclasses import dataclass

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

NEVER = "never: it is part of what this model is. For another: screen 4, then n"


@dataclass(frozen=True)
class SettingRow:
    """One setting, every value as text.

    kind: what may be written; choices: all of them, where there are only some. saved: it stands in the file (else the
    default counts). running: what the running node works with, where that is something else. counts: from when on a
    change has an effect. owner: the model that this is a setting of, "" where it is one of the settings file.
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
        """It cannot be changed."""
        return self.counts == NEVER


def spaced(row: SettingRow, value: str) -> str:
    """A value of this setting for reading: lists may be wrapped, nothing is called so."""
    return (value.replace(",", ", ") if row.kind == "list" else value) or "(empty)"
