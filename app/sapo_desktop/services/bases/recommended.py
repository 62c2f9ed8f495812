"""The recommended small models: a dated list (assets/sapo_assets/bases.toml), readable without a network."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec

from sapo_backends.common.round_memory import ModelSize
from sapo_backends.measure.precision import size_from_widths
from sapo_desktop.services.machine import load_request
from sapo_swarm.config import RunConfig


class RecommendedBase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model on the hub. bytes: of its download. gated: access must be granted by its owner. gain_minutes: see the list; 0
    where nobody has measured it."""

    id: str
    license: str
    gated: bool
    bytes: int
    parameters: int
    layers: int
    hidden: int
    intermediate: int
    key_value: int
    vocabulary: int
    heads: int
    gain_minutes: float = 0.0

    @property
    def promise(self) -> str:
        """How soon a person sees it improve, "" where nobody has measured it."""
        minutes = round(self.gain_minutes)
        return f"about {minutes} min to a first visible gain" if self.gain_minutes else ""

    @property
    def brief_promise(self) -> str:
        """The same in a few letters."""
        return f"~{round(self.gain_minutes)} min to a gain" if self.gain_minutes else ""

    def size(self, config: RunConfig) -> ModelSize:
        """The sizes that its memory and time are computed from, trained as the settings say."""
        names = ("layers", "hidden", "intermediate", "key_value", "vocabulary", "heads")
        widths = {name: getattr(self, name) for name in names}
        return size_from_widths(self.parameters, widths, load_request.build_load_request(config), tied=True)[0]


@dataclass(frozen=True, slots=True)
class RecommendedList:
    """date: when the list was made, ISO. bases: smallest first."""

    date: str
    bases: tuple[RecommendedBase, ...]


@cache
def load_recommended_list() -> RecommendedList:
    """The list that ships."""
    table = tomllib.loads((files("sapo_assets") / "bases.toml").read_text("utf-8"))
    return RecommendedList(table["date"].isoformat(), tuple(msgspec.convert(table["base"], list[RecommendedBase])))


def find_recommended_base(model: str) -> RecommendedBase | None:
    """The entry for a hub id, None where it is not on the list."""
    return next((base for base in load_recommended_list().bases if base.id == model), None)
