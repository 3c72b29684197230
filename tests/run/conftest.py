"""Ranks of these tests are forks: what is tested begins after the imports."""

import pytest

from tests.conftest import Ranks


@pytest.fixture
def ranks(forked_ranks: Ranks) -> Ranks:
    return forked_ranks
