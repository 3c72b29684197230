"""Train PyTorch models over MPI on the stock PyTorch wheel.

    import phalanx

    run = phalanx.start(model, optimizer, data, batch_size=256, epochs=10)
    for batch in run:
        run.backward(criterion(run.model(batch.inputs), batch.targets))

trains in one process, or on the ranks that `phalanx launch -n 4 program.py`, mpirun, srun or
torchrun started. Beside it:

    start, ProgramRun, MicroBatch   a program's own loop (docs/own_program.md)
    World                           the ranks that a launcher started, and their collectives
    DataParallel                    a module whose gradients are averaged over the ranks
    Pack, PackWriter, Packed        packed data (docs/data.md), and its options in training
    Strategy                        base of a strategy of one's own (docs/strategies.md)
    Checkpoints, Records            values of `start` for what few programs need
    RunDescription                  of `Records`: what they say of a program's own options
    LARS, LAMB                      optimizers for large batches (docs/strategies.md)
    notebook                        a function of a notebook's cell on ranks
    UserError, RunFailedError       errors in sentences

`import phalanx.horovod as hvd` runs programs written for Horovod. Each name is loaded when it is
first asked for: `import phalanx` imports neither PyTorch nor MPI.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.comm.world import World
    from phalanx.data.packed.pack import Pack
    from phalanx.data.packed.writer import PackWriter
    from phalanx.data.sources.packed import Packed
    from phalanx.errors import RunFailedError, UserError
    from phalanx.parallel.data_parallel import DataParallel
    from phalanx.parallel.layerwise import LAMB, LARS
    from phalanx.parallel.strategy import Strategy
    from phalanx.run.batch import MicroBatch
    from phalanx.run.notebook import notebook
    from phalanx.run.options import Checkpoints, Records, RunDescription
    from phalanx.run.program import ProgramRun
    from phalanx.run.start import start

__version__ = "0.1.0"

__all__ = [
    "LAMB", "LARS", "Checkpoints", "DataParallel", "MicroBatch", "Pack", "PackWriter", "Packed",
    "ProgramRun", "Records", "RunDescription", "RunFailedError", "Strategy", "UserError", "World",
    "notebook", "start",
]  # fmt: skip

_MODULE_OF = {
    "Checkpoints": "phalanx.run.options",
    "DataParallel": "phalanx.parallel.data_parallel",
    "LAMB": "phalanx.parallel.layerwise",
    "LARS": "phalanx.parallel.layerwise",
    "MicroBatch": "phalanx.run.batch",
    "Pack": "phalanx.data.packed.pack",
    "PackWriter": "phalanx.data.packed.writer",
    "Packed": "phalanx.data.sources.packed",
    "ProgramRun": "phalanx.run.program",
    "Records": "phalanx.run.options",
    "RunDescription": "phalanx.run.options",
    "RunFailedError": "phalanx.errors",
    "Strategy": "phalanx.parallel.strategy",
    "UserError": "phalanx.errors",
    "World": "phalanx.comm.world",
    "notebook": "phalanx.run.notebook",
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
