"""The bits of a trained model do not depend on the number of ranks."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import Ranks, long
from tests.run.programs.bitwise import CASES, trained

pytestmark = pytest.mark.usefixtures("restored_settings")


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
