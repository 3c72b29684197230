"""The last collectives of a rank, `last-collectives-<rank>.json`, written when it is stuck.

Every rank numbers the collectives of a group, and all call the same ones in the same order. So the
numbers say who is behind, and what it was that the others wait in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from phalanx.records.files import DECODE_ERRORS, write_atomically

DUMP_DIR = "PHALANX_DUMP_DIR"
"""Folder for these files; else they go to that of a run's records."""


class LastCall(msgspec.Struct, frozen=True, kw_only=True):
    number: int  # counted from 1 in each group
    name: str  # "all_reduce"
    call: str  # arguments that ranks must agree on: "all_reduce(float32, 10 elements, SUM)"
    way: str  # "shared memory", "messages" or the algorithm that was asked for
    began_ns: int | None  # time on the clock of `now_ns`; within some milliseconds
    is_done: bool


class GroupCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The last collectives of one rank in one group, the oldest first."""

    group: str
    members: list[int]  # ranks of the world
    calls: list[LastCall]

    @property
    def begun(self) -> int:
        return self.calls[-1].number if self.calls else 0

    @property
    def finished(self) -> int:
        """The last one of which all is done; they end in the order in which they begin."""
        return max((call.number for call in self.calls if call.is_done), default=0)

    def named(self, number: int) -> str:
        """A collective that is remembered, as one reads it."""
        names = {call.number: call.name for call in self.calls}
        return f"{names[number]} number {number}" if number in names else f"number {number}"


class LastCollectives(msgspec.Struct, frozen=True, kw_only=True):
    """`last-collectives-<rank>.json`."""

    rank: int
    hostname: str
    process_id: int
    written_at: str  # ISO 8601, UTC
    now_ns: int  # time on the rank's clock
    reason: str
    groups: list[GroupCalls]


def last_collectives_file(folder: Path, rank: int | str) -> Path:
    """rank: `*` for the pattern of all."""
    return folder / f"last-collectives-{rank}.json"


def write_last_collectives(folder: Path, last: LastCollectives) -> Path:
    """Groups that the same process has written of before, and that `last` is silent about, stay;
    so does the first reason."""
    path = last_collectives_file(folder, last.rank)
    earlier = _read(path)
    if earlier is not None and earlier.process_id == last.process_id:
        known = {(group.group, *group.members) for group in last.groups}
        others = [g for g in earlier.groups if (g.group, *g.members) not in known]
        last = msgspec.structs.replace(last, reason=earlier.reason, groups=[*last.groups, *others])
    content = msgspec.json.format(msgspec.json.encode(last), indent=1) + b"\n"
    write_atomically(path, content, synced=False)
    return path


def read_last_collectives(folder: Path) -> dict[int, LastCollectives]:
    """Read the files of all ranks that wrote one, by rank; skip damaged ones."""
    found = {}
    for path in folder.glob("last-collectives-*.json"):
        number = re.fullmatch(r"last-collectives-(\d+)\.json", path.name)
        last = _read(path) if number else None
        if last is not None:
            found[last.rank] = last
    return dict(sorted(found.items()))


def describe_stuck_ranks(lasts: Mapping[int, LastCollectives]) -> str | None:
    """Describe the ranks that are behind and what they last finished, in one sentence.

    Where none is behind, the collective that all were in; None where nothing is known.
    """
    groups: dict[tuple[str, tuple[int, ...]], dict[int, GroupCalls]] = {}
    for rank, last in lasts.items():
        for group in last.groups:
            groups.setdefault((group.group, tuple(group.members)), {})[rank] = group
    sentences = [
        sentence
        for (_, members), of_ranks in sorted(groups.items(), key=_newest, reverse=True)
        if (sentence := _behind(members, of_ranks))
    ]
    return "; ".join(sentences[:2]) if sentences else _common_collective(groups)


def _newest(item: tuple[object, dict[int, GroupCalls]]) -> int:
    """Return the begin of a group's last collective: within the ticks of the kernels' clock, and
    clocks of several machines are not aligned."""
    calls = [call for group in item[1].values() for call in group.calls[-1:]]
    return max((call.began_ns or 0 for call in calls), default=0)


def _behind(members: Sequence[int], of_ranks: Mapping[int, GroupCalls]) -> str | None:
    """Describe the ranks that are behind; None where all that wrote a file have begun as much."""
    furthest = max(group.begun for group in of_ranks.values())
    first = next(group for group in of_ranks.values() if group.begun == furthest)
    parts = []
    for rank, group in of_ranks.items():
        missing = furthest - group.begun
        if missing:
            did = f"it last finished {group.named(group.finished)}" if group.finished else ""
            parts.append(
                f"rank {rank} is {missing} collective{'s' * (missing != 1)} behind: "
                + (did or "it has finished none")
            )
    if not parts:
        return None
    silent = [rank for rank in members if rank not in of_ranks]
    text = (
        f"{' and '.join(parts)} of group {first.group}; the others are in {first.named(furthest)}"
    )
    return text + (f" (rank {_listed(silent)} left no record)" if silent else "")


def _common_collective(
    groups: Mapping[tuple[str, tuple[int, ...]], dict[int, GroupCalls]],
) -> str | None:
    """Describe the collective that all were in, and the ranks without a file."""
    waited_in = [item for item in groups.items() if _waiting(item[1])]
    newest = max(waited_in, key=_newest, default=None)
    if newest is None:
        return None
    (_, members), of_ranks = newest
    silent = [rank for rank in members if rank not in of_ranks]
    if not silent:
        return None
    waiting = _waiting(of_ranks)
    group = of_ranks[waiting[0]]
    return (
        f"rank {_listed(silent)} left no record; rank {_listed(waiting)} waited in "
        f"{group.named(group.begun)} of group {group.group}"
    )


def _waiting(of_ranks: Mapping[int, GroupCalls]) -> list[int]:
    return [r for r, group in of_ranks.items() if group.begun and not group.calls[-1].is_done]


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _read(path: Path) -> LastCollectives | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=LastCollectives)
    except (OSError, *DECODE_ERRORS):
        return None


_of_run: Path | None = None
"""Not a variable of the environment, which programs that this process starts would inherit."""


def dump_into(folder: Path) -> None:
    """Set the folder for these files, that of a run's records, for this process alone."""
    global _of_run
    _of_run = folder


def dump_folder() -> Path | None:
    """Return the folder for these files, set by the run or the user; None: neither has."""
    folder = os.environ.get(DUMP_DIR)
    return _of_run or (Path(folder) if folder else None)
