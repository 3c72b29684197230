"""Measure nodes for a machine file: memory, contention of ranks, sums in memory, links."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console

from phalanx.bench.config import CollectivesConfig
from phalanx.bench.job import run_bench
from phalanx.bench.machine_rank import MEASURED, LinkTimes, MeasuredNodes, measure_here
from phalanx.bench.profile import memory_rates, sums_of
from phalanx.bench.ranks import run_ranks
from phalanx.jobs.live_line import LiveLine
from phalanx.jobs.ranks import RankRequest
from phalanx.plan.counts import parse_counts
from phalanx.plan.machine import RANGES, Cluster, Network

SIZES = ("64KB", "1MB", "4MB", "25MB", "64MB")
SUMS_S = 4.0
LEAST_SPREAD, MOST_SPREAD = 1e-3, RANGES["network.bandwidth_spread"][1]
"""Bounds of the spread that is written: without any, a bandwidth is a stated one."""
COMMENTS = {
    "name": "Written by phalanx bench machine; a line of it may be changed or left out.\n"
    "The first node stands for all. Spread: half the distance of the quartiles over the median.",
    "memory_bytes_per_s": "Bytes read and written per second by a rank, by the bytes it works on;"
    "\nall ranks at once.",
    "contention": "Time of the same computation by ranks that compute, as multiple of one alone.",
    "all_reduce": "Sums of float32 in the memory of the node, by ranks and bytes.",
    "sum_cpu_s_per_mb": "Processor seconds in which a rank adds a megabyte to another.",
    "network": "Pairs of nodes, all ranks at once: bytes per second out of a node, half a round "
    "trip,\nprocessor seconds of a rank per megabyte.",
    "unknown": "Add what you know: network: {bandwidth_bytes_per_s: 12.5e9, latency_s: 2e-6}.",
}


def measure_machine(
    ranks_per_node: int,
    num_nodes: int,
    folder: Path,
    console: Console,
    *,
    is_here: bool,
    sizes: Sequence[str] = SIZES,
    price_per_node_hour: float | None = None,
) -> Cluster:
    """Return the nodes as a machine file has them; raw measurements are kept in `folder`.

    ranks_per_node: most ranks of a node. is_here: the only node is this machine. sizes: bytes of
    the sums.
    Raises: RunFailedError or UserError when ranks fail, as `Launch.run`.
    """
    counts, is_alone = parse_counts(f"1..{ranks_per_node}"), is_here and ranks_per_node == 1
    measured = _measure(counts, num_nodes, folder / "nodes", console, is_alone=is_alone)
    sums, rates = [], dict[int, float]()
    for number in counts[1:] or ([] if is_alone else [1]):  # they fill the first node first
        place = folder / f"ranks-{number}"
        config = CollectivesConfig(
            ranks=number, sizes=tuple(sizes), paths=("phalanx",), seconds=SUMS_S, output=place
        )
        run_bench(config, place, console=console)
        sums += sums_of(place, number, "phalanx") if number > 1 else []
        rates = memory_rates(place)
    return Cluster(
        name=measured.hostname,
        source=f"phalanx bench machine, {datetime.now(UTC):%Y-%m-%d}, "
        f"load {measured.load_average:.1f}",
        nodes=num_nodes,
        ranks_per_node=ranks_per_node,
        cores_per_node=measured.cores,
        processor=measured.processor,
        memory_gib_per_rank=round(measured.memory_bytes / ranks_per_node / 2**30, 1),
        memory_bytes_per_s={size: _rounded(rate) for size, rate in rates.items()},
        contention=contention_of(measured),
        all_reduce=sums,
        sum_cpu_s_per_mb=_rounded(measured.sum_cpu_s_per_mb),
        network=network_of(measured.links),
        price_per_node_hour=price_per_node_hour,
        unknown=unmeasured(num_nodes, measured.links),
    )


def _measure(
    counts: list[int], num_nodes: int, folder: Path, console: Console, *, is_alone: bool
) -> MeasuredNodes:
    """Run the ranks of all nodes. is_alone: one rank, which is this process."""
    if is_alone:
        return measure_here(counts, None, lambda words: console.print(words, markup=False))
    ranks = RankRequest(ranks=counts[-1] * num_nodes, threads=1).complete(None)
    with LiveLine(console) as line:
        run_ranks("phalanx.bench.machine_rank", {"counts": counts}, folder, ranks=ranks, line=line)
    return msgspec.json.decode((folder / MEASURED).read_bytes(), type=MeasuredNodes)


def contention_of(measured: MeasuredNodes) -> dict[int, float]:
    """Return how much longer ranks compute that exchange nothing, by their number, than one
    alone."""
    medians = {number: statistics.median(some) for number, some in measured.busy_s.items()}
    return {number: round(max(1.0, each / medians[1]), 3) for number, each in medians.items()}


def network_of(links: Sequence[LinkTimes]) -> Network | None:
    """Return the links between nodes: medians and spreads over the turns of all pairs."""
    if not links:
        return None
    bandwidth, bandwidth_spread = _median_and_spread(
        rate for link in links for rate in link.bandwidths_bytes_per_s
    )
    latency_s, latency_spread = _median_and_spread(each for it in links for each in it.latencies_s)
    return Network(
        bandwidth_bytes_per_s=bandwidth,
        bandwidth_spread=min(MOST_SPREAD, bandwidth_spread),
        latency_s=latency_s,
        latency_spread=latency_spread,
        send_cpu_s_per_mb=_rounded(statistics.median(link.send_cpu_s_per_mb for link in links)),
    )


def unmeasured(num_nodes: int, links: Sequence[LinkTimes]) -> list[str]:
    """Return what a machine file cannot say of so many nodes, in words."""
    if num_nodes == 1:
        return ["network"]
    pairs = num_nodes * (num_nodes - 1) // 2
    left_out = pairs - len(links)
    return [f"links of {left_out} of {pairs} pairs of nodes"] if left_out else []


def _median_and_spread(values: Iterable[float]) -> tuple[float, float]:
    """Return the median, and half the distance of the quartiles as a share of it."""
    ordered = sorted(values)
    low, middle, high = (ordered[round(q * (len(ordered) - 1))] for q in (0.25, 0.5, 0.75))
    return _rounded(middle), max(LEAST_SPREAD, round((high - low) / 2 / middle, 4))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
