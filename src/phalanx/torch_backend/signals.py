"""Python's signal handlers run between collectives, as they do with PyTorch's other backends.

A handler that calls a collective, say to save a checkpoint before the job ends, cannot do so inside
another one. Waits of this backend check for signals, so that Ctrl-C ends them; every handler but
Python's own for SIGINT, and those of this package, is deferred until the collective has completed.
"""

from __future__ import annotations

import functools
import signal
import threading
from functools import partial
from types import FrameType
from typing import Any

from phalanx.torch_backend.collective_queue import DEFERRED_CALLS, is_in_collective


class DeferredHandler:
    """A signal handler that is deferred while this thread is in a collective."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if is_in_collective():
            DEFERRED_CALLS.append(partial(self.handler, number, frame))
        else:
            self.handler(number, frame)


def defer_handlers() -> None:
    """Defer the installed handlers, and those that are installed later."""
    _wrap_functions()
    if threading.current_thread() is threading.main_thread():
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if _wrapped(handler) is not handler:
                signal.signal(number, handler)


def _wrap_functions() -> None:
    """Wrap `signal.signal`, and `signal.getsignal` so that programs get their own handlers back."""
    module: Any = signal
    if getattr(module.signal, "defers", False):
        return
    install, look = module.signal, module.getsignal

    @functools.wraps(install)
    def install_deferred(signalnum: Any, handler: Any) -> Any:
        return _unwrapped(install(signalnum, _wrapped(handler)))

    @functools.wraps(look)
    def look_unwrapped(signalnum: Any) -> Any:
        return _unwrapped(look(signalnum))

    install_deferred.defers = True  # type: ignore[attr-defined]
    module.signal, module.getsignal = install_deferred, look_unwrapped


def _wrapped(handler: Any) -> Any:
    if not callable(handler) or isinstance(handler, DeferredHandler | signal.Handlers):
        return handler
    return handler if _runs_at_once(handler) else DeferredHandler(handler)


def _runs_at_once(handler: Any) -> bool:
    """Return whether `handler` is Python's for SIGINT or of this package: these call no collective
    and end a rank that waits in one."""
    module = str(getattr(handler, "__module__", ""))
    return handler is signal.default_int_handler or module.partition(".")[0] == "phalanx"


def _unwrapped(handler: Any) -> Any:
    return handler.handler if isinstance(handler, DeferredHandler) else handler
