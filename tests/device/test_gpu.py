"""Backend mpi and `phalanx.start` on a real GPU, which all ranks share; where there is none, on the
CPU, so that the programs stay right."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import Ranks
from tests.torch_backend.test_process_group import done

Programs = Callable[[str], Path]
pytestmark = [pytest.mark.mpi, pytest.mark.long, pytest.mark.timeout(600)]

gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no GPU that this PyTorch can use"
)
on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])


def is_done(ranks: Ranks, count: int, program: Path, *words: str) -> bool:
    return done(ranks.mpi(count, program, *words, timeout_s=500), count)


@on_devices
@pytest.mark.parametrize("count", [2, 3])
def test_collectives_wait_for_late_streams(
    new_ranks: Ranks, programs: Programs, device: str, count: int
) -> None:
    repeats = "20" if device == "cuda" else "1"
    assert is_done(new_ranks, count, programs("collectives.py"), device, repeats)


@on_devices
@pytest.mark.parametrize("count", [2, 3])
def test_every_collective(new_ranks: Ranks, programs: Programs, device: str, count: int) -> None:
    assert is_done(new_ranks, count, programs("conformance.py"), device)


@on_devices
@pytest.mark.parametrize("count", [2, 3])
def test_engines_of_torch_train_as_one_process(
    new_ranks: Ranks, programs: Programs, device: str, count: int
) -> None:
    assert is_done(new_ranks, count, programs("torch_engines.py"), device)


@on_devices
@pytest.mark.parametrize("count", [1, 2, 3])
def test_programs_train_as_one_process(
    new_ranks: Ranks, programs: Programs, device: str, count: int
) -> None:
    assert is_done(new_ranks, count, programs("start.py"), device)
