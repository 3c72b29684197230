"""Records of `phalanx bench io`: `io.json`, and a folder `ranks-<n>` for each number of ranks.

Such a folder holds a `rank-<r>.jsonl` for each rank. Raw times stand in the files of the ranks;
rates and utilisation are computed by their readers.
Times in seconds, sizes in bytes.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from phalanx.records.events import Event
from phalanx.records.schema import JobRecord

Format = Literal["files", "tar", "npy", "hdf5", "parquet"]
Loader = Literal["phalanx", "torch", "torch-batched", "read", "read-kept"]
Cache = Literal["warm", "cold"]
ReaderKind = Literal["threads", "processes"]
READS: tuple[Loader, ...] = ("read", "read-kept")  # one process, no batches

Positive = Annotated[int, msgspec.Meta(ge=1)]
Duration = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes that a training reads and time that it computes, independent of the data's format."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=60)]
    source: str  # source of the numbers
    num_files: Positive
    samples_per_file: Positive
    sample_bytes: Annotated[int, msgspec.Meta(ge=8)]  # mean size
    sample_bytes_deviation: Annotated[int, msgspec.Meta(ge=0)] = 0  # standard deviation
    batch_size: Positive  # samples per accelerator
    compute_s: dict[str, Duration]  # seconds per step, by accelerator
    utilisation_floor: Share | None = None  # a loader that keeps the accelerator busy reaches it

    @property
    def num_samples(self) -> int:
        return self.num_files * self.samples_per_file


class IoSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the measurement, after every default was filled in and everything was scaled."""

    profile: Profile
    accelerator: str
    scaled: list[str]  # differences from the profile, a phrase each
    num_samples: int  # samples per rank
    sample_bytes: int
    batch_size: int
    steps: int  # steps per epoch with compute
    compute_s: float  # seconds per step
    formats: list[Format]
    loaders: list[Loader]
    readers: list[int]
    kinds: list[ReaderKind]
    depths: list[int]
    caches: list[Cache]
    ranks: list[int]
    runs: int
    drops_names: bool = False  # names and inodes were dropped before cold epochs, too
    stall_s: float  # a wait longer than this is a stall


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """Storage of the data. None where the system does not report it."""

    file_system: str | None
    device: str | None
    free_bytes: int


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """The data of one format, over all ranks' parts."""

    format: Format
    num_files: int
    bytes: int  # size of the files
    write_s: float | None  # None: it existed already


class IoBench(JobRecord, frozen=True, kw_only=True):
    """`io.json`: a measurement of loading."""

    bench: str  # name of the folder
    setting: IoSetting
    storage: Storage
    generated: list[Generated] = msgspec.field(default_factory=list)
    left_out: dict[str, str] = msgspec.field(default_factory=dict)
    """Formats and loaders that cannot be measured here, and why."""


class IoCell(msgspec.Struct, frozen=True, kw_only=True):
    """One way of loading: format, loader, readers, cache, ranks."""

    format: Format
    loader: Loader
    kind: ReaderKind
    readers: int
    depth: int
    cache: Cache
    ranks: int


class IoEpochEvent(Event, frozen=True, kw_only=True, tag="io_epoch"):
    """One epoch of one way of loading, as this rank saw it."""

    cell: IoCell
    round: int  # 0 warms up
    compute_s: float  # seconds per step; 0: nothing is computed, the loader runs flat out
    samples: int
    bytes: int
    total_s: float  # time between the barrier and the end of the last batch
    waits_s: list[float]  # one a batch; the first is the time to the first batch
    resident: float | None = None  # share of the files' pages that were in memory before
    wrong: int = 0  # samples other than the requested ones


class IoProgressEvent(Event, frozen=True, kw_only=True, tag="io_progress"):
    """Announcement of what rank 0 does next, for the progress line on the terminal."""

    done: int
    total: int
    doing: str


class IoEndEvent(Event, frozen=True, kw_only=True, tag="io_end"):
    """The last line of a rank that came to the end."""

    peak_memory_bytes: int
