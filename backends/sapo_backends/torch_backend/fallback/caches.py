"""Which of transformers' caches several rows can continue."""

from __future__ import annotations

from typing import Any


def may_share_prompts(config: Any) -> bool:
    """Whether rows may continue one prompt's cache; True also where a config does not tell: then the first pass does."""
    from transformers import DynamicCache

    try:
        return only_keys_and_values(DynamicCache(config=config))
    except (AttributeError, KeyError, ValueError):  # a cache of the architecture's own
        return True


def only_keys_and_values(cache: Any) -> bool:
    """Whether a cache can be continued by several tokens at once, with gradients: not where layers keep the state of a
    convolution or of linear attention."""
    from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

    layers = getattr(cache, "layers", [])
    return bool(layers) and all(
        isinstance(layer, DynamicLayer) and not isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers
    )
