"""A collective by an algorithm in which ranks exchange parts."""

from __future__ import annotations

from types import ModuleType

from phalanx.comm.collective import Collective
from phalanx.comm.transport import Transport


def run(by: ModuleType, transport: Transport, collective: Collective) -> None:
    """Execute `collective`: any but a barrier or a broadcast.

    by: `pairwise` or `bruck`, which have a function for each kind.
    """
    kind, inputs, outputs, _, divisor, root, *_ = collective
    match kind:
        case "all_reduce":
            by.all_reduce(transport, outputs[0], collective.reduction, divisor)
        case "reduce" if root is not None:
            by.reduce(transport, outputs[0], collective.reduction, divisor, root=root)
        case "reduce_scatter":
            by.reduce_scatter(transport, outputs[0], inputs, collective.reduction, divisor)
        case "all_gather":
            by.all_gather(transport, outputs, inputs[0])
        case "all_to_all":
            by.all_to_all(transport, outputs, inputs)
        case "gather" if root is not None:
            by.gather(transport, outputs, inputs[0], root=root)
        case "scatter" if root is not None:
            by.scatter(transport, outputs[0], inputs, root=root)
        case _:
            raise AssertionError(f"{kind} is not an exchange")
