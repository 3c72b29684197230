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
    own: NonFiniteGradients,
    summed: NonFiniteGradients,
    names: Sequence[str],
) -> str:
    """Return rank 0's description of all ranks' non-finite gradients. Collective.

    own: of this rank, before they were summed. names: of the parameters.
    """
    rows = group.gather(own)
    if rows is None:
        return group.share("")
    ranks = [NonFiniteGradients(int(row[0]), int(row[1]), row[2]) for row in rows]
    return group.share(describe_nonfinite(step, ranks, summed, names))


def describe_sums_over_ranks(
    group: RunGroup, step: int, loss: float, summed: NonFiniteGradients, names: Sequence[str]
) -> str:
    """Return rank 0's description of non-finite sums, by the losses of the ranks. Collective.

    loss: of this rank. summed: of the gradients over the ranks.
    """
    rows = group.gather([loss])
    if rows is None:
        return group.share("")
    losses = [row[0] for row in rows]
    return group.share(describe_nonfinite_sums(step, losses, summed, names))
