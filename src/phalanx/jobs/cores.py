"""The cores and the memory that this process may use, by affinity and the container's limits."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import UserError

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def group_folders(root: Path, own: Path, controller: str) -> list[Path]:
    """Return the folders of this process's group and its parents, whose limits all apply.

    root: of the hierarchy; own: the file that names the process's groups; controller: "" for
    version 2.
    """
    lines = own.read_text().splitlines() if own.is_file() else []
    folder = root / _path(lines, controller).lstrip("/")
    return [folder, *(above for above in folder.parents if above.is_relative_to(root))]


def memory_limit_bytes(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUP) -> int | None:
    """Return the tightest memory limit of this process's groups; None without a limit."""
    files = [folder / "memory.max" for folder in group_folders(root, own, "")]
    old = group_folders(root / "memory", own, "memory")
    files += [folder / "memory.limit_in_bytes" for folder in old]
    texts = [file.read_text().strip() for file in files if file.is_file()]
    return min((int(text) for text in texts if text != "max"), default=None)


def check_fits(num_bytes: int, what: str) -> None:
    """Raises: UserError when it is more than this process may have; `what` begins the line."""
    total = usable_memory_bytes()
    if num_bytes > total:
        raise UserError(
            f"{what}: {num_bytes / 1e9:,.1f} GB of memory needed, but this "
            f"{'machine' if total == _installed_bytes() else 'container'} has {total / 1e9:,.1f}"
        )


def usable_memory_bytes() -> int:
    """Return the memory that this process may have."""
    return min(_installed_bytes(), memory_limit_bytes() or _installed_bytes())


def _installed_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _path(lines: list[str], controller: str) -> str:
    """Return the path of the group: version 2 has the line `0::/…`, version 1 `4:cpu,…:/…`."""
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(",") and (number == "0") == (controller == ""):
            return path
    return "/"


@dataclass(frozen=True)
class CpuQuota:
    """CPU time that a control group grants to all its processes together."""

    cores: float
    group: str
    """Identifier of the group: equal for processes that share the limit."""


def usable_cores() -> int:
    """Return the usable cores: the affinity, limited by the container's quota; at least 1."""
    quota, cores = cpu_quota(), len(bound_cores())
    return cores if quota is None else max(1, min(cores, math.ceil(quota.cores)))


def shared_cores(affinities: Iterable[Iterable[int]], quotas: Iterable[CpuQuota | None]) -> int:
    """Return the number of cores that processes of one machine share; at least 1.

    affinities: the numbers of the cores that each process may run on. quotas: of each process.
    """
    cores = {core for affinity in affinities for core in affinity}
    limits = set(quotas)
    if not limits or None in limits:
        return max(1, len(cores))
    granted = {quota.group: quota.cores for quota in limits if quota is not None}
    return max(1, min(len(cores), math.ceil(sum(granted.values()))))


def bound_cores() -> frozenset[int]:
    """Return the cores that this process is bound to."""
    return frozenset(os.sched_getaffinity(0))


def cpu_quota(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUP) -> CpuQuota | None:
    """Return the tightest CPU quota of this process's groups; None without one."""
    found = [(_read_v2(folder), folder) for folder in group_folders(root, own, "")]
    for cpu in (root / "cpu", root / "cpu,cpuacct"):
        found += [(_read_v1(folder), folder) for folder in group_folders(cpu, own, "cpu")]
    limits = [(cores, folder.stat()) for cores, folder in found if cores is not None]
    quotas = [CpuQuota(cores, f"{status.st_dev}:{status.st_ino}") for cores, status in limits]
    return min(quotas, key=lambda quota: quota.cores, default=None)


def _read_v2(folder: Path) -> float | None:
    """Read cpu.max: `max 100000`, or quota and period in microseconds."""
    file = folder / "cpu.max"
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
    """Return the size of the last-level cache of this node; 8 MB where it is unknown."""
    sizes = [file.read_text().strip() for file in root.glob("index*/size")]
    units = {"K": 2**10, "M": 2**20}
    found = [int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units]
    return max(found, default=8 * 2**20)
