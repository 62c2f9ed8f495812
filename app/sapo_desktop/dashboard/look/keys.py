"""The keys of a screen, made from its bindings: what a key does is what its action's docstring says."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from textual.binding import Binding

Rows = list[tuple[str, str]]
"""(keys, what they do)."""
PALETTE = ("ctrl+p", "Every action by name, themes too")
"""Textual binds this one."""
LISTS = "In lists the arrows move and Enter opens. Tab goes on to the next list, text or field."
"""Keys that Textual's widgets have."""
_SHOWN = {
    "plus": "+",
    "minus": "-",
    "slash": "/",
    "comma": ",",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "escape": "Esc",
    "enter": "Enter",
    "f1": "F1",
    "f2": "F2",
    "f3": "F3",
    "f4": "F4",
}


def bindings(owner: type) -> Iterator[Binding]:
    """The bindings of a screen, a widget or the app, those of its own bases too, and none of Textual's; nothing twice."""
    seen: set[str] = set()
    for base in owner.__mro__:
        for found in vars(base).get("BINDINGS", ()) if base.__module__.startswith("sapo_desktop") else ():
            binding = found if isinstance(found, Binding) else Binding(*found)
            keys = set(binding.key.split(","))
            if not keys <= seen:
                seen |= keys
                yield binding


def does(owner: type, binding: Binding) -> str:
    """What a key does, in a sentence without its full stop."""
    name = binding.action.partition("(")[0]
    method = getattr(owner, f"action_{name}", None)
    ours = method is not None and str(method.__module__).startswith("sapo_desktop")
    text = " ".join((method.__doc__ or "").split()) if ours else ""
    return (text or binding.description).partition(". ")[0].rstrip(".")


def shown(key: str) -> str:
    """A key as people know it."""
    if key in _SHOWN or ("_" not in key and len(key) > 1):
        return _SHOWN.get(key, key)
    return unicodedata.lookup(key.replace("_", " ").upper()) if "_" in key else key


def rows(owner: type) -> Rows:
    """Every key of a screen, a widget or the app, those of one action together; not shift with an arrow, which < and > are."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for binding in bindings(owner):
        keys, texts = found.setdefault(binding.action.partition("(")[0], ([], []))
        keys += [shown(key) for key in binding.key.split(",") if not key.startswith("shift+")]
        texts.append(does(owner, binding))
    return [(" ".join(keys), ", ".join(dict.fromkeys(texts))) for keys, texts in found.values()]
