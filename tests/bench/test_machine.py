"""`phalanx bench machine`: what follows from raw measurements, and the measurements of ranks."""

import pytest

from phalanx.bench import machine_rank
from phalanx.bench.machine import contention_of, network_of, unmeasured
from phalanx.bench.machine_rank import LinkTimes, MeasuredNodes, busy_times, sum_cost
from tests.conftest import Programs, Ranks, done


def links(*bandwidths: float) -> list[LinkTimes]:
    return [
        LinkTimes(
            nodes=(0, number),
            latencies_s=[1e-5, 2e-5, 3e-5],
            bandwidths_bytes_per_s=[bandwidth],
            send_cpu_s_per_mb=2e-4,
        )
        for number, bandwidth in enumerate(bandwidths, 1)
    ]


def measured(**busy_s: list[float]) -> MeasuredNodes:
    return MeasuredNodes(
        hostname="n0",
        processor="a processor",
        cores=4,
        memory_bytes=2**30,
        load_average=0.0,
        busy_s={int(name[1:]): times for name, times in busy_s.items()},
        sum_cpu_s_per_mb=1e-4,
        links=[],
    )


def test_contention_is_a_multiple_of_the_median_time_alone() -> None:
    assert contention_of(measured(k1=[2.0, 1.0, 9.0], k2=[3.0, 2.5, 2.4], k4=[1.9, 1.9, 1.9])) == {
        **{1: 1.0, 2: 1.25},
        4: 1.0,  # no computation gets faster by company
    }


def test_a_network_is_the_median_over_pairs_with_their_spread() -> None:
    network = network_of(links(8e8, 9e8, 1e9, 1.1e9, 1.2e9))
    assert network is not None
    assert (network.bandwidth_bytes_per_s, network.bandwidth_spread) == (1e9, 0.1)
    assert (network.latency_s, network.latency_spread) == (2e-5, 0.5)
    assert network.send_cpu_s_per_mb == 2e-4


def test_a_measured_bandwidth_is_never_without_a_spread() -> None:
    """A plan takes one without for a stated bandwidth, of which programs reach a part."""
    network = network_of(links(1e9))
    assert network is not None and network.bandwidth_spread > 0
    far_apart = network_of(links(1e6, 1e6, 1e7, 1e9, 1e9))
    assert far_apart is not None and far_apart.bandwidth_spread < 1


def test_what_is_not_measured_is_named() -> None:
    assert network_of([]) is None
    assert unmeasured(1, []) == ["network"]
    assert unmeasured(2, links(1e9)) == []
    assert unmeasured(4, links(1e9, 1e9)) == ["links of 4 of 6 pairs of nodes"]


def test_a_process_alone_is_not_slowed_down() -> None:
    times = busy_times([1], None)
    assert all(each > 0 for each in times[1])
    assert contention_of(measured(k1=times[1])) == {1: 1.0}


def test_a_turn_without_the_core_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ranks on a core most turns are as short as alone, and one has the slice of the other
    in it: by the median, contention was 1.3 and plans of such nodes 35 % too short."""
    monkeypatch.setattr(machine_rank, "turns", lambda _: [1e-3] * 9 + [11e-3])
    assert busy_times([1], None)[1] == pytest.approx([2e-3] * machine_rank.ROUNDS)


def test_a_sum_takes_processor_time() -> None:
    assert sum_cost(0.02) > 1e-6


@pytest.mark.mpi
@pytest.mark.parametrize("count", [2, 3])
def test_links_of_ranks_that_an_emulated_link_parts(
    count: int, ranks: Ranks, programs: Programs
) -> None:
    """Their bandwidth is the link's; every pair is measured, also where a node rests."""
    assert done(ranks.mpi(count, programs("links.py")), count)
