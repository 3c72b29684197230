"""Folders as the nodes of a job see them: one that all share, or on each node one of its own.

`TalkingRanks` is whatever lets the ranks talk to each other; nothing here needs PyTorch.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from phalanx.errors import UserError
from phalanx.jobs.detect import Launched

NAMES_RANK = re.compile(r"\branks? \d")

MAX_NAMED_HOSTS = 8
"""Hosts that a line names."""


class TalkingRanks(Protocol):
    """The ranks of a job, as one of them sees them; methods are collective."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...

    def gather(self, values: Sequence[float]) -> list[list[float]] | None:
        """Return every rank's values, equally many, on rank 0; None elsewhere."""

    def share(self, text: str) -> str:
        """Broadcast rank 0's `text`."""


class RankOnHost(NamedTuple):
    """A rank and the name of its host."""

    rank: int
    host: str


def gather_text(ranks: TalkingRanks, text: str) -> list[str]:
    """Return the texts of all ranks, by rank, on every rank. Collective; for short ones."""
    content = text.encode()
    rows = ranks.gather([float(len(content))])
    longest = "" if rows is None else str(int(max(row[0] for row in rows)))
    padded = content.ljust(max(1, int(ranks.share(longest))), b"\0")
    rows = ranks.gather([float(byte) for byte in padded])
    texts = [bytes(map(int, row)).rstrip(b"\0").decode() for row in rows or ()]
    gathered: list[str] = json.loads(ranks.share(json.dumps(texts) if rows is not None else ""))
    return gathered


def ranks_without(ranks: TalkingRanks, folder: Path) -> list[RankOnHost]:
    """Return the ranks that do not see what rank 0 writes into `folder`. Collective.

    A new name is looked for: a network file system may still remember that an older one was
    missing.
    Raises: OSError on rank 0 when it cannot write there.
    """
    name = ranks.share(f".phalanx-{secrets.token_hex(8)}" if ranks.rank == 0 else "")
    path = folder / name
    if ranks.rank == 0:
        path.touch(exist_ok=False)
    try:
        ranks.share("written")
        hosts = gather_text(ranks, "" if path.exists() else socket.gethostname())
    finally:
        if ranks.rank == 0:
            path.unlink(missing_ok=True)
    return [RankOnHost(rank, host) for rank, host in enumerate(hosts) if host]


def by_host(ranks: Iterable[RankOnHost]) -> str:
    """Return the ranks in words, such as `n1 (rank 1), n2 (ranks 2, 3)`."""
    hosts: dict[str, list[str]] = {}
    for rank, host in ranks:
        hosts.setdefault(host, []).append(str(rank))
    words = [
        f"{host} (rank{'s' * (len(numbers) > 1)} {', '.join(numbers)})"
        for host, numbers in hosts.items()
    ]
    more = len(words) - MAX_NAMED_HOSTS
    return ", ".join(words[:MAX_NAMED_HOSTS]) + (f" and {more} more" if more > 0 else "")


@contextmanager
def named_host(launched: Launched | None) -> Iterator[None]:
    """Name rank and host in errors of the block that name none, where one of several nodes may
    lack what the others have."""
    try:
        yield
    except UserError as error:
        host = socket.gethostname()
        if launched is None or not launched.may_span_nodes or NAMES_RANK.search(str(error)):
            raise
        raise UserError(f"{error} (rank {launched.rank} on {host})") from error
