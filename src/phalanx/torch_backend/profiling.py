"""Events of PyTorch's profilers: each collective and message, with the shapes of its tensors.

As those of PyTorch's own backends an event begins with the call and ends with its work, whatever
thread that is on: "mpi:all_reduce". Shapes are recorded where the profiler has `record_shapes`.
`torch_patches.py` marks the events as asynchronous, which only C++ could do where they begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd import profiler as torch_profiler
from torch.distributed import Work

from phalanx.torch_backend.work import PendingWork

# Event names of PyTorch's other backends, where ours differ.
_NAMES = {
    "all_gather_single": "_all_gather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "all_to_all_single": "all_to_all",
}
_Event: Any = torch._C._profiler._RecordFunctionFast
_IS_IN_EVENT: ContextVar[bool] = ContextVar("is_in_event", default=False)


def is_profiling() -> bool:
    """Return whether a call is to be an event: a read of a flag while no profiler runs."""
    return torch_profiler._is_profiler_enabled and not _IS_IN_EVENT.get()


def begin_event(name: str, tensors: Sequence[Tensor]) -> Callable[[], None]:
    """Begin an event, and return what ends it, on any thread."""
    event = _Event(f"mpi:{_NAMES.get(name, name)}", list(tensors), {})
    event.__enter__()
    return lambda: event.__exit__(None, None, None)


def profiled(
    name: str, tensors: Sequence[Tensor], call: Callable[[], object]
) -> Callable[[], object]:
    """Return `call` wrapped in an event that begins now and ends with it."""
    end = begin_event(name, tensors)

    def ended() -> None:
        try:
            call()
        finally:
            end()

    return ended


def make_calls_in_event(
    name: str, tensors: Sequence[Tensor], calls: Callable[[], list[Work]]
) -> list[Work]:
    """Return the works of `calls`, which are one event: it ends with the last of them."""
    end = begin_event(name, tensors)
    token = _IS_IN_EVENT.set(True)
    try:
        works = calls()
    except BaseException:
        end()
        raise
    finally:
        _IS_IN_EVENT.reset(token)
    if works and isinstance(works[-1], PendingWork):
        works[-1].call_at_end(end)
    else:
        end()
    return works
