"""Division of the micro-batches of a global batch among the ranks that compute. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from phalanx.comm.layout import share_of


class Division:
    """Micro-batches of each rank, by the numbers that the ranks started with: the same on all."""

    def __init__(self, num_micro_batches: int, num_ranks: int) -> None:
        self.num_micro_batches = num_micro_batches
        self.is_in_step = False
        """True if a step has begun whose sums are not known yet."""
        self._owned = self._evenly(range(num_ranks))

    def _evenly(self, ranks: Sequence[int]) -> dict[int, tuple[int, ...]]:
        size, number = len(ranks), self.num_micro_batches
        return {rank: tuple(share_of(at, size, number)) for at, rank in enumerate(ranks)}

    @property
    def owners(self) -> list[tuple[int, ...]]:
        """Micro-batches of each of the ranks that are left, in their order."""
        return list(self._owned.values())

    def of(self, rank: int) -> tuple[int, ...]:
        """Return the micro-batches of a rank, by the number that it started with."""
        return self._owned[rank]

    def assign(self, owners: Sequence[Sequence[int]]) -> None:
        """Give the ranks that are left these micro-batches, in their order: between two steps."""
        assert not self.is_in_step, "what was computed of a step stays where it is"
        self._owned = dict(zip(self._owned, map(tuple, owners), strict=True))

    def divide_evenly(self, ranks: Sequence[int], living: Collection[int]) -> None:
        """Divide all among `ranks`, of which only the `living` are left."""
        self._owned = self._evenly(ranks)
        self.pass_on(living)

    def pass_on(self, living: Collection[int]) -> None:
        """Divide those of lost ranks among the `living`, who keep theirs: one by one to whoever has
        the fewest."""
        found = {rank: list(own) for rank, own in self._owned.items() if rank in living}
        lost = sorted(n for rank, own in self._owned.items() if rank not in living for n in own)
        for number in lost:
            min(found.values(), key=len).append(number)
        self._owned = {rank: tuple(sorted(numbers)) for rank, numbers in found.items()}
