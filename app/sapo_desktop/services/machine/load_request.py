"""What an engine is asked to load for a run, and how large that model is."""

from __future__ import annotations

from pathlib import Path

from sapo_backends.base import LoadRequest
from sapo_backends.errors import ModelNotFound
from sapo_swarm.config import RunConfig


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
