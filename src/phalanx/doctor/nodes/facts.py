"""Facts of one node, by the standard library alone.

Ranks import this. Over ssh it is sent as text to the node's Python, which may lack Phalanx or be of
another version, and answers questions: a JSON object a line, each answer behind `ANSWER`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import socket
import sys
import threading
import time
import zlib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

ANSWER = "phalanx-node "
RESOLVE_S = 2.0
CONNECT_S = 1.5
"""Time for another node's kernel to answer: one lost packet is sent again after a second."""
_INSTALLED_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Answer one question.

    {"read": {file: word}}: which of the files hold their words. {"time": True}: the clock.
    {"reach": addresses, "port": number}: which of the addresses give no answer at all.
    Else all facts. packages: names of distributions; paths: files and folders that must exist;
    folders: paths to write to, by name; data: paths of data; names: of hosts to resolve.
    """
    if "read" in question:
        return {file: _reads(file, word) for file, word in question["read"].items()}
    if "time" in question:
        return {"time_s": time.time()}
    if "reach" in question:
        return {"unreachable": _unreachable(question["reach"], question["port"])}
    networks = _of_phalanx("interfaces", "networks", {})
    return {
        "host": socket.gethostname(),
        "memory_id": memory_id(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in question["packages"]},
        "phalanx": _source_checksum(),
        "has_kernels": _has_kernels(),
        "missing": [path for path in question["paths"] if not Path(path).exists()],
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": _of_phalanx("cores", "usable_cores", len(os.sched_getaffinity(0))),
        "memory_bytes": _of_phalanx("cores", "usable_memory_bytes", _INSTALLED_BYTES),
        "free_bytes": {name: _free_bytes(path) for name, path in question["folders"].items()},
        "contents": {path: _contents(path) for path in question["data"]},
        "addresses": {name: text.partition("/")[0] for name, text in networks.items()},
        "networks": networks,
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


def version(name: str) -> str | None:
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


def _has_kernels() -> bool:
    """Return whether Phalanx has compiled modules."""
    found = importlib.util.find_spec("phalanx")
    return found is not None and any(Path(found.origin or "").parent.glob("comm/*.so"))


def _of_phalanx(module: str, function: str, default: Any) -> Any:
    """Return what a function of this node's Phalanx returns; `default` where there is none, or
    another one: no rank is started there."""
    try:
        return getattr(importlib.import_module(f"phalanx.jobs.{module}"), function)()
    except Exception:  # noqa: BLE001
        return default


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


def _unreachable(addresses: list[str], port: int) -> list[str]:
    """Return the addresses from which nothing comes back; that nobody listens is an answer."""
    reached = set()

    def connect(address: str) -> None:
        try:
            socket.create_connection((address, port), CONNECT_S).close()
        except ConnectionRefusedError:
            pass
        except OSError:
            return
        reached.add(address)

    threads = [threading.Thread(target=connect, args=(it,), daemon=True) for it in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * CONNECT_S)
    return [address for address in addresses if address not in reached]


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
