"""The backend on an emulated accelerator: its memory is shut to the host, and its streams lag."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ranks
from tests.device import emulated
from tests.torch_backend.test_process_group import done

Programs = Callable[[str], Path]
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not emulated.can_be_built(), reason="needs g++, to build the device"),
]


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    emulated.build()


def test_it_shows_what_a_program_forgets(ranks: Ranks, programs: Programs) -> None:
    assert "it lies in wait" in ranks.mpi(1, programs("lies_in_wait.py"), "vexa")


@pytest.mark.parametrize("count", [2, 3])
def test_collectives_wait_for_late_streams(ranks: Ranks, programs: Programs, count: int) -> None:
    assert done(ranks.mpi(count, programs("collectives.py"), "vexa", "1"), count)


@pytest.mark.parametrize("count", [2, 3])
def test_every_collective(ranks: Ranks, programs: Programs, count: int) -> None:
    assert done(ranks.mpi(count, programs("conformance.py"), "vexa"), count)
