"""Formulas for the bytes that a rank sends, receives and keeps in each scheme.

Ψ is the number of parameters, p that of ranks, s that of servers. Shares are exact even if sizes
do not divide, so the counters of a rank must equal these to the byte; tests check that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from network import full_layers
from tensor import partitions_outputs, parts_of

from phalanx.comm.layout import share_of
from phalanx.comm.traffic import Traffic, all_gather_traffic, all_reduce_traffic, sum_traffic
from phalanx.records import events

ITEMSIZE = {"float32": 4, "float64": 8}


def expected_costs(options: Any, rank: int, ranks: int, batch_size: int) -> events.ExpectedCosts:
    """Return the expected bytes of `rank` in a step on a global batch of `batch_size` samples.

    options: those of `train.py`.
    """
    itemsize = ITEMSIZE[options.dtype]
    held = parameters = sum(layer.size for layer in full_layers(options.sizes))
    copies, share, formula = 3, "Ψ", "0"  # parameters, gradients and velocity
    moved = Traffic(0, 0, 0)
    match options.scheme:
        case "library":
            moved = all_reduce_traffic(parameters, itemsize, rank, ranks)
            formula = f"2(p−1)/p · {itemsize}Ψ"
        case "ring":
            moved, formula = (
                ring_traffic(parameters, itemsize, rank, ranks),
                f"2(p−1)/p · {itemsize}Ψ",
            )
        case "server" if rank >= options.num_servers:
            copies = 2  # no velocity
            moved = Traffic(itemsize * parameters, itemsize * parameters, options.num_servers)
            formula = f"{itemsize}Ψ"
        case "server":
            servers = options.num_servers
            held, workers = len(share_of(rank, servers, parameters)), ranks - servers
            moved = Traffic(workers * held * itemsize, workers * held * itemsize, workers)
            formula, share = f"(p−s) · {itemsize}Ψ/s", "Ψ/s" if servers > 1 else "Ψ"
        case "tensor":
            held, share = sum(part.size for part in parts_of(options.sizes, rank, ranks)), "Ψ/p"
            moved = tensor_traffic(options.sizes, batch_size, itemsize, rank, ranks)
            formula = f"2(p−1)/p · {itemsize}B · ({tensor_widths(options.sizes)}), B the batch"
    return events.ExpectedCosts(
        sent_bytes=moved.sent_bytes,
        received_bytes=moved.received_bytes,
        traffic_formula=formula,
        state_bytes=copies * itemsize * held,
        state_formula=f"{copies * itemsize}{share}",
    )


def ring_traffic(count: int, itemsize: int, rank: int, size: int) -> Traffic:
    """Return the traffic of `rank` in `schemes.ring_all_reduce`.

    In each of its two phases a rank sends all chunks but one, and receives all but one.
    """
    chunks = [len(share_of(owner, size, count)) for owner in range(size)]

    def without(first: int, second: int) -> int:
        return itemsize * (2 * count - chunks[first % size] - chunks[second % size])

    sent, received = without(rank + 1, rank + 2), without(rank, rank + 1)
    return Traffic(sent, received, 2 * (size - 1)) if size > 1 else Traffic(0, 0, 0)


def tensor_calls(sizes: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    """Yield the collectives of a step, and the elements for each sample of the batch.

    A pair of layers sums its outputs forward and, unless it is the first, its inputs backward. A
    last layer without partner sums its outputs and gathers the shares of its inputs.
    """
    layers = full_layers(sizes)
    for number, layer in enumerate(layers):
        if not partitions_outputs(number, len(layers)):
            yield "all_reduce", layer.outputs
        if number and number % 2 == 0:
            is_alone = number + 1 == len(layers)
            yield "all_gather" if is_alone else "all_reduce", layer.inputs


def tensor_traffic(
    sizes: tuple[int, ...], batch_size: int, itemsize: int, rank: int, ranks: int
) -> Traffic:
    """Return the traffic of `rank` in a step of `tensor.Tensor`."""
    moves = []
    for name, width in tensor_calls(sizes):
        if name == "all_reduce":
            moves.append(all_reduce_traffic(batch_size * width, itemsize, rank, ranks))
        else:
            shares = [len(share_of(peer, ranks, width)) for peer in range(ranks)]
            moves.append(all_gather_traffic([batch_size * n * itemsize for n in shares], rank))
    return sum_traffic(moves)


def tensor_widths(sizes: tuple[int, ...]) -> str:
    """Return the elements that are summed for each sample, as a formula: "10 + 64"."""
    calls = tensor_calls(sizes)
    return " + ".join(str(width) + "/2" * (name == "all_gather") for name, width in calls)
