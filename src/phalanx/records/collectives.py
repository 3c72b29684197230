"""Records of `phalanx bench collectives`: `bench.json`, and a `rank-<r>.jsonl` for each rank.

Raw times stand in the files of the ranks that measured them; medians and bandwidths are computed by
their readers. Times in seconds, sizes in bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from phalanx.records.events import Event
from phalanx.records.schema import JobRecord

Collective = Literal[
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier"
]
Kernel = Literal["copy", "add"]


class BenchSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the measurement, after every default was filled in."""

    ranks: int
    collectives: list[Collective]
    paths: list[str]
    sizes_bytes: list[int]  # requested sizes; a rank's buffer is a whole number of elements
    dtype: str
    op: str
    crowd: int = 0  # busy processes beside the ranks


def beside_crowd(num_processes: int) -> str:
    """Return the crowd in words for titles; empty without a crowd."""
    if not num_processes:
        return ""
    return f" beside {num_processes} busy process{'es' * (num_processes > 1)}"


class Bench(JobRecord, frozen=True, kw_only=True):
    """`bench.json`: a measurement of collectives."""

    bench: str  # name of the folder
    setting: BenchSetting


class JoinedEvent(Event, frozen=True, kw_only=True, tag="joined"):
    """A rank found the others."""

    rank: int
    hostname: str
    process_id: int
    library: str  # the MPI library's own words
    startup_s: float


class PathStateEvent(Event, frozen=True, kw_only=True, tag="path"):
    """Availability of a path for a collective on this machine; written by rank 0 for all."""

    path: str  # word of the command line
    label: str  # display name: `Open MPI` where the path is `mpi`
    collective: Collective
    obstacle: str | None  # why it is not measured


class CallsEvent(Event, frozen=True, kw_only=True, tag="calls"):
    """Calls of one path in one round, as this rank saw them. Other paths come in between rounds."""

    collective: Collective
    path: str
    count: int  # elements of the larger of a rank's two buffers
    bytes: int
    round: int
    calls_a_time: int = 1  # timed together; `times_s` are then means
    times_s: list[float]  # one a call, each begun together with the other ranks
    wrong: int  # wrong elements in this rank's results


class TrafficEvent(Event, frozen=True, kw_only=True, tag="traffic"):
    """Passes over this rank's own memory while every rank does the same."""

    kernel: Kernel
    working_set_bytes: int  # touched by this rank in a pass
    traffic_bytes: int  # read and written by this rank in a pass
    times_s: list[float]  # one per pass


class RoundTripsEvent(Event, frozen=True, kw_only=True, tag="round_trips"):
    """A flag in shared memory, from rank 0 to rank 1 and back."""

    means: str  # name of the code path
    times_s: list[float]  # one per round trip, each the mean of many


class ProgressEvent(Event, frozen=True, kw_only=True, tag="progress"):
    """Announcement of what rank 0 does next, for the progress line on the terminal."""

    done: int
    total: int
    doing: str


class MeasuredEvent(Event, frozen=True, kw_only=True, tag="measured"):
    """The last line of a rank that came to the end."""

    wrong: int  # wrong elements in all results
    peak_memory_bytes: int
    # While paths ran that never yield their core:
    watched_s: float = 0.0
    preempted: int = 0  # times that another process took this rank's core
