"""The torch engine: CPU and CUDA through one code path. Importing this package does not import torch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import ClassVar

from sapo_backends.base import Backend, Engine, LoadRequest, Progress
from sapo_backends.errors import BackendUnavailable
from sapo_backends.packages import TORCH, install_command, is_here


class TorchBackend(Backend):
    """Generates and trains Hugging Face causal language models."""

    NAME: ClassVar[str] = "torch"
    CAN_TRAIN: ClassVar[bool] = True
    DEVICES: ClassVar[tuple[str, ...]] = ("cpu", "cuda", "mps")
    PRECISIONS: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "4bit", "4bit-float32", "4bit-bfloat16")

    @classmethod
    def check(cls) -> None:
        """See Backend.check."""
        if not is_here("torch"):
            raise BackendUnavailable("The torch engine needs PyTorch.", install_command(*TORCH))

    @classmethod
    def devices_here(cls) -> tuple[str, ...]:
        """See Backend.devices_here."""
        from sapo_backends.torch_backend.loading import is_present

        return tuple(name for name in cls.DEVICES if is_present(name))

    @classmethod
    def plainly(cls) -> AbstractContextManager[None]:
        """See Backend.plainly."""
        from sapo_backends.torch_backend.runtime import FAST, without_paths

        return without_paths(*FAST)

    def load(self, request: LoadRequest, progress: Progress | None = None) -> Engine:
        """See Backend.load."""
        self.check()
        from sapo_backends.torch_backend.loading import load_engine

        return load_engine(request, progress)
