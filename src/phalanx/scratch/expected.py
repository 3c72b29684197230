"""Formulas of each scheme for the bytes that a rank sends, receives and keeps. Pure.

Ψ is the number of parameters, p that of ranks, s that of servers; numbers are bytes. Shares are
exact where things do not divide, so what a rank counts must equal these to the byte.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from phalanx.comm.layout import share_of
from phalanx.comm.traffic import Traffic, all_gather_traffic, all_reduce_traffic
from phalanx.records.events import ExpectedCosts
from phalanx.scratch.config import ScratchConfig
from phalanx.scratch.partition import LayerPartition, partition_layers


def expected_of(config: ScratchConfig, rank: int, *, batch_size: int) -> ExpectedCosts:
    """Return the expected bytes of `rank` in a step on a global batch of `batch_size` samples.

    config: with every default filled in.
    """
    assert config.ranks is not None, "complete() comes first"
    itemsize = {"float32": 4, "float64": 8}[config.dtype]
    parameters, ranks = num_parameters(config.sizes), config.ranks
    match config.scheme:
        case "alone":
            return _expected(Traffic(0, 0, 0), "0", *_kept(itemsize, parameters, 3, "Ψ"))
        case "library":
            moved = all_reduce_traffic(parameters, itemsize, rank, ranks)
            formula = f"2(p−1)/p · {itemsize}Ψ"
            return _expected(moved, formula, *_kept(itemsize, parameters, 3, "Ψ"))
        case "ring":
            moved = ring_moved(parameters, itemsize, rank, ranks)
            formula = f"2(p−1)/p · {itemsize}Ψ"
            return _expected(moved, formula, *_kept(itemsize, parameters, 3, "Ψ"))
        case "server":
            return _server(parameters, itemsize, rank, ranks, config.servers or 1)
        case "tensor":
            layers = partition_layers(config.sizes, ranks)
            moved = tensor_moved(layers, batch_size, itemsize, rank)
            held = sum(cut.size(rank) for cut in layers)
            formula = f"2(p−1)/p · {itemsize}B · {_widths(layers)}, B the batch"
            return _expected(moved, formula, *_kept(itemsize, held, 3, "Ψ/p"))


def num_parameters(sizes: Sequence[int]) -> int:
    """Weights and biases of linear layers of these sizes."""
    return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(sizes))


def ring_moved(count: int, itemsize: int, rank: int, size: int) -> Traffic:
    """Return the traffic of `rank` in `schemes.ring.ring_all_reduce`.

    In each of its two phases a rank sends all chunks but one, and receives all but one.
    """
    chunks = [len(share_of(owner, size, count)) for owner in range(size)]

    def without(first: int, second: int) -> int:
        return itemsize * (2 * count - chunks[first % size] - chunks[second % size])

    sent, received = without(rank + 1, rank + 2), without(rank, rank + 1)
    return Traffic(sent, received, 2 * (size - 1)) if size > 1 else Traffic(0, 0, 0)


def tensor_moved(
    layers: Sequence[LayerPartition], batch_size: int, itemsize: int, rank: int
) -> Traffic:
    """Each pair of layers sums batch × outputs forward and, unless it is the first, batch × inputs
    backward. A last layer without partner sums batch × outputs forward and collects the shares of
    batch × inputs backward."""
    total = Traffic(0, 0, 0)
    for number, cut in enumerate(layers):
        ranks = cut.ranks
        if cut.kind != "columns":
            total = _sum(total, all_reduce_traffic(batch_size * cut.outputs, itemsize, rank, ranks))
        if number == 0:
            continue
        if cut.kind == "columns":
            total = _sum(total, all_reduce_traffic(batch_size * cut.inputs, itemsize, rank, ranks))
        elif cut.kind == "rows of whole inputs":
            shares = [batch_size * len(cut.rows(peer)) * itemsize for peer in range(ranks)]
            total = _sum(total, all_gather_traffic(shares, rank))
    return total


def _server(parameters: int, itemsize: int, rank: int, ranks: int, servers: int) -> ExpectedCosts:
    if rank >= servers:
        moved = Traffic(itemsize * parameters, itemsize * parameters, servers)
        return _expected(moved, f"{itemsize}Ψ", *_kept(itemsize, parameters, 2, "Ψ"))
    part, workers = len(share_of(rank, servers, parameters)), ranks - servers
    moved = Traffic(workers * part * itemsize, workers * part * itemsize, workers)
    kept = _kept(itemsize, part, 3, "Ψ/s" if servers > 1 else "Ψ")
    return _expected(moved, f"(p−s) · {itemsize}Ψ/s", *kept)


def _widths(layers: Sequence[LayerPartition]) -> str:
    """Return the elements sent for each sample as a formula: "(10 + 64)"."""
    widths = []
    for number, cut in enumerate(layers):
        if cut.kind != "columns":
            widths.append(str(cut.outputs))
        if number > 0 and cut.kind == "columns":
            widths.append(str(cut.inputs))
        elif number > 0 and cut.kind == "rows of whole inputs":
            widths.append(f"{cut.inputs}/2")
    return f"({' + '.join(widths)})"


def _kept(itemsize: int, parameters: int, copies: int, what: str) -> tuple[int, str]:
    """Parameters, gradients and velocity; a worker of servers has no velocity."""
    return copies * itemsize * parameters, f"{copies * itemsize}{what}"


def _expected(moved: Traffic, formula: str, state_bytes: int, state_formula: str) -> ExpectedCosts:
    return ExpectedCosts(
        sent_bytes=moved.sent_bytes,
        received_bytes=moved.received_bytes,
        traffic_formula=formula,
        state_bytes=state_bytes,
        state_formula=state_formula,
    )


def _sum(first: Traffic, second: Traffic) -> Traffic:
    return Traffic(*(a + b for a, b in zip(first, second, strict=True)))
