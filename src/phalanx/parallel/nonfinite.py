"""Description of gradients that are not finite, from what every rank has found."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from phalanx.errors import UserError
from phalanx.gradients.norms import (
    REMEDIES,
    NonFiniteGradients,
    describe_nonfinite,
    describe_nonfinite_sums,
    find_nonfinite,
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


def describe_parts_over_ranks(
    group: RunGroup, step: int, found: NonFiniteGradients, names: Sequence[str]
) -> str:
    """Return rank 0's description of non-finite sums, of which each rank has its part. Collective.

    found: in this rank's part, with its loss.
    """
    rows = group.gather(found)
    if rows is None:
        return group.share("")
    last, number = max(int(row[0]) for row in rows), sum(int(row[1]) for row in rows)
    summed = NonFiniteGradients(last, number, 0.0)
    return group.share(describe_nonfinite_sums(step, [row[2] for row in rows], summed, names))


def describe_sums_over_ranks(
    group: RunGroup,
    step: int,
    loss: float,
    sums: Sequence[Tensor | None],
    names: Sequence[str],
) -> str:
    """Return rank 0's description of non-finite sums, by the losses of the ranks. Collective.

    loss: of this rank. sums: of the gradients over the ranks, as `find_nonfinite` takes them.
    """
    rows = group.gather([loss])
    if rows is None:
        return group.share("")
    losses = [row[0] for row in rows]
    return group.share(describe_nonfinite_sums(step, losses, find_nonfinite(sums, 0.0), names))
