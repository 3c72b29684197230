"""Facts of one node, by the standard library alone.

Ranks import this. Over ssh it is sent as text to the node's Python, which may lack Phalanx or be of
another version, and answers questions: a JSON object a line, each answer behind `ANSWER`.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import platform
import shutil
import socket
import struct
import sys
import threading
import time
import zlib
from importlib import metadata
from pathlib import Path
from typing import Any

ANSWER = "phalanx-node "
RESOLVE_S = 2.0
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Answer one question.

    {"read": {file: word}}: which of the files hold their words. {"time": True}: the clock.
    Else all facts. packages: names of distributions; paths: files and folders that must exist;
    folders: paths to write to, by name; data: paths of data; names: of hosts to resolve.
    """
    if "read" in question:
        return {file: _reads(file, word) for file, word in question["read"].items()}
    if "time" in question:
        return {"time_s": time.time()}
    return {
        "host": socket.gethostname(),
        "memory_id": memory_id(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in question["packages"]},
        "phalanx": _source_checksum(),
        "missing": [path for path in question["paths"] if not Path(path).exists()],
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": _usable_cores(),
        "memory_bytes": _memory_bytes(),
        "free_bytes": {name: _free_bytes(path) for name, path in question["folders"].items()},
        "contents": {path: _contents(path) for path in question["data"]},
        "addresses": _addresses(),
        "unresolved": _unresolved(question["names"]),
    }


def memory_id() -> str:
    """Return a text that is the same for processes that can share memory, and for no others."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{kernel}:{Path('/dev/shm').stat().st_dev}"
    except OSError:
        return socket.gethostname()


def existing_parent(path: str) -> Path:
    """Return `path`, or the nearest folder above it that exists."""
    absolute = Path(path).absolute()
    return next(folder for folder in (absolute, *absolute.parents) if folder.is_dir())


def _reads(path: str, word: str) -> bool:
    try:
        return Path(path).read_text() == word
    except OSError:
        return False


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _source_checksum() -> int | None:
    """Return a checksum of the Python files of Phalanx; None where there is no Phalanx."""
    found = importlib.util.find_spec("phalanx")
    if found is None or found.origin is None:
        return None
    root = Path(found.origin).parent
    checksum = 0
    for path in sorted(root.rglob("*.py")):
        checksum = zlib.crc32(str(path.relative_to(root)).encode(), checksum)
        checksum = zlib.crc32(path.read_bytes(), checksum)
    return checksum


def _usable_cores() -> int:
    try:
        from phalanx.launch.cores import usable_cores

        return usable_cores()
    except Exception:  # noqa: BLE001  # no Phalanx, or another one
        return len(os.sched_getaffinity(0))


def _memory_bytes() -> int:
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        from phalanx.launch.cores import memory_limit_bytes

        return min(installed, memory_limit_bytes() or installed)
    except Exception:  # noqa: BLE001  # no Phalanx, or another one
        return installed


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def _free_bytes(folder: str) -> int | None:
    try:
        return shutil.disk_usage(existing_parent(folder)).free
    except OSError:
        return None


def _contents(path: str) -> int | None:
    """Return a checksum of the names and sizes of files, the same for a copy; None for no data."""
    try:
        if not Path(path).is_dir():
            return Path(path).stat().st_size
        with os.scandir(path) as entries:
            files = sorted((entry.name, entry.stat().st_size) for entry in entries)
    except OSError:
        return None
    return zlib.crc32(repr([file for file in files if not file[0].startswith(".")]).encode())


def _addresses() -> dict[str, str]:
    """Return the IPv4 addresses by interface, without loopback."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                wanted = struct.pack("256s", name.encode()[:15])
                packed = fcntl.ioctl(asked.fileno(), _GET_ADDRESS, wanted)[20:24]
            except OSError:
                continue
            if packed[0] != 127:
                found[name] = socket.inet_ntoa(packed)
    return found


def _unresolved(names: list[str]) -> list[str]:
    """Return the names that have no address here, or none within `RESOLVE_S`."""
    resolved = set()

    def resolve() -> None:
        for name in names:
            try:
                socket.getaddrinfo(name, None)
            except (OSError, UnicodeError):
                continue
            resolved.add(name)

    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(RESOLVE_S)
    return [name for name in names if name not in resolved]


def _serve() -> None:
    """Answer the questions on standard input until it ends."""
    for line in sys.stdin.buffer:
        print(ANSWER + json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    _serve()
    # A name server that does not answer must not delay the end.
    os._exit(0)
