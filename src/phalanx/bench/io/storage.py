"""File system and device of the data."""

from __future__ import annotations

from pathlib import Path

from phalanx.bench.io.generate import free_bytes
from phalanx.records.io import Storage

_MOUNTS = Path("/proc/self/mounts")


def storage_of(folder: Path) -> Storage:
    """Return file system and device of `folder`, which need not exist yet."""
    file_system, device = _mount_of(folder.absolute())
    return Storage(file_system=file_system, device=device, free_bytes=free_bytes(folder))


def _mount_of(folder: Path) -> tuple[str | None, str | None]:
    """Return (type, device) of the mount that holds `folder`."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return None, None
    best, found = -1, (None, None)
    for line in lines:
        device, point, kind, *_ = line.split()
        at = Path(point.replace("\\040", " "))
        if folder.is_relative_to(at) and len(at.parts) >= best:
            best, found = len(at.parts), (kind, device)  # type: ignore[assignment]
    return found
