"""Deaths of ranks, drawn from a seed: each within a moment of the training, or at any time."""

import random
from typing import NamedTuple

MOMENTS = {
    "time": 1, "batch": 60, "sum": 30, "optimizer": 30, "checkpoint": 12, "recovery": 1,
    "evaluation": 20, "end": 1,
}  # fmt: skip
"""How many of each a rank has at least."""
LONGEST_S = {"time": 0.6, "checkpoint": 0.02, "recovery": 0.03, "end": 0.03}
BRIEF_S = 0.002
"""Of other moments."""


class Death(NamedTuple):
    """A rank's, which may have ended before."""

    rank: int
    moment: str
    before: int
    """Number of such moments that it survives."""
    after_s: float = 0.0
    """From the beginning of the moment."""


def drawn(seed: int, num_ranks: int) -> list[Death]:
    """Draw 1 to 3 deaths. From seed to seed the first one goes through all moments."""
    draw, names = random.Random(seed), list(MOMENTS)
    moments = [names[seed % len(names)], *draw.choices(names, k=draw.randrange(3))]
    if moments[0] == "recovery":  # from the death of another
        moments[1:2] = [draw.choice(["time", "batch", "sum", "optimizer"])]
    ranks = draw.sample(range(num_ranks), len(moments))
    return [
        Death(rank, moment, draw.randrange(MOMENTS[moment]), _seconds(draw, moment))
        for rank, moment in zip(ranks, moments, strict=True)
    ]


def _seconds(draw: random.Random, moment: str) -> float:
    """At once in one case of three: the moment is over in microseconds."""
    longest = LONGEST_S.get(moment, BRIEF_S)
    return draw.uniform(0, longest) if moment == "time" or draw.randrange(3) else 0.0
