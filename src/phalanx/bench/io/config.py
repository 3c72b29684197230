"""The options of `phalanx bench io`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from phalanx.bench.io.profile import read_profile
from phalanx.bench.io.scaling import Scale, Workload, fit
from phalanx.bench.sizes import parse_size
from phalanx.errors import UserError
from phalanx.records.io import Cache, Format, Loader, Profile, ReaderKind

FORMATS: tuple[Format, ...] = get_args(Format)
CACHES: tuple[Cache, ...] = get_args(Cache)
Rival = Literal["read", "read-kept", "torch", "torch-batched"]
RIVALS: tuple[Rival, ...] = get_args(Rival)
MIN_DATA_BYTES = 2**16


@dataclass(frozen=True, kw_only=True)
class IoConfig:
    """Options of the benchmark. The defaults write 1.3 GB, and take four minutes on two cores."""

    profile: str = "resnet50"
    """unet3d, resnet50, cosmoflow, bert, or a YAML file of the same form."""

    accelerator: str | None = None
    """Whose compute time is emulated: a100, h100, v100, as the profile has them. Default: its
    first."""

    formats: tuple[Format, ...] = FORMATS
    """How the data is stored: files (one a sample), tar (shards), npy (memory maps), hdf5,
    parquet."""

    readers: tuple[int, ...] = (2,)
    """Numbers of readers that load batches ahead; 0 loads when a batch is asked for."""

    depth: tuple[int, ...] = (4,)
    """Numbers of batches that may wait for the accelerator."""

    kinds: tuple[ReaderKind, ...] = ("threads",)
    """What readers are: threads, processes."""

    cache: tuple[Cache, ...] = CACHES
    """warm: the files are in memory; cold: the system was asked to drop them before each epoch."""

    drop_names: bool = False
    """Before cold epochs have the system forget names and inodes of all its files, too. Needs root,
    and slows down whoever else is on this machine."""

    ranks: tuple[int, ...] = (1,)
    """Numbers of ranks, each with data of its own (weak scaling). More than one needs MPI."""

    against: tuple[Rival, ...] = ("read", "torch")
    """What to measure beside the loader: read (one process reads the same files, as dd does),
    read-kept (the same into as much memory as a loader's batches take), torch (PyTorch's DataLoader
    over the same shards), torch-batched (the same, fetching whole batches)."""

    runs: int = 5
    """Measured epochs of each way, after one that warms up."""

    data_bytes: str = "256MB"
    """Room for the samples of one rank in one format."""

    samples: int | None = None
    """Samples of a rank. Default: as many as find room, 16,384 at most."""

    steps: int | None = None
    """Steps of an epoch with compute. Default: 2.5 s of compute, 4 at least."""

    batch_size: int | None = None
    """Samples of a rank's step. Default: as the profile has it."""

    sample_scale: float | None = None
    """Factor on the size of a sample. Default: 1, or smaller where no four batches find room."""

    compute_scale: float | None = None
    """Factor on the compute time of a step, which follows the bytes of a batch otherwise: as many
    a second are asked for as of the real accelerator."""

    stall_ms: float = 1.0
    """A wait for a batch longer than this is a stall."""

    data_dir: Path | None = None
    """Where the data is written, or found again. Default: in the folder of the records."""

    keep: bool = False
    """Leave the data there for the next time."""

    output: Path | None = None
    """Folder of the records. Default: a new one under runs/bench."""

    timeout_s: float = 300.0
    """A measurement whose ranks have waited this long for each other has failed."""

    def __post_init__(self) -> None:
        for name in ("formats", "readers", "depth", "kinds", "cache", "ranks"):
            values = getattr(self, name)
            if not values:
                raise UserError(f"--{name} needs at least one value")
            if len(set(values)) != len(values):
                raise UserError(f"--{name} names a value twice: {' '.join(map(str, values))}")
        self._at_least("readers", 0)
        for name in ("depth", "ranks", "runs", "samples", "steps", "batch_size"):
            self._at_least(name, 1)
        for name in ("sample_scale", "compute_scale", "stall_ms", "timeout_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"--{name.replace('_', '-')} must be more than 0, not {value:g}")
        batch = self.batch_size or self.facts.batch_size
        if self.samples and self.samples < (self.steps or 1) * batch:
            raise UserError(
                f"--samples {self.samples} are fewer than --steps {self.steps or 1} take with "
                f"batches of {batch}"
            )
        _ = self.chosen_accelerator, self.scale

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        values = value if isinstance(value, tuple) else (value,)
        for one in values:
            if one is not None and one < least:
                option = name.replace("_", "-")
                raise UserError(f"--{option} must be at least {least}, not {one}")

    @property
    def facts(self) -> Profile:
        return read_profile(self.profile)

    @property
    def chosen_accelerator(self) -> str:
        known = self.facts.compute_s
        if self.accelerator is not None and self.accelerator not in known:
            raise UserError(
                f"--accelerator {self.accelerator}: profile {self.facts.name} has a compute time "
                f"for {', '.join(known)}"
            )
        return self.accelerator or next(iter(known))

    @property
    def scale(self) -> Scale:
        try:
            num_bytes = parse_size(self.data_bytes)
        except UserError as error:
            raise UserError(str(error).replace("--sizes", "--data-bytes")) from error
        if num_bytes < MIN_DATA_BYTES:
            raise UserError(f"--data-bytes {self.data_bytes}: 64KB is the least")
        return Scale(
            data_bytes=num_bytes,
            num_samples=self.samples,
            steps=self.steps,
            batch_size=self.batch_size,
            samples=self.sample_scale,
            compute=self.compute_scale,
        )

    @property
    def workload(self) -> Workload:
        return fit(self.facts, self.chosen_accelerator, self.scale)

    @property
    def loaders(self) -> tuple[Loader, ...]:
        return ("phalanx", *self.against)

    @property
    def title(self) -> str:
        """One-line summary of the measurement, the first line of a log."""
        work = self.workload
        return (
            f"{self.facts.name} on {self.chosen_accelerator}: {work.num_samples:,} samples of "
            f"{work.sample_bytes:,} B a rank, batch {work.batch_size}, "
            f"{1e3 * work.compute_s:.3g} ms a step ({work.demand_bytes_per_s / 1e6:,.3g} MB/s "
            f"asked for): {', '.join(self.formats)}"
        )

    def as_record(self) -> dict[str, Any]:
        record = asdict(self)
        for name in ("output", "data_dir"):
            record[name] = None if record[name] is None else str(record[name])
        return record

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> IoConfig:
        """Options as they came back from a document: lists for tuples, text for paths."""
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in record.items() if k in known
        }
        for name in ("output", "data_dir"):
            if values.get(name) is not None:
                values[name] = Path(str(values[name]))
        return cls(**values)
