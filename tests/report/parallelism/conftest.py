"""A study's records, made once."""

from pathlib import Path

import pytest

from phalanx.report.parallelism.material import Material, read_material
from tests.report.parallelism.made_parallelism import parallelism_study


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parallelism_study(tmp_path_factory.mktemp("parallelism") / "study")


@pytest.fixture(scope="session")
def made(study: Path) -> Material:
    return read_material(study)
