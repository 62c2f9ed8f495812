"""What may be wrong with a task folder."""

from __future__ import annotations


class BadTask(ValueError):
    """A task folder or a file of rows that cannot be used; the message says where, why and what to do."""
