"""The `shared` strategy: one copy a node, updated by the ranks together."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.comm import kernels
from phalanx.errors import UserError
from phalanx.parallel.shared import Shared
from tests.conftest import Ranks, long


def test_nodes_with_different_numbers_of_ranks_are_refused() -> None:
    group = SimpleNamespace(nodes=(0, 0, 1))
    world: Any = SimpleNamespace(rank=0, size=3, local_rank=0, library="", group=group)
    with pytest.raises(
        UserError,
        match="shared needs the same number of ranks on every node, but they have 2 and 1: start",
    ):
        Shared(world)


@pytest.mark.mpi
@pytest.mark.parametrize("count", [3, long(2)])
def test_nodes_sum_their_shares_by_lanes(
    ranks: Ranks, programs: Callable[[str], Path], count: int
) -> None:
    """Of one rank each: over an emulated link. Nodes of several are in tests/nodes."""
    output = ranks.mpi(count, programs("shared_over_nodes.py"), "10Gbit/s")
    assert sorted(re.findall(r"rank (\d) of \d is done", output)) == [str(r) for r in range(count)]
    assert "adam, 100: fused lanes, (m−1) · 8Ψ/k" in output
    assert "adam, 100000: fused lanes, 2(m−1)/m · 8Ψ/k" in output


@pytest.mark.mpi
@pytest.mark.parametrize("count", [1, 3, long(2)])
def test_parameters_and_state_exist_once(
    ranks: Ranks, programs: Callable[[str], Path], count: int
) -> None:
    output = ranks.mpi(count, programs("shared.py"), "once")
    assert sorted(re.findall(r"rank (\d) is done", output)) == [str(r) for r in range(count)]
    last = count - 1
    told = re.findall(r"says: step 1: gradients are not finite: the loss of rank (\d) is", output)
    assert told == [str(last)] * count, output


@pytest.mark.mpi
def test_ranks_without_kernels_are_refused(
    ranks: Ranks, programs: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kernels.VARIABLE, "arrays")
    output = ranks.mpi(2, programs("shared.py"), "once", may_fail=True)
    assert "--strategy shared needs the compiled kernels and shared memory" in output


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("link", "waited_in"),
    [("", "the fused step"), long("10Gbit/s", "all_reduce number 1 of group lane")],
)
def test_a_timeout_names_who_is_missing(
    ranks: Ranks,
    programs: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    link: str,
    waited_in: str,
) -> None:
    monkeypatch.setenv("PHALANX_LINK", link)
    output = ranks.mpi(3, programs("shared.py"), "late", may_fail=True)
    for rank in (0, 2):
        assert f"rank {rank} says: rank {rank} waited 1 s in {waited_in}" in output
    assert output.count("for rank 1") == 2
