"""The person's token for the model hub: in the keyring, or in a file that only they can read. Never in settings or logs."""

from __future__ import annotations

from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home

NAME = "hub-token"


def save_hub_token(home: Home, typed: str) -> str:
    """Keep the token and say where it is kept. "" forgets it. Raises UsageError, AppError."""
    no = "This is no token: it is one word, such as hf_..., from the settings page of the hub."
    return keep_word(home, NAME, typed, "The token", no)


def keep_word(home: Home, name: str, typed: str, what: str, no: str) -> str:
    """Keep a one-word secret under that name and say where; "" forgets it. what: "The token". no: the message for text that
    is not a secret. Raises UsageError, AppError."""
    from sapo_swarm.protocol import identity

    word = typed.strip()
    if len(word) > 512 or not word.isascii() or not (word.isprintable() and " " not in word):
        raise UsageError(no)
    try:
        place = identity.keep_text(home.config, name, word)
    except identity.KeyStoreError as error:
        raise AppError(str(error)) from error
    return f"{what} is {place}." if word else f"{what} is forgotten."


def load_hub_token(home: Home) -> str | None:
    """The token, None where there is none."""
    from sapo_swarm.protocol import identity

    return identity.kept_text(home.config, NAME) or None
