"""Which hub is asked, and as whom. Environment variables are those of huggingface_hub: HF_ENDPOINT (a mirror),
HF_HUB_OFFLINE, HF_TOKEN."""

from __future__ import annotations

import os
from collections.abc import Callable

Tokens = Callable[[], str | None]
_sources: list[Tokens] = []


def use(source: Tokens) -> None:
    """Where a person's token is looked for when the environment has none. Asked only after a hub refused an anonymous
    request: nobody's keyring is opened for a public model."""
    _sources[:] = [source]


def token() -> str | None:
    """The person's token, None where there is none."""
    named = os.environ.get("HF_TOKEN", "").strip()
    return named or next((found for source in _sources if (found := source())), None)


def endpoint() -> str:
    """The hub's address, without a slash at the end."""
    return (os.environ.get("HF_ENDPOINT", "").strip() or "https://huggingface.co").rstrip("/")


def offline() -> bool:
    """Whether the person forbade the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in {"1", "ON", "YES", "TRUE"}
