"""Bandwidths as nccl-tests defines them, and the floor's arithmetic."""

import pytest

from phalanx.records.collectives import Collective
from phalanx.report.collectives import (
    Machine,
    bus_bandwidth,
    floor_s,
    interpolated,
)

MEGABYTE = 2**20
MACHINE = Machine(copy={MEGABYTE: 4e11, 4 * MEGABYTE: 1e11}, add={}, round_trip_s=4e-7)


@pytest.mark.parametrize(
    ("collective", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 4, 1.5),
        ("all_reduce", 8, 1.75),
        ("reduce_scatter", 4, 0.75),
        ("all_gather", 4, 0.75),
        ("all_to_all", 2, 0.5),
        ("broadcast", 8, 1.0),
        ("barrier", 8, 0.0),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(
    collective: Collective, ranks: int, factor: float
) -> None:
    assert bus_bandwidth(collective, ranks, 1000, 1e-6) == pytest.approx(factor * 1e9)


def test_an_all_reduce_must_move_2pn_bytes() -> None:
    for ranks in (2, 3, 8):
        least_s = floor_s("all_reduce", ranks, MEGABYTE, MACHINE)
        assert least_s == pytest.approx(2 * ranks * MEGABYTE / 4e11 + 4e-7)


@pytest.mark.parametrize(
    ("collective", "traffic"),
    [("reduce_scatter", 4), ("all_gather", 6), ("broadcast", 4), ("all_to_all", 6)],
)
def test_what_the_others_must_move(collective: Collective, traffic: int) -> None:
    flat = Machine(copy={1: 1e9}, add={}, round_trip_s=1e-9)
    assert floor_s(collective, 3, 1000, flat) == pytest.approx(traffic * 1000 / 1e9 + 1e-9)


def test_a_barrier_is_half_a_round_trip() -> None:
    assert floor_s("barrier", 2, 0, MACHINE) == 2e-7


def test_no_floor_without_flags_memory_or_others() -> None:
    assert floor_s("all_reduce", 1, MEGABYTE, MACHINE) is None
    assert floor_s("all_reduce", 2, 4, Machine(copy={}, add={}, round_trip_s=1.0)) is None
    assert floor_s("all_reduce", 2, 4, Machine(copy={1: 1.0}, add={}, round_trip_s=None)) is None


def test_between_its_points_a_curve_is_straight_on_logarithmic_axes() -> None:
    curve = MACHINE.copy
    assert interpolated(curve, MEGABYTE) == pytest.approx(4e11)
    assert interpolated(curve, 2 * MEGABYTE) == pytest.approx(2e11)
    assert interpolated(curve, 4 * MEGABYTE) == pytest.approx(1e11)


def test_beyond_its_ends_a_curve_is_flat() -> None:
    assert interpolated(MACHINE.copy, 4) == pytest.approx(4e11)
    assert interpolated(MACHINE.copy, 64 * MEGABYTE) == pytest.approx(1e11)
