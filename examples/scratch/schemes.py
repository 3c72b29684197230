"""Four of the five ways to spread a step over ranks; the fifth, `tensor.py`, cuts the layers.

A scheme is five verbs, which `train.py` calls in turn: forward, backward, combine, update,
distribute. Read `Alone` first: the others are compared with it, and differ in few verbs.
"""

from __future__ import annotations

import numpy as np
from network import Array, Momentum, Network, Result

from phalanx.comm import buffer, group
from phalanx.comm.layout import share_of

Group = group.Group
as_buffer = buffer.Buffer.of
"""Memory of an array, to be sent or filled; nothing is copied."""


class Alone:
    """One process: the reference. Without peers there is nothing to combine or to distribute."""

    role = "worker"
    waited_s = 0.0
    """Seconds of `forward` and `backward` spent waiting for peers, so far."""

    def __init__(self, network: Network, optimizer: Momentum) -> None:
        self.network, self.optimizer = network, optimizer

    def share(self, num_samples: int) -> range:
        """Return the samples of a batch that go through this rank's network."""
        return range(num_samples)

    def reported(self, num_samples: int) -> slice:
        """Return the samples of the share to report losses of: over all ranks, each sample once."""
        return slice(None)

    def forward(self, inputs: Array, labels: Array) -> Result:
        return self.network.forward(inputs, labels)

    def backward(self, global_batch_size: int) -> None:
        self.network.backward(global_batch_size)

    def combine(self) -> None:
        """Combine the gradients of all ranks."""

    def update(self) -> None:
        """Make one step of the optimizer on the parameters that this rank owns."""
        self.optimizer.step(self.network.gradients)

    def distribute(self) -> None:
        """Send the new parameters to the ranks that need them."""

    def full_parameters(self) -> Array:
        """Return all parameters, in the order of one process. Collective."""
        return self.network.parameters


class Library(Alone):
    """Data parallel: every rank has the network and a share of each batch; MPI adds up gradients.

    All ranks begin with the same parameters and make the same updates, so parameters stay equal.
    """

    def __init__(self, network: Network, optimizer: Momentum, group: Group) -> None:
        super().__init__(network, optimizer)
        self.group = group

    def share(self, num_samples: int) -> range:
        return share_of(self.group.rank, self.group.size, num_samples)

    def combine(self) -> None:
        self.group.all_reduce(as_buffer(self.network.gradients), algorithm="library")


class Ring(Library):
    """`Library` with the sum written out: each rank exchanges with its two neighbours only."""

    def combine(self) -> None:
        ring_all_reduce(self.network.gradients, self.group)


def ring_all_reduce(vector: Array, group: Group) -> None:
    """Sum `vector` over all ranks, in place; every rank ends with the same bits.

    vector: (n,), contiguous, the same n and dtype on every rank; n need not divide by the ranks.
    Cost:   2(p-1) messages of about n/p elements: 2(p-1)·latency + 2(p-1)/p · bytes/bandwidth.
    Source: Patarasuk & Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.

    The vector is cut into p chunks. An example with three ranks: each begins with its own values of
    the chunks A, B and C, and rank r sends to rank r+1:

                      rank 0             rank 1             rank 2
        begin         A     B     C      A     B     C      A     B     C
        1st round     sends A            sends B            sends C
                      A     B     C₂₀    A₀₁   B     C      A     B₁₂   C
        2nd round     sends C            sends A            sends B
                      A     B₁₂₀  C₂₀    A₀₁   B     C₂₀₁   A₀₁₂  B₁₂   C

    Every chunk is now complete on one rank: rank r has chunk r+1. That was the *reduce-scatter*.
    Two more rounds send the complete chunks around: the *all-gather*.
    """
    rank, size = group.rank, group.size
    chunks = [part_of(vector, owner, size) for owner in range(size)]
    arriving = np.empty(max(map(len, chunks)), vector.dtype)
    for turn in range(size - 1):
        sent, summed = chunks[(rank - turn) % size], chunks[(rank - turn - 1) % size]
        term = arriving[: len(summed)]
        pass_on(sent, term, group)
        summed += term
    for turn in range(size - 1):
        pass_on(chunks[(rank + 1 - turn) % size], chunks[(rank - turn) % size], group)


def pass_on(sent: Array, received: Array, group: Group) -> None:
    """Send to the right while receiving from the left (MPI's Isend and Irecv).

    No rank may wait until it has begun both: if all ranks first sent and waited, none would
    receive.
    """
    arriving = group.receive(as_buffer(received), source=(group.rank - 1) % group.size)
    leaving = group.send(as_buffer(sent), dest=(group.rank + 1) % group.size)
    arriving.wait()
    leaving.wait()


def part_of(vector: Array, number: int, count: int) -> Array:
    """Return a view of one of `count` parts of a vector; their lengths differ by at most one."""
    share = share_of(number, count, len(vector))
    return vector[share.start : share.stop]


class Worker(Alone):
    """Rank that computes gradients for parameter servers, which update: it has no optimizer.

    Ranks 0 … s-1 are servers. Each owns one part of the vector of parameters: it sums the gradients
    of that part over all workers, updates it, and sends it back. The update waits for every worker,
    so it is that of one process.

    A worker's traffic goes to the servers, a server's to all workers: with one server and p-1
    workers the server moves p-1 times the vector each way. Several servers share this traffic.
    Source: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server", OSDI.
    """

    def __init__(self, network: Network, group: Group, *, servers: int) -> None:
        self.network, self.group, self.servers = network, group, servers

    def share(self, num_samples: int) -> range:
        worker, workers = self.group.rank - self.servers, self.group.size - self.servers
        return share_of(worker, workers, num_samples)

    def combine(self) -> None:
        gradients, servers = self.network.gradients, self.servers
        parts = [as_buffer(part_of(gradients, server, servers)) for server in range(servers)]
        for leaving in [self.group.send(part, dest=to) for to, part in enumerate(parts)]:
            leaving.wait()

    def update(self) -> None:
        """Do nothing: the servers update."""

    def distribute(self) -> None:
        parameters, servers = self.network.parameters, self.servers
        parts = [as_buffer(part_of(parameters, server, servers)) for server in range(servers)]
        for arriving in [self.group.receive(part, source=at) for at, part in enumerate(parts)]:
            arriving.wait()

    def full_parameters(self) -> Array:
        self.group.broadcast(as_buffer(self.network.parameters), root=self.servers)
        return self.network.parameters


class Server(Alone):
    """Rank with a part of the parameters and the optimizer of that part, and without samples."""

    role = "server"

    def __init__(
        self, network: Network, group: Group, *, servers: int, lr: float, momentum: float
    ) -> None:
        """network: as the workers begin with it; only the part is kept."""
        self.group, self.servers, self.size = group, servers, len(network.parameters)
        self.parameters = part_of(network.parameters, group.rank, servers).copy()
        self.gradients, self.term = np.zeros_like(self.parameters), np.zeros_like(self.parameters)
        self.optimizer = Momentum(self.parameters, lr=lr, momentum=momentum)
        self.workers = range(servers, group.size)

    def share(self, num_samples: int) -> range:
        return range(0)

    def forward(self, inputs: Array, labels: Array) -> Result:
        return Result(np.empty(0), np.empty(0, np.bool_))

    def backward(self, global_batch_size: int) -> None:
        """Do nothing: workers have divided by the size already."""

    def combine(self) -> None:
        """Sum in the order of the workers, so that the same run gives the same bits."""
        self.gradients[...] = 0
        for worker in self.workers:
            self.group.receive(as_buffer(self.term), source=worker).wait()
            self.gradients += self.term

    def update(self) -> None:
        self.optimizer.step(self.gradients)

    def distribute(self) -> None:
        part = as_buffer(self.parameters)
        for leaving in [self.group.send(part, dest=worker) for worker in self.workers]:
            leaving.wait()

    def full_parameters(self) -> Array:
        """Receive all from the first worker: servers have their parts only."""
        parameters = np.empty(self.size, self.parameters.dtype)
        self.group.broadcast(as_buffer(parameters), root=self.servers)
        return parameters
