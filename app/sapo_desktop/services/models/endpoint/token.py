"""The token that clients of the endpoint send: in a file that only its owner reads."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from sapo_desktop.errors import AppError

SHORTEST = 24


def read_or_make(path: Path) -> str:
    """The token in the file, made at random the first time, so that clients keep theirs. Raises AppError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            path.chmod(0o600)
        else:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise AppError(f"The endpoint's token cannot be kept in {path} ({error}). Remove the file.") from error
    if len(token) < SHORTEST or not token.isprintable() or " " in token:
        raise AppError(f"{path} holds no token. Remove the file; a new one is made.")
    return token
