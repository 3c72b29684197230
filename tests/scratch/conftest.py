"""The installed command, as in the tests of the command line."""

import pytest

from tests.cli.conftest import forked_phalanx, phalanx, started
from tests.conftest import Ranks

__all__ = ["forked_phalanx", "phalanx", "started"]


@pytest.fixture
def ranks(new_ranks: Ranks) -> Ranks:
    """No forks: a rank must not find PyTorch imported."""
    return new_ranks
