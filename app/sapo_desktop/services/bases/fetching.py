"""Bringing a run's base onto this disk: what must hold first, the download itself, which the node does where it can be watched,
paused and stopped, and the licence that the base states for itself.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from sapo_backends.base import Progress
from sapo_backends.checkpoints.hub_download import CARD, CARD_LIMIT, is_licence
from sapo_backends.checkpoints.locate import BUNDLED
from sapo_backends.errors import BackendError
from sapo_desktop.services.machine import engines
from sapo_swarm.config import RunConfig

_READS_FOLDERS = frozenset({"torch", "mlx", "llamacpp"})
"""Engines whose base is a bundled model, a folder or a hub id; other engines have their own bases."""


def reads_folder(config: RunConfig) -> bool:
    """Whether the run's engine loads a model from a folder or the hub. Raises BackendUnavailable."""
    return bool(_READS_FOLDERS & set(engines.choose_trainer(config).split("+")))


def require_usable_base(config: RunConfig) -> None:
    """Check that the base is here and complete, or is on the hub, open to this person, with room for it on the disk. Its
    weights are not downloaded.

    Raises BackendUnavailable, ModelNotFound, DownloadFailed.
    """
    from sapo_backends.checkpoints import hub_cache, locate
    from sapo_backends.checkpoints.safetensors_numpy import count_weights

    if not reads_folder(config):
        return
    if not locate.is_hub_id(config.model) or hub_cache.find_snapshot(config.model) is not None:
        folder = locate.resolve_local_model(config.model)
        locate.require_tokenizer(folder)
        count_weights(folder)  # reports a truncated weights file
        return
    from sapo_backends.checkpoints import hub_download

    hub_download.require_room(hub_download.inspect_repository(config.model))


def fetch_base_metadata(config: RunConfig) -> None:
    """Fetch what the hub says about a base that is not here, including its chat template, if it can be fetched now."""
    from sapo_backends.checkpoints import hub_cache, locate

    if locate.is_hub_id(config.model) and hub_cache.find_snapshot(config.model) is None:
        from sapo_backends.checkpoints import hub_download

        with contextlib.suppress(BackendError):  # whoever needs the model says why it cannot be loaded
            if reads_folder(config):
                hub_download.inspect_repository(config.model)


def download_base(config: RunConfig, progress: Progress | None) -> None:
    """Download the base where it is not on this disk. Raises BackendUnavailable, ModelNotFound, DownloadFailed, and what
    progress raises."""
    from sapo_backends.checkpoints import locate

    if reads_folder(config):
        locate.resolve_model(config.model, progress)


# The licence.

OTHER, UNKNOWN = "other", "unknown"
"""A licence without an identifier; no licence stated."""
_STATED = r"^%s:[ \t]*(?:\n[ \t]*-[ \t]*)?[\"']?([\w.+-]{1,40})"


def licence_of(base: str, folder: Path) -> str:
    """As an SPDX identifier in lower case, "other" or "unknown". base: its name; folder: where it is on the disk."""
    if base in BUNDLED:
        return "apache-2.0"
    return _stated(folder, "license") or (OTHER if licence_files(folder) else UNKNOWN)


def licence_name(base: str, folder: Path) -> str:
    """For people: a licence without an identifier goes by the name on its card."""
    licence = licence_of(base, folder)
    return (_stated(folder, "license_name") if licence == OTHER else "") or licence


def licence_files(folder: Path) -> list[Path]:
    """The files with the licence text."""
    return sorted(file for file in folder.iterdir() if is_licence(file.name) and file.is_file())


def _stated(folder: Path, key: str) -> str:
    """What the card's front matter says for the key, in lower case; "" where it has none."""
    card = folder / CARD
    if not card.is_file():
        return ""
    with card.open(encoding="utf-8-sig", errors="replace") as file:
        text = file.read(CARD_LIMIT)
    match = re.search(_STATED % key, text.split("\n---", 1)[0], re.MULTILINE) if text.startswith("---") else None
    return match[1].lower() if match else ""


def licence_in_words(licence: str) -> str:
    """For people; "" is not known."""
    return {"": "no licence stated", OTHER: "a licence of its own"}.get(licence, licence)
