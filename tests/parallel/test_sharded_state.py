"""Parameters in one vector, each owner's side by side."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from phalanx.comm.layout import CACHE_LINE_BYTES, by_owner
from phalanx.errors import UserError
from phalanx.jobs.survival import FAULT_TOLERANCE, SPARES
from phalanx.parallel.costs import assign_owners
from phalanx.parallel.options import StrategyOptions
from phalanx.parallel.sharded_state import check_by_parameter, check_survivable, view_like
from phalanx.run.strategy import check_bitwise
from tests.conftest import Ranks


@given(st.lists(st.integers(0, 300), min_size=1, max_size=9), st.integers(1, 9))
def test_each_owner_has_its_parameters_side_by_side(sizes: list[int], num_owners: int) -> None:
    owners = assign_owners(sizes, num_owners)
    starts, pieces = by_owner(sizes, owners, num_owners, CACHE_LINE_BYTES)
    assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])]
    taken: set[int] = set()
    for start, size, owner in zip(starts, sizes, owners, strict=True):
        place = set(range(start, start + size))
        assert start % CACHE_LINE_BYTES == 0
        assert not place & taken
        assert place <= set(pieces[owner])
        taken |= place


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(3, 4).T,
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.tensor(2.5, dtype=torch.float64),
        torch.randn(5, dtype=torch.complex64),
        torch.randn(0, 3),
        torch.randn(6).bfloat16(),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}",
)
def test_a_view_has_the_order_in_memory_of_what_it_replaces(tensor: torch.Tensor) -> None:
    memory = torch.zeros(64 + tensor.nbytes, dtype=torch.uint8)
    view = view_like(tensor, memory[64:])
    view.copy_(tensor)
    assert torch.equal(view, tensor)
    assert view.stride() == tensor.stride()
    assert not tensor.numel() or view.data_ptr() == memory.data_ptr() + 64


def test_what_cannot_survive_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FAULT_TOLERANCE, "1")
    check_survivable("zero", num_nodes=2)
    with pytest.raises(
        UserError, match=r"on a single node only, but there are 2 nodes: use \"zero\" or \"mpi\""
    ):
        check_survivable("shared", num_nodes=2)
    for options, words in (
        (StrategyOptions(strategy="zero", zero_stage=1), "--spares 1 and --strategy zero exclude"),
        (StrategyOptions(strategy="mpi", overlap="on"), "--overlap on and --survive exclude each"),
    ):
        monkeypatch.setenv(SPARES, "1" if options.strategy == "zero" else "0")
        with pytest.raises(UserError, match=words):
            check_bitwise(options, is_on_gpu=False)


class Joint(SGD):
    """Of nobody knows what."""


@pytest.mark.parametrize("kind", [Joint, torch.optim.LBFGS])
def test_optimizers_that_may_update_jointly_are_refused(kind: type[Optimizer]) -> None:
    parameters = nn.Linear(2, 2).parameters()
    check_by_parameter(AdamW(parameters), "zero")
    with pytest.raises(UserError, match=f"{kind.__name__} may update them jointly"):
        check_by_parameter(kind(nn.Linear(2, 2).parameters(), lr=0.1), "zero")


@pytest.mark.mpi
@pytest.mark.parametrize("count", [1, 3])
def test_a_memory_goes_with_any_sum(
    ranks: Ranks, programs: Callable[[str], Path], count: int
) -> None:
    output = ranks.mpi(count, programs("sharded_state.py"))
    assert sorted(re.findall(r"rank (\d) is done", output)) == [str(r) for r in range(count)]
