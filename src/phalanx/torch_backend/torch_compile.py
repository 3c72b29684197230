"""Exclusion of this package from torch.compile."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch


def exclude_from_dynamo(package: str) -> None:
    """Have Dynamo skip all loaded functions of `package`, and the functions that they call.

    PyTorch's own backends are C++, which Dynamo never traces. It would trace this one from DDP's
    forward pass into a broadcast, and fail there.
    """
    compiler: Any = torch._C._dynamo.eval_frame
    try:
        skip = compiler._FrameAction.SKIP
        strategy = compiler._FrameExecStrategy(skip, skip)
        for name, module in list(sys.modules.items()):
            if f"{name}.".startswith(f"{package}."):
                for code in _codes_of(vars(module).values(), package):
                    compiler.set_code_exec_strategy(code, strategy)
    except AttributeError:
        return  # another version of PyTorch; uncompiled programs still work


def _codes_of(members: Iterable[object], package: str) -> Iterator[CodeType]:
    """Yield the code of the functions among `members`, and of the methods of their classes."""
    for member in list(members):
        if isinstance(member, type):
            if f"{member.__module__}.".startswith(f"{package}."):
                yield from _codes_of(vars(member).values(), package)
        elif isinstance(member, property):
            yield from _codes_of((member.fget, member.fset), package)
        elif isinstance(member, staticmethod | classmethod):
            yield from _codes_of((member.__func__,), package)
        elif isinstance(member, FunctionType):
            yield from _with_inner(member.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
