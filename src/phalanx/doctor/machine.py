"""Checks of cores, shared memory and disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from phalanx.doctor.examine import Finding, ok, problem, warning
from phalanx.jobs.cores import bound_cores, usable_cores
from phalanx.jobs.detect import detect
from phalanx.jobs.leftovers import SHARED_MEMORY, abandoned_segments
from phalanx.jobs.node_copies import abandoned_folders
from phalanx.jobs.open_files import SPARE_FILES, file_limit, files_needed

MIB = 1 << 20
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
# Open MPI takes 16 MiB a rank, gradients and their copies the rest. Docker grants 64 MiB.
_SEGMENT_BYTES = 16 * MIB
_GRADIENT_BYTES = 64 * MIB
_LOW_DISK_BYTES = 1024 * MIB
_FULL_DISK_BYTES = 100 * MIB


def check_cores(ranks: int) -> list[Finding]:
    return [judge_cores(ranks, usable_cores(), len(bound_cores()), os.cpu_count() or 1)]


def judge_cores(ranks: int, usable: int, affinity: int, present: int) -> Finding:
    """Judge the cores. usable: within the container's quota; affinity: allowed by the scheduler."""
    limits = []
    if affinity < present:
        limits.append(f"affinity leaves {affinity} of {present}")
    if usable < affinity:
        limits.append(f"the container's quota leaves {usable} of {affinity}")
    detail = f"{usable} usable for {_count(ranks, 'rank')}"
    detail += f" ({', '.join(limits)})" if limits else ""
    if ranks > usable:
        mend = f"--ranks {usable}, or accept that ranks share cores"
        return warning("cores", detail, mend)
    return ok("cores", f"{detail}, {_count(usable // ranks, 'thread')} each")


def check_shared_memory(ranks: int) -> list[Finding]:
    if not SHARED_MEMORY.is_dir():
        return [ok("shared memory", f"no {SHARED_MEMORY} on this system")]
    disk = shutil.disk_usage(SHARED_MEMORY)
    return [judge_shared_memory(ranks, disk.total, disk.free)]


def judge_shared_memory(ranks: int, total_bytes: int, free_bytes: int) -> Finding:
    needed = ranks * _SEGMENT_BYTES + _GRADIENT_BYTES
    detail = f"{_size(free_bytes)} of {_size(total_bytes)} free in {SHARED_MEMORY}"
    if free_bytes >= needed:
        return ok("shared memory", detail)
    detail += f", {_count(ranks, 'rank')} may need {_size(needed)}"
    if total_bytes < needed:
        mend = f"mount -o remount,size=1g {SHARED_MEMORY}, or docker run --shm-size=1g"
    else:
        mend = f"remove files that fill it: ls -l {SHARED_MEMORY}"
    judge = problem if free_bytes < ranks * _SEGMENT_BYTES else warning
    return judge("shared memory", detail, mend)


def check_files(ranks: int) -> list[Finding]:
    launched = detect(os.environ)
    ranks = max(ranks, launched.world_size if launched else 1)
    return [judge_files(ranks, file_limit(), file_limit(hard=True))]


def judge_files(ranks: int, soft: int, hard: int) -> Finding:
    """Judge the open files of a rank, which raises its limit from `soft` to `hard`."""
    detail = f"{hard} may be open" + (f" ({soft} until a rank starts)" if soft < hard else "")
    # A rank opens some 50 files before it connects to any peer, with PyTorch and MPI.
    few, all_peers = SPARE_FILES + files_needed(ranks, ranks), 2 * SPARE_FILES + ranks
    if hard >= all_peers:
        return ok("open files", f"{detail}, {all_peers} suffice for {_count(ranks, 'rank')}")
    detail += f", {_count(ranks, 'rank')} on separate nodes need up to {all_peers}"
    judge = problem if hard < few else warning
    return judge("open files", detail, f"ulimit -n {all_peers}, as root or in limits.conf")


def check_reads() -> list[Finding]:
    """Read what Yama allows, a part of the kernel that many distributions switch on."""
    try:
        scope = int(YAMA.read_text())
    except (OSError, ValueError):
        return []
    return [judge_reads(scope)]


def judge_reads(ptrace_scope: int) -> Finding:
    if ptrace_scope == 0:
        return ok("memory of peers", "ranks may read each other's memory")
    detail = f"{YAMA} is {ptrace_scope}: ranks may not read each other's; sums of 1 MB and more "
    detail += "take up to four times as long if their cores share no cache"
    return warning("memory of peers", detail, "sysctl kernel.yama.ptrace_scope=0, as root")


def check_leftovers() -> list[Finding]:
    copies = [(path, _bytes_in(path)) for path in abandoned_folders()]
    return [judge_leftovers([*copies, *((p, p.stat().st_size) for p in abandoned_segments())])]


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def judge_leftovers(segments: list[tuple[Path, int]]) -> Finding:
    """Judge leftovers. segments: unused files in shared memory, and folders of copies of runs whose
    command was killed, with their sizes in bytes."""
    if not segments:
        return ok("leftovers", "no files of killed jobs")
    size = _size(sum(size_bytes for _, size_bytes in segments))
    flag = "-r " if any(path.is_dir() for path, _ in segments) else ""
    mend = f"rm {flag}{' '.join(str(path) for path, _ in segments)}"
    return warning("leftovers", f"{_count(len(segments), 'file')} of killed jobs, {size}", mend)


def check_disk(folder: Path) -> list[Finding]:
    """Check the disk. folder: for the runs; it need not exist yet."""
    there = next(path for path in [folder.resolve(), *folder.resolve().parents] if path.is_dir())
    if not os.access(there, os.W_OK):
        mend = "change to a writable folder, or use --run-dir"
        return [problem("disk", f"{there} is not writable", mend)]
    return [judge_disk(folder, shutil.disk_usage(there).free)]


def judge_disk(folder: Path, free_bytes: int) -> Finding:
    detail = f"{_size(free_bytes)} free for {folder}/"
    if free_bytes >= _LOW_DISK_BYTES:
        return ok("disk", detail)
    judge = problem if free_bytes < _FULL_DISK_BYTES else warning
    return judge("disk", detail, "free some space, or write elsewhere with --run-dir")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _size(num_bytes: int) -> str:
    if num_bytes >= 1024 * MIB:
        return f"{num_bytes / (1024 * MIB):.1f} GiB"
    return f"{num_bytes / MIB:.0f} MiB"
