"""The C extensions, where they were built."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

from phalanx.errors import UserError

INTERFACE = 0x3A2C0B8F
"""Number of the functions and names in C that Python uses. setup.py compiles it into the
extensions, and tests/comm/test_compiled.py says which number a change of them needs."""


@cache  # a step of a training asks for them
def import_kernels() -> ModuleType | None:
    """Return the module in C, wanted or not; None when it was not built.

    Raises: UserError as `import_extension`.
    """
    return import_extension("phalanx.comm._kernels")


def import_extension(name: str) -> ModuleType | None:
    """Return a C extension; None when it was not built.

    Raises: UserError when it was built of sources with another interface.
    """
    module = _import_built(name)
    if module is None or _is_current(module):
        return module
    file = Path(str(module.__file__))
    how = "python setup.py build_ext -i"
    if not (file.parent / "csrc").is_dir():  # no checkout
        how = "pip uninstall -y phalanx && pip install phalanx"
    raise UserError(
        f"{file} was built from a different version of Phalanx from that of its Python files; "
        f"rebuild it: {how}"
    )


def kernel_names(enumeration: str) -> tuple[str, ...]:
    """Return the names in an enumeration of the kernels, at their numbers; () without kernels that
    can be used."""
    module = _import_built("phalanx.comm._kernels")
    if module is None or not _is_current(module):
        return ()
    names: tuple[str, ...] = getattr(module, enumeration)
    return names


def _import_built(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _is_current(module: ModuleType) -> bool:
    return getattr(module, "INTERFACE", None) == INTERFACE
