"""An engine of your own for sapo-desktop. It begins as the torch engine, which works; put what is yours in its place.

An engine that shares nothing with it subclasses Backend and Engine of sapo_backends.base; sapo_backends.fake is one in NumPy.
"""

from __future__ import annotations

from typing import ClassVar

from sapo_backends.base import Engine, LoadRequest, Progress
from sapo_backends.torch_backend import TorchBackend


class MyBackend(TorchBackend):
    """Imports its library in load, not before: every engine is listed, one is loaded."""

    NAME: ClassVar[str] = "mine"
    DEVICES: ClassVar[tuple[str, ...]] = ("cpu", "cuda")

    def load(self, request: LoadRequest, progress: Progress | None = None) -> Engine:
        """The model that was asked for, ready to generate and to train."""
        return super().load(request, progress)
