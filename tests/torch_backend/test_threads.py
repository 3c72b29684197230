"""Compute threads of ranks that share a node."""

from collections.abc import Iterator

import pytest
import torch

from phalanx.jobs.cores import bound_cores
from phalanx.torch_backend.threads import VARIABLES, share_cores

CORES = len(bound_cores())
pytestmark = pytest.mark.skipif(CORES < 2, reason="bound to one core")


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(CORES)
    yield
    torch.set_num_threads(before)


def test_ranks_share_the_cores() -> None:
    share_cores(CORES)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_of_the_user_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, str(CORES))
    share_cores(CORES)
    assert torch.get_num_threads() == CORES


def test_a_number_of_the_program_counts() -> None:
    torch.set_num_threads(CORES + 3)
    share_cores(CORES)
    assert torch.get_num_threads() == CORES + 3
