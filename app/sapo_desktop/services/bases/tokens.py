"""The person's token of the model hub: in the keyring, or in a file that only they can read. Never in settings or logs."""

from __future__ import annotations

from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home

NAME = "hub-token"


def save_hub_token(home: Home, typed: str) -> str:
    """Keep it; the sentence says where. "" forgets it. Raises UsageError, AppError."""
    no = "This is no token: it is one word, such as hf_..., from the settings page of the hub."
    return keep_word(home, NAME, typed, "The token", no)


def keep_word(home: Home, name: str, typed: str, what: str, no: str) -> str:
    """Keep a secret of one word under that name, or with "" forget it; the sentence says where. what: "The token". no: what is
    said of text that is none. Raises UsageError, AppError."""
    from sapo_swarm.protocol import identity

    word = typed.strip()
    if len(word) > 512 or not word.isascii() or not (word.isprintable() and " " not in word):
        raise UsageError(no)
    try:
        where = identity.keep_text(home.config, name, word)
    except identity.KeyStoreError as error:
        raise AppError(str(error)) from error
    return f"{what} is {where}." if word else f"{what} is forgotten."


def load_hub_token(home: Home) -> str | None:
    """The token, None where there is none."""
    from sapo_swarm.protocol import identity

    return identity.kept_text(home.config, NAME) or None
