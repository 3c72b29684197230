"""The study of loading: which measurements it is made of. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.errors import UserError
from phalanx.records.configuration import check_positive, check_values
from phalanx.records.io import Cache, Format

KIND = "io"
DEFAULT_BATCH = {"resnet50": 50}  # the profile has 400: a batch that is read in milliseconds


@dataclass(frozen=True, kw_only=True)
class IoStudyConfig:
    """Options of the I/O study. The defaults write 0.4 GB and take five minutes on two cores."""

    profiles: tuple[str, ...] = ("resnet50",)
    """unet3d, resnet50, cosmoflow, bert, or YAML files of the same form."""

    formats: tuple[Format, ...] = ("files", "tar", "npy", "hdf5", "parquet")
    """Storage formats of the data."""

    readers: tuple[int, ...] = (1, 2)
    """Numbers of readers, threads all of them."""

    depth: tuple[int, ...] = (1, 4)
    """Numbers of batches that may wait for the accelerator."""

    compute_scales: tuple[float, ...] = (1 / 64, 1 / 16, 1 / 4, 1.0)
    """Factors on the compute time of a step: from a loader that is hurried to one that waits."""

    cache: tuple[Cache, ...] = ("warm", "cold")
    """warm: the files are in memory; cold: the system was asked to drop them before each epoch."""

    batch_size: int | None = None
    """Samples of a step. Default: as the profile has it; of resnet50 50, an eighth."""

    runs: int = 3
    """Measured epochs of each way, after one that warms up."""

    data_bytes: str = "64MB"
    """Room for the samples in one format."""

    data_dir: Path | None = None
    """Folder of the data, which is removed at the end. Default: in the folder of the study."""

    study_dir: Path | None = None
    """Folder of the study. Default: runs/io-…, the same for the same options, so that an
    interrupted study goes on when its command is given again."""

    def __post_init__(self) -> None:
        check_values(self, "profiles", "formats", "readers", "depth", "compute_scales", "cache")
        stems = [Path(name).stem for name in self.profiles]
        if len(set(stems)) != len(stems):
            raise UserError(f"--profiles {' '.join(self.profiles)}: their runs would share a name")
        check_positive(self, "compute_scales")


def runs_of(study: IoStudyConfig) -> dict[str, dict[str, Any]]:
    """Return the options of `phalanx bench io` for each run, by name, without its folders.

    A run is one compute time of one profile; every format, readers and depth are in it, in turn.
    """
    return {
        f"{Path(profile).stem}-compute-{scale:g}": {
            "profile": profile,
            "formats": study.formats,
            "readers": study.readers,
            "depth": study.depth,
            "cache": study.cache,
            "against": ("read",),
            "runs": study.runs,
            "data_bytes": study.data_bytes,
            "batch_size": study.batch_size or DEFAULT_BATCH.get(profile),
            "compute_scale": None if scale == 1 else scale,
        }
        for profile in study.profiles
        for scale in study.compute_scales
    }
