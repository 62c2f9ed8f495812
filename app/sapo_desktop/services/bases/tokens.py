"""The person's token of the model hub: in the keyring, or in a file that only they can read. Never in settings or logs."""

from __future__ import annotations

from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home

NAME = "hub-token"


def keep(home: Home, typed: str) -> str:
    """Keep it; the sentence says where. "" forgets it. Raises UsageError, AppError."""
    from sapo_swarm.protocol import keystore

    token = typed.strip()
    if len(token) > 512 or not token.isascii() or not (token.isprintable() and " " not in token):
        raise UsageError("This is no token: it is one word, such as hf_..., from the settings page of the hub.")
    try:
        where = keystore.keep_text(home.config, NAME, token)
    except keystore.KeyStoreError as error:
        raise AppError(str(error)) from error
    return f"The token is {where}." if token else "The token is forgotten."


def kept(home: Home) -> str | None:
    """The token, None where there is none."""
    from sapo_swarm.protocol import keystore

    return keystore.kept_text(home.config, NAME) or None
