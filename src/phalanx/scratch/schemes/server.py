"""The parameter server: workers compute gradients, servers keep the parameters.

Ranks 0 … s-1 are servers. Each is in charge of one part of the vector of parameters: it sums the
gradients of that part over all workers, updates it, and sends it back. A step is synchronous: the
update waits for every worker, and is that of one process.

All traffic of a worker goes to the servers, that of a server to all workers: with one server and
p-1 workers it moves p-1 times the vector each way, which is what several servers share among them.

Source: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server", OSDI.
"""

from __future__ import annotations

import numpy as np

from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group
from phalanx.comm.layout import share_of
from phalanx.scratch.arrays import Array, Labels
from phalanx.scratch.loss import BatchResult
from phalanx.scratch.momentum import Momentum
from phalanx.scratch.network import FeedForwardNetwork
from phalanx.scratch.schemes.scheme import Role, Scheme


def shard_of(vector: Array, server: int, servers: int) -> Array:
    """The part of a vector of all parameters that `server` is in charge of; a view."""
    share = share_of(server, servers, len(vector))
    return vector[share.start : share.stop]


class Worker(Scheme):
    """Has the whole network, and no optimizer: the servers update."""

    def __init__(self, network: FeedForwardNetwork, group: Group, *, servers: int) -> None:
        self.network, self.group, self.servers = network, group, servers

    def local_batch(self, batch: range) -> range:
        workers = self.group.size - self.servers
        share = share_of(self.group.rank - self.servers, workers, len(batch))
        return batch[share.start : share.stop]

    def forward(self, inputs: Array, labels: Labels) -> BatchResult:
        return self.network.forward(inputs, labels)

    def backward(self, global_batch_size: int) -> None:
        self.network.backward(global_batch_size)

    def combine(self) -> None:
        """Send each server the gradients of its shard."""
        leaving = [
            self.group.send(Buffer.of(self._part(self.network.gradients, server)), dest=server)
            for server in range(self.servers)
        ]
        for request in leaving:
            request.wait()

    def distribute(self) -> None:
        """Receive the new parameters of its shard from each server."""
        arriving = [
            self.group.receive(
                Buffer.of(self._part(self.network.parameters, server)), source=server
            )
            for server in range(self.servers)
        ]
        for request in arriving:
            request.wait()

    def full_parameters(self) -> Array:
        self.group.broadcast(Buffer.of(self.network.parameters), root=self.servers)
        return self.network.parameters

    def _part(self, vector: Array, server: int) -> Array:
        return shard_of(vector, server, self.servers)


class ParameterServer(Scheme):
    """Has a part of the parameters and the optimizer of that part, and sees no samples."""

    role: Role = "server"

    def __init__(
        self, initial: Array, group: Group, *, servers: int, lr: float, momentum: float
    ) -> None:
        """initial: (n,) all parameters as the workers begin with them; kept is the part."""
        self.group, self.servers, self.size = group, servers, len(initial)
        self.parameters = shard_of(initial, group.rank, servers).copy()
        self.gradients = np.zeros_like(self.parameters)
        self.optimizer = Momentum(self.parameters, lr=lr, momentum=momentum)
        self._term = np.zeros_like(self.parameters)

    def local_batch(self, batch: range) -> range:
        return batch[:0]

    def forward(self, inputs: Array, labels: Labels) -> BatchResult:  # noqa: ARG002  # there are none
        return BatchResult(np.empty(0), np.empty(0, np.bool_))

    def backward(self, global_batch_size: int) -> None:
        """Workers have divided by the size already."""

    def combine(self) -> None:
        """Sum the workers' gradients in the order of the workers, so that the same run gives the
        same bits; who comes early waits in MPI."""
        self.gradients[...] = 0
        for worker in self._workers():
            self.group.receive(Buffer.of(self._term), source=worker).wait()
            self.gradients += self._term

    def update(self) -> None:
        self.optimizer.step(self.gradients)

    def distribute(self) -> None:
        part = Buffer.of(self.parameters)
        leaving = [self.group.send(part, dest=worker) for worker in self._workers()]
        for request in leaving:
            request.wait()

    def full_parameters(self) -> Array:
        """Servers know their parts only: a worker tells."""
        parameters = np.empty(self.size, self.parameters.dtype)
        self.group.broadcast(Buffer.of(parameters), root=self.servers)
        return parameters

    def _workers(self) -> range:
        return range(self.servers, self.group.size)
