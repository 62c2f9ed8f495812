"""Functions that TorchScript runs where it can.

What a small model does to a batch is thousands of operations of some microseconds each. Python's part of them is a
tenth to a quarter of the time, and threads that each compute a shard wait for one another at the interpreter's lock.
TorchScript takes both away where it is to be had; where not (it needs the function's source, and is on its way out of
torch), the same function runs as plain Python.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from sapo_backends.torch_backend.runtime.fallbacks import fall_back, is_left_out

Function = TypeVar("Function", bound=Callable[..., Any])

_SCRIPTING = threading.Lock()
"""The first call may come from several threads at once, and TorchScript's compiler is for one."""
_KNOWN: dict[Callable[..., Any], Callable[..., Any]] = {}


def scripted(function: Function) -> Function:
    """The function as TorchScript, or as it stands."""
    known = _KNOWN.get(function)
    if known is None:
        with _SCRIPTING:
            known = _KNOWN.setdefault(function, _script(function))
    return known  # type: ignore[return-value]


def on_cpu(function: Function, x: Tensor) -> Function:
    """scripted(function) for a tensor in the processor's memory; elsewhere TorchScript would compile kernels for each
    shape."""
    return scripted(function) if x.device.type == "cpu" else function


def _plus_one(x: Tensor) -> Tensor:
    return x + 1


def works() -> bool:
    """Whether TorchScript compiles functions here."""
    return scripted(_plus_one) is not _plus_one


def _script(function: Callable[..., Any]) -> Callable[..., Any]:
    if is_left_out("torchscript"):
        return function
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result: Callable[..., Any] = torch.jit.script(function)
    except Exception as error:  # whatever TorchScript lacks, the function itself works
        fall_back(
            "torchscript", f"{function.__name__}: {str(error).strip().partition(chr(10))[0] or type(error).__name__}"
        )
        return function
    return result
