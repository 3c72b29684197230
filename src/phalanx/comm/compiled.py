"""The compiled module of the kernels, where it was built."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType


@cache  # a step of a training asks for them
def import_kernels() -> ModuleType | None:
    """Return the module in C, wanted or not; None when it was not built."""
    try:
        return importlib.import_module("phalanx.comm._kernels")
    except ImportError:
        return None


def kernel_names(enumeration: str) -> tuple[str, ...]:
    """Return the names in an enumeration of the kernels, at their numbers; () without kernels."""
    module = import_kernels()
    names: tuple[str, ...] = () if module is None else getattr(module, enumeration)
    return names
