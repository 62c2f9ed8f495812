"""What this package raises on purpose for a person to read."""

from __future__ import annotations

from typing import ClassVar


class SwarmError(Exception):
    """Base of the errors whose message is a sentence that says what failed and what to do. exit_code: of a command that ends
    with it; 1 for a failure, 2 for a wrong name or value, 3 if no node answers."""

    exit_code: ClassVar[int] = 1
