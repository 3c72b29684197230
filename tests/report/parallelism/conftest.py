"""A study's records, made once."""

from pathlib import Path

import pytest

from phalanx.report.values import View
from tests.report.made_view import read
from tests.report.parallelism.made_parallelism import parallelism_study


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parallelism_study(tmp_path_factory.mktemp("parallelism") / "study")


@pytest.fixture(scope="session")
def made(study: Path) -> list[View]:
    """The schemes, the network from scratch, the algorithms."""
    return read(study)[1]
