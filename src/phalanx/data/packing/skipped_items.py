"""Files and members that are not packed: counted and named, so that nothing is lost silently."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_NAMED = 10


@dataclass
class SkippedItems:
    """Files or members that are not packed, for one reason."""

    reason: str
    names: list[str] = field(default_factory=list)
    """The first ones."""
    count: int = 0

    def add(self, name: object) -> None:
        self.count += 1
        if len(self.names) < MAX_NAMED:
            self.names.append(str(name))

    def __str__(self) -> str:
        more = f" and {self.count - len(self.names):,} more" if self.count > len(self.names) else ""
        return f"{self.count:,} {self.reason}: {', '.join(self.names)}{more}"


def reported(groups: Iterable[SkippedItems]) -> list[SkippedItems]:
    """Return the groups that hold anything."""
    return [group for group in groups if group.count]
