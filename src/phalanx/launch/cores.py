"""How many cores this process may use, which is what ranks and threads are to be shared over."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP_FOLDER = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Cores of this process: its affinity, cut down to the quota of its container; at least 1."""
    quota = cgroup_quota(_CGROUP_FOLDER, _OWN_CGROUP)
    cores = affinity_cores()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def affinity_cores() -> int:
    """Cores that the scheduler may put this process on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_quota(root: Path, own_cgroup: Path) -> float | None:
    """Cores' worth of time that the control group grants, None when it sets no limit."""
    quotas = [_read_v2(folder / "cpu.max") for folder in _own_folders(root, own_cgroup)]
    quotas.append(_read_v1(root / "cpu"))
    return min((quota for quota in quotas if quota is not None), default=None)


def _own_folders(root: Path, own_cgroup: Path) -> list[Path]:
    """The group's folder and those above it: each one's limit holds (version 2: line `0::/…`)."""
    text = own_cgroup.read_text() if own_cgroup.is_file() else ""
    own = next((line[3:] for line in text.splitlines() if line.startswith("0::")), "/")
    path = root / own.lstrip("/")
    return [path, *(folder for folder in path.parents if folder.is_relative_to(root))]


def _read_v2(file: Path) -> float | None:
    """`max 100000`, or microseconds of computing in so many microseconds."""
    if not file.is_file():
        return None
    granted, _, period = file.read_text().strip().partition(" ")
    return None if granted == "max" else int(granted) / int(period)


def _read_v1(folder: Path) -> float | None:
    granted, period = folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"
    if not (granted.is_file() and period.is_file()):
        return None
    microseconds = int(granted.read_text())
    return None if microseconds < 0 else microseconds / int(period.read_text())


def last_level_cache_bytes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Of the cache that this node's cores share; 8 MB where the system does not tell."""
    sizes = [file.read_text().strip() for file in root.glob("index*/size")]
    units = {"K": 2**10, "M": 2**20}
    found = [int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units]
    return max(found, default=8 * 2**20)
