"""The MLX engine: Apple's Metal, and any CPU for tests. Importing this package does not import mlx."""

from __future__ import annotations

import os
from typing import ClassVar

from sapo_backends.base import Backend, Engine, LoadRequest, Progress
from sapo_backends.errors import BackendUnavailable
from sapo_backends.packages import MLX, install_command, is_here

os.environ.setdefault("MLX_ENABLE_TF32", "0")  # read once, by the first product: float32 on a GPU would be TF32


class MlxBackend(Backend):
    """Generates and trains from Hugging Face and MLX folders; 4-bit models are trained with an adapter."""

    NAME: ClassVar[str] = "mlx"
    CAN_TRAIN: ClassVar[bool] = True
    DEVICES: ClassVar[tuple[str, ...]] = ("cpu", "mps")
    PRECISIONS: ClassVar[tuple[str, ...]] = ("float32", "bfloat16")

    @classmethod
    def check(cls) -> None:
        """See Backend.check."""
        for module in ("mlx", "mlx_lm"):
            if not is_here(module):
                raise BackendUnavailable(f"The mlx engine needs the package {module!r}.", install_command(*MLX))

    @classmethod
    def devices_here(cls) -> tuple[str, ...]:
        """See Backend.devices_here."""
        from sapo_backends.mlx_backend.device_check import has_metal

        return cls.DEVICES if has_metal() else ("cpu",)

    def load(self, request: LoadRequest, progress: Progress | None = None) -> Engine:
        """See Backend.load."""
        self.check()
        from sapo_backends.mlx_backend.loading import load_engine

        return load_engine(request, progress)
