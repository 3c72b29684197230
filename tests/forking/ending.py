"""Forks end without destroying what the server had imported: that takes longer than most programs.

An interpreter ends in this order: it joins its threads, calls what was registered with `atexit`,
clears all modules, calls what C libraries have registered with Python (MPI_Finalize), and then the
destructors of C++ objects. In a fork all of that happens to what the program has made or loaded,
and to the modules that hold process groups and worlds. The server's other modules keep their
contents, and the destructors of the libraries that the server has loaded are left out.
"""

import ctypes
import sys
import weakref
from types import ModuleType

CLEARED = ("builtins", "sys", "__main__", "phalanx", "torch.distributed.distributed_c10d")
"""First words of the names of modules that are cleared as in an interpreter of its own."""


def leave_out_destructors() -> None:
    """Have C's `exit` end the process before it reaches the destructors that exist already."""
    c = ctypes.CDLL(None)
    # Called in reverse order: what is loaded later, the buffers of C's streams, the end.
    c.on_exit(ctypes.cast(c._exit, ctypes.c_void_p), None)
    c.__cxa_atexit(ctypes.cast(c.fflush, ctypes.c_void_p), None, None)


class ModuleKeeper:
    """Takes modules out of `sys.modules` when the interpreter deletes it, and keeps them alive."""

    def __init__(self) -> None:
        self._modules = sys.modules
        self._kept: dict[str, ModuleType] = {
            name: module
            for name, module in sys.modules.items()
            if not any(name == word or name.startswith(f"{word}.") for word in CLEARED)
        }
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._kept))

    def __del__(self) -> None:
        for name, module in self._kept.items():
            if self._modules.get(name) is module:
                del self._modules[name]


def keep_modules() -> None:
    """Keep what is imported now when this process, or a fork of it, ends.

    `sys.__interactivehook__` is among the first that an ending interpreter deletes, after the end
    of all other threads: none can import a module again.
    """
    sys.__interactivehook__ = ModuleKeeper()  # type: ignore[assignment]
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False  # PyTorch's take back every operator
