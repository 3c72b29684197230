"""`python -m phalanx.bench.machine_rank OPTIONS`: a rank of `phalanx bench machine`.

Computation is measured on the first node, which stands for all; links between nodes in rounds of
disjoint pairs, all ranks of a node at once. Rank 0 writes `machine.json`.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from phalanx.bench.ranks import RankRecords, launched_rank
from phalanx.comm import kernels
from phalanx.comm.buffer import Buffer
from phalanx.comm.collectives.lanes import ranks_by_node
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.group import Group
from phalanx.comm.join_world import join_world
from phalanx.comm.pairs import pair_rounds
from phalanx.comm.wait import WaitPolicy, wait_until
from phalanx.comm.world import World
from phalanx.jobs.cores import usable_cores, usable_memory_bytes
from phalanx.records.collectives import ProgressEvent
from phalanx.records.environment import processor_name
from phalanx.records.files import write_atomically

MEASURED = "machine.json"
SIDE = 256
"""Rows of the matrices that are multiplied: they fit a core's own cache."""
VALUES = 2**20
"""Values of the vectors that are added: they do not."""
BUSY_S, ROUNDS = 0.6, 3
SUM_S = 0.2
CHUNK_BYTES = 4 * 2**20
"""Bytes that a rank sends and receives at once: several of its messages."""
TURN_S, TURNS = 0.5, 6
"""Seconds of a turn of a pair, and turns, in which one of the nodes sends."""
ROUND_TRIPS, ROUND_TRIPS_S = 100, 0.5
"""Most round trips of a pair, and the seconds after which there are no more."""
LINKS_S = 15.0
"""Seconds for all rounds of pairs; rounds that would begin later are left out."""
TIMEOUT_S = 60.0
_AT_ONCE = WaitPolicy(spins=100_000, yields=100_000, nap_s=100e-6)
"""Policy of round trips: a nap would be part of the latency."""


Show = Callable[[str], None]
"""Shows what is measured next."""


class LinkTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a pair of nodes, all ranks of both at once."""

    nodes: tuple[int, int]
    latencies_s: list[float]
    """Halves of round trips of 8 bytes between two ranks."""
    bandwidths_bytes_per_s: list[float]
    """Bytes a second out of one of the nodes, which take turns."""
    send_cpu_s_per_mb: float
    """Processor seconds of a rank per megabyte sent, and as much received, both ways at once."""


class MeasuredNodes(msgspec.Struct, frozen=True, kw_only=True):
    """`machine.json`: the first node, and the links between all."""

    hostname: str
    processor: str
    cores: int
    memory_bytes: int
    load_average: float
    busy_s: dict[int, list[float]]
    """Mean turn of the slowest of the ranks that compute at once, by their number and round."""
    sum_cpu_s_per_mb: float
    """Processor seconds in which a rank adds a megabyte of float32 to another."""
    links: list[LinkTimes]


def measure_here(counts: Sequence[int], world: World | None, show: Show) -> MeasuredNodes:
    """Return the measurements of all ranks. Collective. world: None: this process alone.

    counts: numbers of ranks of the first node that compute at once.
    """
    load_average = os.getloadavg()[0]
    show(f"contention of {', '.join(map(str, counts))} ranks")
    busy_s = busy_times(counts, world)
    sum_cpu_s = sum_cost(SUM_S)
    links: list[LinkTimes] = []
    if world is not None:
        nodes = world.group.nodes
        sum_cpu_s = statistics.fmean(world.group.compare(sum_cpu_s)[: nodes.count(0)])
        if len(set(nodes)) > 1:
            links = Links(world.group, show).measure()
    return MeasuredNodes(
        hostname=socket.gethostname(),
        processor=processor_name(),
        cores=usable_cores(),
        memory_bytes=usable_memory_bytes(),
        load_average=load_average,
        busy_s=busy_s,
        sum_cpu_s_per_mb=sum_cpu_s,
        links=links,
    )


# -- a node --------------------------------------------------------------------------------------


def busy_times(counts: Sequence[int], world: World | None) -> dict[int, list[float]]:
    """Return the mean turn of the slowest rank, by the number of ranks that compute at once on the
    first node, which take turns. All others sleep: no message passes meanwhile. Collective.

    A median would be that of turns within a time slice, as if ranks that share a core had it alone.
    """
    found: dict[int, list[float]] = {number: [] for number in counts}
    for _ in range(ROUNDS):
        for number in counts:
            if world is None:
                found[number].append(statistics.fmean(turns(BUSY_S)))
                continue
            turn_s = 0.0
            world.barrier("contention")
            if world.rank < number:  # they fill the first node first
                turn_s = statistics.fmean(turns(BUSY_S))
            else:
                time.sleep(BUSY_S)
            found[number].append(max(world.group.compare(turn_s)))
    return found


def turns(seconds: float) -> list[float]:
    """Return the seconds of each turn: a product of matrices, and a sum of long vectors, which take
    about as long as each other."""
    generator = np.random.default_rng(0)
    matrix = generator.random((SIDE, SIDE), dtype=np.float32)
    left, right = (generator.random(VALUES, dtype=np.float32) for _ in range(2))
    product, total, found = np.empty_like(matrix), np.empty_like(left), []
    until_s = time.perf_counter() + seconds
    while (began_s := time.perf_counter()) < until_s:
        np.matmul(matrix, matrix, out=product)
        np.add(left, right, out=total)
        found.append(time.perf_counter() - began_s)
    return found


def sum_cost(seconds: float) -> float:
    """Return the processor seconds in which a megabyte of float32 is added to another."""
    total, arrived = (Buffer.of(np.ones(CHUNK_BYTES // 4, np.float32)) for _ in range(2))
    began_s, number = time.process_time(), 0
    while (took_s := time.process_time() - began_s) < seconds:
        kernels.reduce_terms([total, arrived], total, ReduceOp.SUM)
        number += 1
    return took_s / number / (CHUNK_BYTES / 1e6)


# -- links ---------------------------------------------------------------------------------------


class Links:
    """The links between the nodes of a group, as one of its ranks measures them."""

    def __init__(self, group: Group, show: Show) -> None:
        self._group, self._show, self._rank = group, show, group.rank
        self._nodes = ranks_by_node(group.nodes)
        """Ranks of each node."""
        self._hosts = group.compare(socket.gethostname())
        self._out, self._into = (Buffer.of(np.ones(CHUNK_BYTES, np.uint8)) for _ in range(2))

    def measure(self) -> list[LinkTimes]:
        """Return the measurements of pairs of nodes, until `LINKS_S` are over. Collective."""
        group, began_s = self._group, time.monotonic()
        everyone = range(group.size)
        resting = group.subgroup(everyone, name="links", policy=WaitPolicy.beside_compute())
        communicator = group.make_communicator(everyone, name="round trips")
        found: list[LinkTimes] = []
        rounds = pair_rounds(len(self._nodes))
        for number, pairs in enumerate(rounds, 1):
            if not group.share(time.monotonic() - began_s < LINKS_S):
                break
            self._show(f"links between nodes, round {number} of {len(rounds)}")
            found += self._measure_round(pairs, communicator, resting)
        communicator.Free()
        resting.close()
        return found

    def _measure_round(
        self, pairs: Sequence[tuple[int, int]], communicator: Any, resting: Group
    ) -> list[LinkTimes]:
        """Measure disjoint pairs of nodes at the same time. Collective."""
        group, peer = self._group, self._peer_in(pairs)
        latencies_s: list[float] = []
        group.barrier(name="round trips")
        if peer is not None and self._rank == self._nodes[group.nodes[self._rank]][0]:
            latencies_s = self._round_trips(communicator, peer)
        leads = peer is not None and self._rank < peer
        trial_s = max(group.compare(self._exchange(group, peer, peer, 1)[0]))
        chunks = max(1, int(TURN_S / trial_s))
        turns_s = list[list[float]]()
        for number in range(TURNS):
            to, source = (peer, None) if leads == (number % 2 == 0) else (None, peer)
            turns_s.append(group.compare(self._exchange(group, to, source, chunks)[0]))
        cpus_s = group.compare(self._exchange(resting, peer, peer, chunks)[1])
        all_latencies_s = group.compare(latencies_s)
        sent, found = chunks * CHUNK_BYTES, []
        for pair in pairs:
            ranks = [rank for node in pair for rank in self._nodes[node]]
            node_bytes = len(ranks) // 2 * sent
            slowest_s = [max(turn[rank] for rank in ranks) for turn in turns_s]
            found.append(
                LinkTimes(
                    nodes=pair,
                    latencies_s=all_latencies_s[min(ranks)],
                    bandwidths_bytes_per_s=[node_bytes / seconds for seconds in slowest_s],
                    send_cpu_s_per_mb=statistics.fmean(cpus_s[r] for r in ranks) / (sent / 1e6),
                )
            )
        return found

    def _peer_in(self, pairs: Sequence[tuple[int, int]]) -> int | None:
        """Return the rank with this rank's place on the node that its own is paired with; None:
        its node rests."""
        node = self._group.nodes[self._rank]
        place = self._nodes[node].index(self._rank)
        for first, second in pairs:
            if node in (first, second):
                return self._nodes[second if node == first else first][place]
        return None

    def _exchange(
        self, group: Group, dest: int | None, source: int | None, chunks: int
    ) -> tuple[float, float]:
        """Send and receive so many chunks; return seconds and processor seconds. Collective."""
        sends = [] if dest is None else [(self._out, dest)]
        receives = [] if source is None else [(self._into, source)]
        group.barrier(name="links")
        with group.messages("links", chunks * CHUNK_BYTES) as transport:
            began_s, cpu_s = time.perf_counter(), time.process_time()
            for _ in range(chunks):
                transport.exchange(sends, receives)
            return time.perf_counter() - began_s, time.process_time() - cpu_s

    def _round_trips(self, communicator: Any, peer: int) -> list[float]:
        """Return halves of round trips; the lower rank leads, and says which is the last."""
        found, leads, began_s = list[float](), self._rank < peer, time.monotonic()
        message, is_last = np.zeros(1, np.int64), False
        while not is_last:
            if leads:
                is_late = time.monotonic() - began_s > ROUND_TRIPS_S
                is_last = len(found) + 1 >= ROUND_TRIPS or (is_late and bool(found))
                message[0], sent_s = is_last, time.perf_counter()
                communicator.Send(message, peer)
            self._receive(communicator, message, peer)
            if leads:
                found.append((time.perf_counter() - sent_s) / 2)
            else:
                communicator.Send(message, peer)
                is_last = bool(message[0])
        return found[1:] or found  # the first opens the connection

    def _receive(self, communicator: Any, message: Any, peer: int) -> None:
        request = communicator.Irecv(message, peer)
        wait_until(
            request.Test,
            _AT_ONCE,
            timeout_s=TIMEOUT_S,
            on_timeout=lambda: (
                f"rank {self._rank} waited {TIMEOUT_S:g} s for a round trip with rank {peer} on "
                f"{self._hosts[peer]}"
            ),
        )


def main() -> None:
    """Measure on a rank that `run_ranks` has started."""
    with launched_rank() as (options, folder):
        world = join_world(timeout_s=TIMEOUT_S)
        records = RankRecords(folder, world.rank)
        counts = options["counts"]
        found = measure_here(counts, world, partial(records.announce, ProgressEvent, 0, 1))
        world.close()
        if world.rank == 0:
            write_atomically(folder / MEASURED, msgspec.json.encode(found))
        records.close()


if __name__ == "__main__":
    main()
