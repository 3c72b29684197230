"""Description of gradients that are not finite, from what every rank has found."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.errors import UserError
from phalanx.gradients.norms import (
    REMEDIES,
    NonFiniteGradients,
    describe_nonfinite,
    describe_nonfinite_sums,
)
from phalanx.parallel.run_group import RunGroup


class NonFiniteGradientsError(UserError):
    """Gradients that are not finite; all ranks that train together raise it."""

    def __init__(self, why: str) -> None:
        """why: step, ranks and a parameter."""
        super().__init__(f"{why}; {REMEDIES}")
        self.why = why


def describe_over_ranks(
    group: RunGroup,
    step: int,
    own: NonFiniteGradients | None,
    loss: float,
    summed: NonFiniteGradients,
    names: Sequence[str],
) -> str:
    """Return rank 0's description of all ranks' non-finite gradients. Collective.

    own: of this rank, before they were summed; None, on all ranks: not known any more. loss: of
    this rank. summed: of the gradients over the ranks. names: of the parameters.
    """
    rows = group.gather(own or NonFiniteGradients(-1, 0, loss))
    if rows is None:
        return group.share("")
    if own is None:
        return group.share(describe_nonfinite_sums(step, [row[2] for row in rows], summed, names))
    ranks = [NonFiniteGradients(int(row[0]), int(row[1]), row[2]) for row in rows]
    return group.share(describe_nonfinite(step, ranks, summed, names))
