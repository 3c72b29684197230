"""Split of a chain of layers into stages. Pure; needs no PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from phalanx.errors import UserError


def cut_evenly(
    costs: Sequence[float], has_parameters: Sequence[bool], num_stages: int
) -> list[range]:
    """Return the layers of each stage, in order: the cut whose most expensive stage costs least.

    costs: of each layer, in seconds or in operations; has_parameters: of each layer. Every stage
    gets a layer with parameters; those without go where they fit. Exact, by dynamic programming.
    Of equally good cuts the one whose first stage is longest and whose others are cut by the same
    rule.
    Cost:   layers² · stages.
    Raises: UserError when there are fewer layers with parameters than stages.
    """
    layers = len(costs)
    assert layers == len(has_parameters), f"{layers} costs of {len(has_parameters)} layers"
    if sum(has_parameters) < num_stages:
        raise UserError(
            f"the pipeline has {num_stages} stages, but the model {sum(has_parameters)} layers "
            "with parameters to split between: use fewer ranks or stages per rank, or more --layers"
        )

    @cache
    def best(start: int, stages: int) -> tuple[float, int]:
        """The least possible highest cost of the layers from `start` on, cut into `stages`, and
        where the first of these ends; infinite when some stage would have no parameters."""
        if stages == 1:
            fits = any(has_parameters[start:])
            return (sum(costs[start:]) if fits else float("inf")), layers
        found = float("inf"), layers
        cost = 0.0
        for end in range(start + 1, layers):
            cost += costs[end - 1]
            if any(has_parameters[start:end]):
                highest = max(cost, best(end, stages - 1)[0])
                if highest <= found[0]:
                    found = highest, end
        return found

    cut, start = [], 0
    for stages in range(num_stages, 0, -1):
        end = best(start, stages)[1]
        cut.append(range(start, end))
        start = end
    return cut
