"""Train PyTorch models over MPI on the stock PyTorch wheel.

    import phalanx

    world = phalanx.World.create()  # the ranks that a launcher started, and their collectives
    model = phalanx.DataParallel(Net())  # gradients averaged over the ranks
    pack = phalanx.Pack(Path("digits.pack/train"))

Each name is loaded when it is first asked for: `import phalanx` imports neither PyTorch nor MPI.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.comm.world import World
    from phalanx.data.packed.pack import Pack
    from phalanx.data.packed.writer import PackWriter
    from phalanx.errors import RunFailedError, UserError
    from phalanx.parallel.data_parallel import DataParallel
    from phalanx.run.start import start

__version__ = "0.1.0"

__all__ = ["DataParallel", "Pack", "PackWriter", "RunFailedError", "UserError", "World", "start"]

_MODULE_OF = {
    "DataParallel": "phalanx.parallel.data_parallel",
    "Pack": "phalanx.data.packed.pack",
    "PackWriter": "phalanx.data.packed.writer",
    "RunFailedError": "phalanx.errors",
    "UserError": "phalanx.errors",
    "World": "phalanx.comm.world",
    "start": "phalanx.run.start",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
