"""The llama.cpp engine: generates on any CPU from F16, BF16 or quantised weights, and does not train.

Importing this package does not import llama_cpp.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from sapo_backends.base import Backend, Engine, LoadRequest, Progress
from sapo_backends.errors import BackendUnavailable
from sapo_backends.packages import LLAMA, install_command, is_here

FIX = f"{install_command(*LLAMA)} (compiles for some minutes and needs a C++ compiler)"


class LlamaCppBackend(Backend):
    """Generates from Hugging Face folders, which it first writes as GGUF into a cache folder."""

    NAME: ClassVar[str] = "llamacpp"
    CAN_TRAIN: ClassVar[bool] = False
    DEVICES: ClassVar[tuple[str, ...]] = ("cpu",)
    PRECISIONS: ClassVar[tuple[str, ...]] = ("float32", "float16", "bfloat16", "q8_0", "q4_0")

    def __init__(self, cache: Path | None = None) -> None:
        """cache: the folder for GGUF files; by default in the app's cache folder."""
        self._cache = cache

    @classmethod
    def check(cls) -> None:
        """See Backend.check."""
        for module in ("llama_cpp", "gguf"):
            if not is_here(module):
                raise BackendUnavailable(f"The llamacpp engine needs the package {module!r}.", FIX)

    def load(self, request: LoadRequest, progress: Progress | None = None) -> Engine:
        """See Backend.load."""
        self.check()
        from sapo_backends.llamacpp_backend.loading import default_cache, load_engine

        return load_engine(request, self._cache or default_cache(), progress)
