"""transformers' caches: what their layers keep, and a layer's part of one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor


def only_keys_and_values(config: Any) -> bool:
    """Whether no layer keeps the state of a convolution or of linear attention; False also where a config does not tell."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

    try:
        layers = DynamicCache(config=config).layers
    except (AttributeError, KeyError, ValueError):  # a cache of the architecture's own
        return False
    return bool(layers) and all(
        isinstance(layer, DynamicLayer) and not isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers
    )


def gathered(layer: Any, owner: Tensor | None) -> Any:
    """A layer's part of a cache as one to write to, the other stays as it is: of the same rows, or of rows (N,) that continue
    them, whose states nobody asks for afterwards."""
    own = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, dict):  # states by their number
            setattr(own, name, dict(value))
    if owner is not None:
        own.reorder_cache(owner)
        own.update_recurrent_state = lambda states, *_, **__: states  # in place it would overwrite what autograd kept
    return own


def replaced(cache: Any, places: Sequence[int], layers: Sequence[Any]) -> Any:
    """A cache with other layers at some places."""
    other = copy.copy(cache)
    other.layers = list(cache.layers)
    for place, layer in zip(places, layers, strict=True):
        other.layers[place] = layer
    return other
