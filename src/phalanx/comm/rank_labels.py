"""Labels by which errors name the ranks of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RankLabels:
    """Labels of the ranks of one group: the number, and the host where the job has several."""

    members: tuple[int, ...]
    """Their ranks in the world."""
    hosts: tuple[str, ...] = ()
    """Their host names; none: errors leave them out."""
    original_ranks: tuple[int, ...] = ()
    """Their ranks in the world that they started in, where it has lost ranks since."""

    def short(self, rank: int) -> str:
        """Return `1`, or `1 (n0)`."""
        return self._label(rank, [])

    def full(self, rank: int) -> str:
        """Return the same with the world rank where it is another one: `1 (world 3, n0)`."""
        number, original = self._number(rank), self._original(rank)
        return self._label(rank, [] if number == original else [f"world {original}"])

    def of_world_rank(self, world_rank: int) -> str:
        """Return `3 (n0)` for a member whose world rank is 3."""
        rank = self.members.index(world_rank)
        return self._label(rank, [], self._original(rank))

    def subset(self, ranks: Sequence[int]) -> RankLabels:
        """Return the labels of a subgroup. ranks: of this group, in the order of the subgroup."""
        return RankLabels(
            members=tuple(self.members[rank] for rank in ranks),
            hosts=tuple(self.hosts[rank] for rank in ranks) if self.hosts else (),
            original_ranks=tuple(map(self._original, ranks)) if self.original_ranks else (),
        )

    def _label(self, rank: int, details: list[str], number: int | None = None) -> str:
        """number: shown in place of `rank`."""
        shown = self._number(rank) if number is None else number
        details = [*details, self.hosts[rank]] if self.hosts else details
        return f"{shown} ({', '.join(details)})" if details else f"{shown}"

    def _number(self, rank: int) -> int:
        """Return the number of a rank of the world, or of the group that is a part of it."""
        is_world = self.members == tuple(range(len(self.members)))
        return self._original(rank) if is_world else rank

    def _original(self, rank: int) -> int:
        return self.original_ranks[rank] if self.original_ranks else self.members[rank]


def hosts_to_name(hosts: Sequence[str]) -> tuple[str, ...]:
    """Return `hosts`, of all ranks, where they differ; nothing where naming them tells nothing."""
    return tuple(hosts) if len(set(hosts)) > 1 else ()
