"""A base that is a folder of the person's own: it may be moved, renamed, or left on another machine."""

from __future__ import annotations

import os
from pathlib import Path

from sapo_backends.errors import ModelNotFound
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home, typed
from sapo_desktop.services.models.shelf import history, store
from sapo_desktop.services.models.shelf.store import Model
from sapo_swarm.protocol.safe_text import safe_text


def folders(home: Home) -> dict[str, list[str]]:
    """Folder -> the names of the models that were made from it."""
    found: dict[str, list[str]] = {}
    for model in store.all_models(home):
        if _is_folder(model):
            found.setdefault(_shown(model), []).append(model.name)
    return found


def missing(model: Model) -> str:
    """What to do where the folder of the model's base is not there any more; "" where it is, or the base is no folder."""
    if not _is_folder(model) or os.path.exists(os.path.expanduser(model.config.model)):
        return ""
    done = history.rounds_behind(model)
    goal, why = (("--rounds", f"{done}"), f" (its {done:,} rounds are done: nothing is trained)") if done else ((), "")
    cure = typed("sapo-desktop", "node", model.name, *goal, "--model", "NEWFOLDER")
    return f"{model.name} was made from {_shown(model)}, which is not there any more. Where is it now? {cure}{why}"


def require(model: Model) -> None:
    """Raise ModelNotFound where that folder is missing."""
    if said := missing(model):
        raise ModelNotFound(said)


def require_unused(home: Home, model: Model) -> None:
    """Raises UsageError where other models start from an export of this one, which is deleted with it."""
    others = [other for other in store.all_models(home) if _starts_in(model.folder, other)]
    if not others:
        return
    names = ", ".join(sorted(other.name for other in others))
    verb = typed("sapo-desktop", "models", "delete", model.name, "--even-in-use")
    raise UsageError(
        f"{model.name} is in use: an export of it is the base of {names}. Delete {'those' if others[1:] else 'that'} first, "
        f"move {_shown(others[0])} elsewhere, or delete {model.name} all the same: {verb}"
    )


def _starts_in(folder: Path, model: Model) -> bool:
    """The model's base is there, below that folder."""
    base = os.path.expanduser(model.config.model)
    return _is_folder(model) and os.path.exists(base) and Path(base).resolve().is_relative_to(folder.resolve())


def _shown(model: Model) -> str:
    """A model's folder may come from anywhere."""
    return safe_text(model.config.model, 4096, lines=False)


def _is_folder(model: Model) -> bool:
    return os.path.isabs(os.path.expanduser(model.config.model))
