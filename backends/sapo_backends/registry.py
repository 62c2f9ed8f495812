"""Backends by name. Nothing numerical is imported until one is chosen.

Built in: torch, mlx, llamacpp, fake, and pairs such as llamacpp+torch (generator+trainer). Others come from the
entry-point group `sapo_desktop.backends`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from sapo_backends.base import Backend
from sapo_backends.errors import BackendUnavailable, did_you_mean
from sapo_backends.packages import is_here

GROUP = "sapo_desktop.backends"
BUILT_IN = {
    "torch": "sapo_backends.torch_backend:TorchBackend",
    "mlx": "sapo_backends.mlx_backend:MlxBackend",
    "llamacpp": "sapo_backends.llamacpp_backend:LlamaCppBackend",
    "fake": "sapo_backends.fake:FakeBackend",
}
PAIRS = ("llamacpp+torch", "llamacpp+mlx")
"""Generator and trainer pairs that are worth offering; `get_backend` also builds any other pair."""
NEEDS = {"torch": "torch", "mlx": "mlx", "llamacpp": "llama_cpp"}
"""The module that `installed_backends` looks for, by backend."""


def known_backends() -> dict[str, str]:
    """Every known backend: name -> import string "module:class"; built-in ones win over entry points."""
    pairs = dict.fromkeys(PAIRS, "sapo_backends.composite:pair")
    return {point.name: point.value for point in entry_points(group=GROUP)} | BUILT_IN | pairs


def installed_backends() -> tuple[str, ...]:
    """Names whose numerical library can be found, without importing it."""
    return tuple(
        name for name in known_backends() if all(is_here(NEEDS[part]) for part in name.split("+") if part in NEEDS)
    )


def get_backend(name: str) -> type[Backend]:
    """The Backend class of that name; "a+b" generates with a and trains with b.

    Raises BackendUnavailable when it is unknown or broken. Its check() tells whether its requirements are installed.
    """
    generator, plus, trainer = name.partition("+")
    if plus:
        from sapo_backends.composite import pair

        return pair(get_backend(generator), get_backend(trainer))
    backends = known_backends()
    if name not in backends:
        hint = did_you_mean(name, backends)
        raise BackendUnavailable(
            f"There is no engine {name!r}.{hint} Installed here: {', '.join(installed_backends())}."
        )
    module, _, attribute = backends[name].partition(":")
    try:
        chosen = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, OSError) as error:
        raise BackendUnavailable(f"The {name} engine does not load: {error}.") from error
    if not (isinstance(chosen, type) and issubclass(chosen, Backend)):
        raise BackendUnavailable(f"{backends[name]} is not a Backend, so {name!r} cannot be an engine.")
    return chosen
