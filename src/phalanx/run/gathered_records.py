"""Records of ranks whose nodes lack the run's folder, gathered on rank 0 while the ranks talk.

For ranks that the user's own launcher started: those of Phalanx's launchers need it not, their
output brings them home (`jobs/relay.py`), also when they fail.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import sys
import zlib
from pathlib import Path
from typing import Self

from phalanx.jobs import relayed
from phalanx.jobs.collector import Files
from phalanx.jobs.frames import Frame
from phalanx.parallel.run_group import RunGroup
from phalanx.records.files import rank_file
from phalanx.records.spans import spans_file


class GatheredRecords:
    """This rank's part in gathering the records of one run."""

    def __init__(self, group: RunGroup, folder: Path, absent: list[int]) -> None:
        """absent: ranks that do not see rank 0's `folder`."""
        self._group, self._folder, self._absent = group, folder, absent
        self._rank = group.rank  # before any is lost
        self._sent: dict[Path, int] = {}
        self._files = Files(folder)

    @classmethod
    def begin(cls, group: RunGroup, folder: Path) -> Self:
        """Find out which ranks do not see what rank 0 has made. Collective."""
        if not group.sum([float(group.node)])[0]:  # all on the first node
            return cls(group, folder, [])
        name = f".here-{secrets.token_hex(8)}" if group.rank == 0 else ""
        path = folder / group.share(name)
        if group.rank == 0:
            path.touch()
        group.barrier()
        seen = [0.0] * group.size
        seen[group.rank] = float(path.exists() or relayed.local_folder(folder) is not None)
        seen = group.sum(seen)
        if group.rank == 0:
            path.unlink(missing_ok=True)
        return cls(group, folder, [rank for rank, sees in enumerate(seen) if not sees])

    def tell_where(self) -> None:
        """Print where the records of a rank that fails are, if rank 0's folder lacks their end. Not
        collective."""
        rank = self._rank
        if rank in self._absent:
            here = f"{socket.gethostname()}:{self._folder.absolute()}"
            with contextlib.suppress(OSError, ValueError):
                print(f"phalanx: rank {rank} keeps its records in {here}", file=sys.stderr)

    def bring(self) -> None:
        """Append what the ranks have written since the last call to the files in rank 0's folder.
        Collective; nothing is sent where all ranks see the folder."""
        if not self._absent:
            return
        parts, data = [], b""
        group = self._group
        if self._rank in self._absent:
            for path in (rank_file(self._folder, self._rank), spans_file(self._folder, self._rank)):
                new = self._new(path)
                if new:
                    parts.append((path.name, self._sent[path] - len(new), len(new)))
                    data += new
        own = json.dumps(parts).encode() + b"\n" + data
        group.together(lambda: self._gather(zlib.compress(own, 1)))

    def _gather(self, own: bytes) -> None:
        """Write on rank 0 what each rank sends, one after the other. Made again after a loss, it
        leaves out what is there."""
        with self._group.uncounted():
            for text in self._group.gather_bytes(own):
                head, _, content = zlib.decompress(text).partition(b"\n")
                with contextlib.suppress(OSError):  # a full disk ends no training
                    for name, offset, size in json.loads(head):
                        chunk, content = content[:size], content[size:]
                        self._files.take(Frame(0, name, 0, offset, chunk, True))
                    self._files.flush()

    def _new(self, path: Path) -> bytes:
        """Return what a file of this rank has got since the last call."""
        if not path.exists():
            return b""
        with path.open("rb") as file:
            file.seek(self._sent.setdefault(path, 0))
            new = file.read()
        self._sent[path] += len(new)
        return new
