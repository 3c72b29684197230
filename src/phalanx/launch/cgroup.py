"""Linux control groups that limit this process, as set by containers and batch systems."""

from __future__ import annotations

from pathlib import Path

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


def _path(lines: list[str], controller: str) -> str:
    """Return the path of the group: version 2 has the line `0::/…`, version 1 `4:cpu,…:/…`."""
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(",") and (number == "0") == (controller == ""):
            return path
    return "/"
