"""The options of `phalanx bench io`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from phalanx.bench.io.scaling import Workload, read_profile, scale_workload
from phalanx.bench.sizes import parse_size
from phalanx.errors import UserError
from phalanx.records.configuration import (
    RecordedOptions,
    check_counts,
    check_positive,
    check_values,
)
from phalanx.records.io import Cache, Format, Loader, Profile, ReaderKind

FORMATS: tuple[Format, ...] = get_args(Format)
CACHES: tuple[Cache, ...] = get_args(Cache)
Rival = Literal["read", "read-kept", "torch", "torch-batched"]
MIN_DATA_BYTES = 2**16


@dataclass(frozen=True, kw_only=True)
class IoConfig(RecordedOptions):
    """Options of the benchmark. The defaults write 1.3 GB, and take four minutes on two cores."""

    profile: str = "resnet50"
    """unet3d, resnet50, cosmoflow, bert, or a YAML file of the same form."""

    accelerator: str | None = None
    """Accelerator to emulate: a100, h100 or v100, if the profile has it. Default: its first."""

    formats: tuple[Format, ...] = FORMATS
    """Formats: files (one per sample), tar (shards), npy (memory maps), hdf5, parquet."""

    readers: tuple[int, ...] = (2,)
    """Numbers of readers that prefetch batches; 0 loads a batch when it is requested."""

    depth: tuple[int, ...] = (4,)
    """Prefetch depths: batches that may wait for the accelerator."""

    kinds: tuple[ReaderKind, ...] = ("threads",)
    """Kinds of readers: threads, processes."""

    cache: tuple[Cache, ...] = CACHES
    """warm: files in the page cache; cold: dropped from it before each epoch."""

    drop_names: bool = False
    """Drop cached names and inodes of all files before cold epochs, too. Needs root, and slows down
    other programs on this machine."""

    ranks: tuple[int, ...] = (1,)
    """Numbers of ranks, each with its own data (weak scaling). More than one needs MPI."""

    against: tuple[Rival, ...] = ("read", "torch")
    """Baselines: read (one process reads the same files, as dd does), read-kept (the same into as
    much memory as a loader's batches take), torch (PyTorch's DataLoader over the same shards),
    torch-batched (the same, fetching full batches)."""

    runs: int = 5
    """Measured epochs of each configuration, after one warm-up epoch."""

    data_bytes: str = "256MB"
    """Size of the data of one rank in one format."""

    samples: int | None = None
    """Samples per rank. Default: as many as fit into --data-bytes, at most 16,384."""

    steps: int | None = None
    """Steps per epoch with compute. Default: 2.5 s of compute, at least 4."""

    batch_size: int | None = None
    """Samples per rank and step. Default: from the profile."""

    sample_scale: float | None = None
    """Factor on the size of a sample. Default: 1, or smaller if four batches do not fit."""

    compute_scale: float | None = None
    """Factor on the compute time per step, which is otherwise scaled with the bytes of a batch, so
    that the required bytes/s are those of the real accelerator."""

    stall_ms: float = 1.0
    """Wait for a batch that counts as a stall."""

    data_dir: Path | None = None
    """Folder of the data, written if missing. Default: in the folder of the records."""

    keep: bool = False
    """Keep the data for the next run."""

    output: Path | None = None
    """Folder of the records. Default: a new one under runs/bench."""

    timeout_s: float = 300.0
    """Timeout of ranks that wait for each other."""

    def __post_init__(self) -> None:
        check_values(self, "formats", "readers", "depth", "kinds", "cache", "ranks")
        check_counts(self, 0, "readers")
        check_counts(self, 1, "depth", "ranks", "runs", "samples", "steps", "batch_size")
        check_positive(self, "sample_scale", "compute_scale", "stall_ms", "timeout_s")
        batch = self.batch_size or self.training_profile.batch_size
        if self.samples and self.samples < (self.steps or 1) * batch:
            raise UserError(
                f"--samples {self.samples} are fewer than --steps {self.steps or 1} take with "
                f"batches of {batch}"
            )
        _ = self.chosen_accelerator, self.num_data_bytes

    @property
    def training_profile(self) -> Profile:
        return read_profile(self.profile)

    @property
    def chosen_accelerator(self) -> str:
        known = self.training_profile.compute_s
        if self.accelerator is not None and self.accelerator not in known:
            raise UserError(
                f"--accelerator {self.accelerator}: profile {self.training_profile.name} has a "
                f"compute time for {', '.join(known)}"
            )
        return self.accelerator or next(iter(known))

    @property
    def num_data_bytes(self) -> int:
        try:
            num_bytes = parse_size(self.data_bytes)
        except UserError as error:
            raise UserError(str(error).replace("--sizes", "--data-bytes")) from error
        if num_bytes < MIN_DATA_BYTES:
            raise UserError(f"--data-bytes {self.data_bytes}: the minimum is 64KB")
        return num_bytes

    @property
    def workload(self) -> Workload:
        return scale_workload(
            self.training_profile,
            self.chosen_accelerator,
            data_bytes=self.num_data_bytes,
            samples=self.samples,
            steps=self.steps,
            batch_size=self.batch_size,
            sample_scale=self.sample_scale,
            compute_scale=self.compute_scale,
        )

    @property
    def loaders(self) -> tuple[Loader, ...]:
        return ("phalanx", *self.against)

    @property
    def title(self) -> str:
        """One-line summary of the measurement, the first line of a log."""
        work = self.workload
        return (
            f"{self.training_profile.name} on {self.chosen_accelerator}: {work.num_samples:,} "
            f"samples of {work.sample_bytes:,} B per rank, batch {work.batch_size}, "
            f"{1e3 * work.compute_s:.3g} ms per step ({work.demand_bytes_per_s / 1e6:,.3g} MB/s "
            f"required): {', '.join(self.formats)}"
        )
