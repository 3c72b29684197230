"""The bits of a trained model do not depend on the number of ranks."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.conftest import Ranks, long
from tests.run.programs.bitwise import CASES, trained


@pytest.fixture(autouse=True, scope="module")
def settings() -> Iterator[None]:
    """Undo what a bitwise run sets for its process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@cache
def truth() -> dict[str, str]:
    """Return the hashes of one process."""
    return {case.__name__: trained(case) for case in CASES}


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [2, 3, long(4), long(5), long(8)])
def test_same_bits_on_any_number_of_ranks(
    num_ranks: int, ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    ranks.mpi(num_ranks, programs("bitwise.py"), str(tmp_path))
    for rank in range(num_ranks):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == truth(), rank
