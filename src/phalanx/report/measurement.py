"""Reading of what one `phalanx bench` has left: its document, and the events of its ranks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from phalanx.records.collectives import Bench, CallsEvent
from phalanx.records.events import Event
from phalanx.records.files import read_events, read_record, record_file
from phalanx.records.io import IoBench, IoEpochEvent
from phalanx.records.owner import has_died

DIED = "its process is gone: it ended without a word"
D = TypeVar("D", Bench, IoBench)
E = TypeVar("E", CallsEvent, IoEpochEvent)
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Measurement(Generic[D]):
    """The records of a measurement; without a document where they are missing or damaged."""

    name: str
    status: str
    error: str = ""
    bench: D | None = None
    ranks: Sequence[Sequence[Event]] = ()
    """Events of every rank."""


def read_measurement(
    folder: Path, kind: type[D], files_of: Callable[[D], Sequence[Path]], last: type[Event]
) -> Measurement[D]:
    """Read a folder; what is missing or damaged is told by the status.

    files_of: the files of all ranks, within the folder. last: event at the end of each.
    """
    if not record_file(folder, kind).exists():
        return Measurement(name=folder.name, status="missing")
    try:
        bench = read_record(folder, kind)
        ranks = {path: list(read_events(folder / path)) for path in files_of(bench)}
        if bench.outcome.status == "completed":
            _check_complete(folder, ranks, last)
    except (ValueError, OSError) as error:
        return Measurement(name=folder.name, status="damaged", error=str(error))
    is_dead = has_died(bench, folder)
    return Measurement(
        name=bench.bench,
        status="interrupted" if is_dead else bench.outcome.status,
        error=DIED if is_dead else bench.outcome.error or "",
        bench=bench,
        ranks=list(ranks.values()),
    )


def by_round(
    ranks: Sequence[Sequence[Event]], kind: type[E], key: Callable[[E], K]
) -> dict[K, dict[int, list[E]]]:
    """Return the events of a kind over all ranks, by what they measured and the round."""
    found: dict[K, dict[int, list[E]]] = {}
    for event in (event for events in ranks for event in events if isinstance(event, kind)):
        found.setdefault(key(event), {}).setdefault(event.round, []).append(event)
    return found


def _check_complete(folder: Path, ranks: Mapping[Path, Sequence[Event]], last: type[Event]) -> None:
    """Check that the file of every rank has exactly one event of `last`, at its end.

    Raises: ValueError naming the files.
    """
    found = [(path, _damage(events, last)) for path, events in ranks.items()]
    texts = [f"{path} {damage}" for path, damage in found if damage]
    if texts:
        raise ValueError(f"{folder} is damaged: {'; '.join(texts)}")


def _damage(events: Sequence[Event], last: type[Event]) -> str | None:
    if not events:
        return "is empty"
    if not isinstance(events[-1], last):
        return "ends before the run did"
    count = sum(isinstance(event, last) for event in events)
    return f"holds the end of the run {count} times" if count > 1 else None
