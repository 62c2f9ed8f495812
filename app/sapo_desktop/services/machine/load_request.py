"""What an engine is asked to load for a run, and how large that model is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sapo_backends.base import LoadRequest
from sapo_backends.errors import ModelNotFound
from sapo_desktop.paths import Home
from sapo_swarm.config import RunConfig

if TYPE_CHECKING:
    from sapo_swarm.node.base_trial import StoredTrials


def build_load_request(config: RunConfig) -> LoadRequest:
    """What an engine is asked to load for a run."""
    return LoadRequest(
        model=config.model,
        method=config.method,
        precision=config.precision,
        device=config.device,
        threads=config.threads,
        lora_rank=config.lora_rank,
        lora_alpha=2.0 * config.lora_rank,
        seed=config.seed,
        thinking=config.thinking,
    )


def local_folder(config: RunConfig) -> Path:
    """The model's folder if it is on this disk already. Raises ModelNotFound."""
    from sapo_backends.checkpoints import locate

    return locate.resolve_local_model(config.model)


def parameter_count(config: RunConfig) -> int | None:
    """The number of parameters of the run's model; None while unknown, because the model is not on this disk."""
    from sapo_backends.measure.precision import model_size

    try:
        return model_size(local_folder(config), build_load_request(config))[0].parameters
    except ModelNotFound:
        return None


def stored_trials(home: Home, config: RunConfig) -> StoredTrials:
    """Trials that were made of the run's base on this machine: `tasks new` makes one, and so does a base's first run."""
    from sapo_backends.checkpoints import locate
    from sapo_desktop import __version__
    from sapo_swarm.node.base_trial import StoredTrials

    def model_id() -> str:
        try:
            return locate.content_id(local_folder(config))
        except ModelNotFound as error:
            raise FileNotFoundError(str(error)) from error

    return StoredTrials(home.cache / "trials", model_id, __version__)
