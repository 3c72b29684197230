"""Workload profiles, and their scaling to this machine, which names everything that was scaled.

A machine has less disk and time than the cluster that the profile comes from.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import msgspec

from phalanx.errors import UserError
from phalanx.records.io import Profile

LARGEST_BYTES = 20_000
PROFILES = ("unet3d", "resnet50", "cosmoflow", "bert")
_FOLDER = files("phalanx.bench.io") / "profiles"


def read_profile(name: str) -> Profile:
    """Return a profile: one of PROFILES, or a YAML file of the same form.

    Raises: UserError naming the fault.
    """
    text = profile_text(name)
    try:
        profile = msgspec.yaml.decode(text.encode(), type=Profile)
    except RecursionError as error:
        raise UserError(f"--profile {name} cannot be read: it is nested too deeply") from error
    except msgspec.DecodeError as error:  # a wrong form or value, which the message names
        raise UserError(
            f"--profile {name}: {error}\n"
            "  `phalanx bench io --profile resnet50 --print-profile` shows one to begin with"
        ) from error
    if not profile.compute_s:
        raise UserError(f"--profile {name}: compute_s names no accelerator, e.g. {{a100: 0.435}}")
    return profile


def profile_text(name: str) -> str:
    """Return the text of a profile's file."""
    if name in PROFILES:
        return (_FOLDER / f"{name}.yaml").read_text()
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        raise UserError(f"--profile {name} is not one of {', '.join(PROFILES)}, nor a .yaml file")
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise UserError(f"--profile {name} cannot be read: it exceeds {LARGEST_BYTES:,} bytes")
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(f"--profile {name} cannot be read: {reason}") from error


MAX_SAMPLES = 16_384  # a file each in format `files`
STEPS_OF_SCALED_SAMPLES = 16
MIN_STEPS = 4  # fewer say nothing about a loader that reads ahead
COMPUTE_S = 2.5  # compute of an epoch, if MIN_STEPS allow


class Workload(NamedTuple):
    """The samples that a rank reads, and its compute time per step."""

    num_samples: int
    sample_bytes: int
    batch_size: int
    steps: int  # steps of an epoch with compute: the first of its batches; flat out all are read
    compute_s: float
    scaled: tuple[str, ...]

    @property
    def demand_bytes_per_s(self) -> float:
        """Return the data rate that keeps the accelerator busy."""
        return self.batch_size * self.sample_bytes / self.compute_s


def scale_workload(
    profile: Profile,
    accelerator: str,
    *,
    data_bytes: int,
    samples: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    sample_scale: float | None = None,
    compute_scale: float | None = None,
) -> Workload:
    """Return the profile scaled to this machine.

    Samples too large for a few batches to fit are scaled down, and the compute time with them and
    with the batch, so that the required bytes/s stay the same.

    data_bytes: room for a rank's samples in one format. The others: as the user has set them, see
    `IoConfig`; None: as much of the profile as fits.
    """
    batch = batch_size or profile.batch_size
    size_factor = sample_scale
    if size_factor is None:
        size_factor = 1.0 if samples else _size_factor(profile, batch, steps, data_bytes)
    sample_bytes = max(8, round(profile.sample_bytes * size_factor))
    num_samples = (
        samples
        or (steps or 0) * batch
        or min(data_bytes // sample_bytes, MAX_SAMPLES, profile.num_samples)
    )
    num_samples = max(num_samples // batch, 1) * batch
    compute_factor = size_factor * batch / profile.batch_size * (compute_scale or 1.0)
    compute_s = profile.compute_s[accelerator] * compute_factor
    steps = min(num_samples // batch, steps or max(MIN_STEPS, round(COMPUTE_S / compute_s)))
    workload = Workload(
        num_samples=num_samples,
        sample_bytes=sample_bytes,
        batch_size=batch,
        steps=steps,
        compute_s=compute_s,
        scaled=(),
    )
    scaled = _describe_scaling(profile, accelerator, workload)
    return workload._replace(scaled=scaled)


def _size_factor(profile: Profile, batch: int, steps: int | None, data_bytes: int) -> float:
    """Return 1, 1/2, 1/4 …, the factor at which enough batches fit."""
    batch_bytes = batch * profile.sample_bytes
    if MIN_STEPS * batch_bytes <= data_bytes:
        return 1.0
    wanted = (steps or STEPS_OF_SCALED_SAMPLES) * batch_bytes
    factor = 1.0
    while wanted * factor > data_bytes and profile.sample_bytes * factor > 16:
        factor /= 2
    return factor


def _describe_scaling(profile: Profile, accelerator: str, workload: Workload) -> tuple[str, ...]:
    notes = []
    if workload.num_samples != profile.num_samples:
        notes.append(
            f"{workload.num_samples:,} samples per rank, not {profile.num_samples:,} total"
        )
    if workload.batch_size != profile.batch_size:
        notes.append(f"batches of {workload.batch_size}, not {profile.batch_size}")
    steps = profile.num_samples // profile.batch_size
    if workload.steps != steps:
        notes.append(f"{workload.steps:,} steps per epoch, not {steps:,}")
    if workload.sample_bytes != profile.sample_bytes:
        factor = _factor(workload.sample_bytes / profile.sample_bytes)
        notes.append(
            f"samples of {workload.sample_bytes:,} B, {factor} of {profile.sample_bytes:,}"
        )
    if profile.sample_bytes_deviation:
        notes.append(
            "all samples of one size, not with a standard deviation of "
            f"{profile.sample_bytes_deviation / profile.sample_bytes:.0%}"
        )
    given_s = profile.compute_s[accelerator]
    if workload.compute_s != given_s:
        factor = _factor(workload.compute_s / given_s)
        notes.append(f"{1e3 * workload.compute_s:.3g} ms per step, {factor} of {1e3 * given_s:.3g}")
    return tuple(notes)


def _factor(value: float) -> str:
    return f"1/{1 / value:.3g}" if value < 1 else f"{value:.3g} times"
