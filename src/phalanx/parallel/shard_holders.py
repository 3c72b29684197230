"""Ranks that hold the optimizer's state of each shard of the parameters. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from phalanx.errors import RunFailedError


class ShardHolders:
    """Holders of each shard, by the numbers that the ranks started with.

    A shard begins with one rank, its owner. With `num_copies` above 1 other ranks hold it too, on
    another node where there is one, and make the same updates, so that the owner may die: the first
    holder that lives is the owner then.
    """

    def __init__(self, node_of: Mapping[int, int], *, num_copies: int) -> None:
        """node_of: the node of each rank, in their order, of which each owns a shard."""
        self._node_of, self._num_copies = dict(node_of), num_copies
        self._holders = [[rank] for rank in node_of]
        while (copy := self.next_copy(node_of)) is not None:
            self.add(*copy)

    @property
    def num_shards(self) -> int:
        return len(self._holders)

    def shards_of(self, rank: int) -> list[int]:
        """Return the shards that a rank holds."""
        return [shard for shard, holders in enumerate(self._holders) if rank in holders]

    def owner(self, shard: int, living: Collection[int]) -> int:
        """Return the first holder of a shard that lives.

        Raises: RunFailedError where all of them have died.
        """
        for rank in self._holders[shard]:
            if rank in living:
                return rank
        lost = ", ".join(map(str, sorted(self._holders[shard])))
        raise RunFailedError(
            f"part of the optimizer's state is lost: ranks {lost}, the only holders, died within a "
            "step; --restarts N resumes from a checkpoint"
        )

    def owners(self, living: Collection[int]) -> list[int]:
        """Return the owner of each shard. Raises: as `owner`."""
        return [self.owner(shard, living) for shard in range(self.num_shards)]

    def check(self, living: Collection[int]) -> None:
        """Check that each shard has an owner. Raises: as `owner`."""
        self.owners(living)

    def next_copy(self, living: Collection[int]) -> tuple[int, int] | None:
        """Return a shard that too few living ranks hold, and the one that is to hold it too: of
        another node if there is one, and which holds the fewest. None: there are enough."""
        for shard, holders in enumerate(self._holders):
            held = [rank for rank in holders if rank in living]
            others = [rank for rank in sorted(living) if rank in self._node_of and rank not in held]
            if held and others and len(held) < self._num_copies:
                nodes = {self._node_of[rank] for rank in held}
                return shard, min(others, key=lambda rank: self._load(rank, nodes))
        return None

    def add(self, shard: int, rank: int) -> None:
        """Note that a rank holds a shard from now on."""
        self._holders[shard].append(rank)

    def _load(self, rank: int, nodes: Collection[int]) -> tuple[bool, int]:
        return self._node_of[rank] in nodes, len(self.shards_of(rank))
