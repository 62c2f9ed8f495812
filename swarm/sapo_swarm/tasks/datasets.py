"""reasoning_gym's datasets, imported without matplotlib, and without pycosat where that is not installed.

cellpylib, which game_of_life steps with, imports matplotlib for plots that nobody asks for here: 30 of the 112 MB of a scorer
worker, and a third of its start (`python -X importtime -c 'import reasoning_gym'`). pycosat, which zebra_puzzles alone needs,
has to be compiled where it is installed, and not every machine has a compiler (packaging/no_compiler.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from types import ModuleType

_UNUSED = (
    "matplotlib",
    "matplotlib.pyplot",
    "matplotlib.animation",
    "matplotlib.collections",
    "mpl_toolkits",
    "mpl_toolkits.mplot3d",
)
"""What cellpylib imports, parents first."""


class _NotInstalled(ModuleType):
    """pycosat where there is none: says so when it is used."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ModuleNotFoundError(
            "pycosat is not installed here. With a C compiler: pip install --force-reinstall pycosat==0.6.6"
        )


@contextmanager
def _empty(names: tuple[str, ...]) -> Iterator[None]:
    """Modules of these names with nothing in them, for what is imported meanwhile. Those that are loaded stay."""
    made: list[str] = []
    for name in names:
        if name not in sys.modules:
            parent, _, child = name.rpartition(".")
            sys.modules[name] = module = ModuleType(name)
            setattr(module, "Axes3D", None)  # noqa: B010 - imported by name
            if parent in made:
                setattr(sys.modules[parent], child, module)
            made.append(name)
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]


if find_spec("pycosat") is None:
    sys.modules["pycosat"] = _NotInstalled("pycosat")
with nullcontext() if "matplotlib" in sys.modules else _empty(_UNUSED):
    from reasoning_gym.factory import DATASETS

__all__ = ["DATASETS"]
