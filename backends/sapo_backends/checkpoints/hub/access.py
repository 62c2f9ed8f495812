"""Which hub is asked, and as whom. Environment variables are those of huggingface_hub: HF_ENDPOINT (a mirror),
HF_HUB_OFFLINE, HF_TOKEN."""

from __future__ import annotations

import os
import threading
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


def why_away(seconds: float = 1.5) -> str:
    """Why nothing can be downloaded now, "" where the hub answers, whatever it says. Blocks for so many seconds at most."""
    if offline():
        return "HF_HUB_OFFLINE forbids the network"
    answers: list[str] = []
    # of its own, and daemonic: looking up a name may take half a minute, and nobody waits for it, at the end neither
    asking = threading.Thread(target=lambda: answers.append(_asked(seconds)), name="ask-the-hub", daemon=True)
    asking.start()
    asking.join(seconds)
    return answers[0] if answers else "the hub does not answer"


def _asked(seconds: float) -> str:
    import asyncio

    import aiohttp

    async def ask() -> str:
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
            try:
                async with session.head(endpoint(), allow_redirects=False):
                    return ""
            except (aiohttp.ClientError, TimeoutError, ValueError):
                return "the hub cannot be reached"

    return asyncio.run(ask())
