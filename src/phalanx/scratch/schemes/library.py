"""Data parallel: every rank has the whole network and a share of each batch; the MPI library sums
the gradients. Two methods differ from one process."""

from __future__ import annotations

from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group
from phalanx.comm.layout import share_of
from phalanx.scratch.momentum import Momentum
from phalanx.scratch.network import FeedForwardNetwork
from phalanx.scratch.schemes.single_process import SingleProcess


class Library(SingleProcess):
    def __init__(self, network: FeedForwardNetwork, optimizer: Momentum, group: Group) -> None:
        super().__init__(network, optimizer)
        self.group = group

    def local_batch(self, batch: range) -> range:
        share = share_of(self.group.rank, self.group.size, len(batch))
        return batch[share.start : share.stop]

    def combine(self) -> None:
        """Sum `gradients` over all ranks. All began with the same parameters and now make the
        same update, so they stay the same for ever."""
        self.group.all_reduce(Buffer.of(self.network.gradients), algorithm="library")
