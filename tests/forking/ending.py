"""Forks end without destroying what the server had imported: that takes longer than most programs.

An interpreter ends in this order: it joins its threads, calls what was registered with `atexit`,
clears all modules, calls what C libraries have registered with Python (MPI_Finalize), and then the
destructors of C++ objects. In a fork all of that happens to what the program has made or loaded,
and to the modules that hold process groups and worlds. The server's other modules keep their
contents, and the destructors of the libraries that the server has loaded are left out. So is what
the interpreter does after the last module: it takes every type and every interned string apart,
which copies nearly all pages that the fork shares with the server.
"""

import contextlib
import ctypes
import sys
import weakref
from types import ModuleType

CLEARED = ("builtins", "sys", "__main__", "phalanx", "torch.distributed.distributed_c10d")
"""First words of the names of modules that are cleared as in an interpreter of its own."""
_Word = ctypes.c_size_t


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


class ProcessEnd:
    """Ends the process when the interpreter deletes it, with the functions that C libraries have
    registered with Python, if the program has ended with a plain exit code."""

    def __init__(self) -> None:
        python = ctypes.pythonapi
        self._code: int | None = None
        self._function = ctypes.PYFUNCTYPE(None)
        self._exit = ctypes.PYFUNCTYPE(None, ctypes.c_int)(("exit", ctypes.PyDLL(None)))
        # The interpreter has an array of 32 functions, and then their number.
        known = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p)
        python.Py_AtExit(known)
        state = ctypes.addressof(ctypes.c_char.in_dll(python, "_PyRuntime"))
        words = list((_Word * 4096).from_address(state))
        self._is_known = known.value in words
        place = state + ctypes.sizeof(_Word) * words.index(known.value) if self._is_known else state
        self._functions = (_Word * 32).from_address(place)
        self._number = ctypes.c_int.from_address(place + ctypes.sizeof(self._functions))

    def note(self, code: object) -> None:
        """Note how the program has ended. Other ends than by a number, those that lose output, and
        all of an interpreter with another array, are left to the interpreter."""
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            if self._is_known and (code is None or isinstance(code, int)):
                self._code = code or 0

    def __del__(self) -> None:
        if self._code is None:
            return
        while self._number.value:
            self._number.value -= 1
            self._function(self._functions[self._number.value])()
        self._exit(self._code)


def keep_modules() -> ProcessEnd:
    """Keep what is imported now when this process, or a fork of it, ends.

    `sys.__interactivehook__` is among the first that an ending interpreter deletes, after the end
    of all other threads: none can import a module again. It clears `sys` after all modules, in the
    order in which its names came.
    """
    sys.__interactivehook__ = ModuleKeeper()  # type: ignore[assignment]
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False  # PyTorch's take back every operator
    end = sys.process_end = ProcessEnd()  # type: ignore[attr-defined]
    return end
