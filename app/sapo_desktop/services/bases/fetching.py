"""Bringing a run's base onto this disk: what must hold first, and the download itself, which the node does where it can be
watched, paused and stopped.
"""

from __future__ import annotations

import contextlib

from sapo_backends.base import Progress
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
