"""A transport that sends nothing and counts: what a collective costs a rank among any number."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import Collective
from phalanx.comm.collectives import over_messages
from phalanx.comm.dtypes import UINT8, DType
from phalanx.comm.select import Topology, choose_route
from phalanx.comm.transport import Messages, Transport


@dataclass
class Counted:
    """Costs of one collective on one rank."""

    peers: set[int] = field(default_factory=set)
    """Ranks that it sends to or receives from: a connection each."""
    sent: list[tuple[int, int]] = field(default_factory=list)
    """Destination and bytes of each message."""
    received: list[tuple[int, int]] = field(default_factory=list)
    scratch_bytes: int = 0

    @property
    def num_messages(self) -> int:
        return len(self.sent)


class CountingTransport(Transport):
    """One rank of many, none of which exists. What it receives are cells of equal parts, as far as
    it looks at that (`collectives/cells.py`)."""

    def __init__(self, rank: int, size: int, part_bytes: int) -> None:
        self.rank, self.size, self._part_bytes = rank, size, part_bytes
        self.counted = Counted()
        self._memory = np.zeros(0, np.uint8)
        self._kept = [self._memory]

    def start(self, sends: Messages, receives: Messages) -> "CountingTransport":
        counted = self.counted
        counted.sent += [(dest, buffer.num_bytes) for buffer, dest in sends]
        counted.received += [(source, buffer.num_bytes) for buffer, source in receives]
        counted.peers |= {peer for _, peer in (*sends, *receives)}
        for buffer, _ in receives:
            if buffer.dtype == UINT8:
                buffer.bytes().view(np.int64)[:] = self._part_bytes
        return self

    def finish(self) -> None:
        """All is there."""

    def scratch(self, count: int, dtype: DType) -> Buffer:
        """All in the same place: nobody reads what was computed."""
        num_bytes = count * dtype.itemsize
        self.counted.scratch_bytes += num_bytes
        if self._memory.size < num_bytes:
            self._memory = np.zeros(num_bytes, np.uint8)
        self._kept.append(self._memory)
        return Buffer(self._memory.ctypes.data, count, dtype, self._memory)

    def reduce_terms(self, *_: object) -> None:
        """The counts do not depend on the sums."""


def cost_of(collective: Collective, rank: int, nodes: Sequence[int]) -> Counted:
    """Return what `collective` costs `rank`, by the route that is chosen for it where the ranks of
    each node share memory."""
    part = (*collective.outputs, *collective.inputs, None)[0]
    transport = CountingTransport(rank, len(nodes), part.num_bytes if part else 0)
    topology = Topology(nodes=tuple(nodes), shares_memory=False)
    over_messages.run(
        transport,
        collective,
        choose_route(topology, collective),
        nodes=nodes,
        run_on_node=lambda _: None,
    )
    return transport.counted
