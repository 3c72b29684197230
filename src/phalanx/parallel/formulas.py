"""Theory of data parallelism: bytes that a rank sends and stores. Pure.

Ψ is the number of trained values, p that of the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phalanx.gradients.optimizer_update import STATE_NAMES, OptimizerConfig
from phalanx.records.events import ExpectedCosts

if TYPE_CHECKING:
    from torch import Tensor


def all_reduce_formula(name: str, rank: int, size: int, itemsize: int) -> str:
    """Return the formula, to be read, of what the reducer `name` has `rank` send and receive."""
    whole = f"{itemsize}Ψ"
    match name:
        case "naive":
            return f"(p−1) · {whole}" if rank == 0 else whole
        case "tree":
            return f"{whole} for each neighbour in the tree"
        case "halving" if size & (size - 1):
            power = 1 << size.bit_length() - 1
            return f"2(q−1)/q · {whole} with q = {power}, {whole} between q and the others"
        case _:
            return f"2(p−1)/p · {whole}"


def data_parallel_state(rule: OptimizerConfig, itemsize: int, num_bytes: int) -> tuple[int, str]:
    """Return the bytes of unsharded parameters, gradients and optimizer state, and their formula.

    num_bytes: of the parameters, whose values have `itemsize` bytes each.
    """
    quantities = len(STATE_NAMES[rule.kind])
    formula = " + ".join(f"{n * itemsize}Ψ" for n in (1, 1, quantities) if n)
    return (2 + quantities) * num_bytes, formula


def data_parallel_costs(
    rule: OptimizerConfig,
    parameters: Sequence[Tensor],
    sent_bytes: float | None = 0,
    received_bytes: float | None = 0,
    traffic_formula: str | None = None,
) -> ExpectedCosts:
    """Return the costs of a rank that holds the whole model; the traffic is given."""
    num_bytes = sum(parameter.nbytes for parameter in parameters)
    state_bytes, formula = data_parallel_state(rule, parameters[0].element_size(), num_bytes)
    return ExpectedCosts(
        sent_bytes=sent_bytes,
        received_bytes=received_bytes,
        traffic_formula=traffic_formula,
        state_bytes=state_bytes,
        state_formula=formula,
    )
