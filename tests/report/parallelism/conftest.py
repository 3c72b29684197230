"""A study's records, made once."""

from pathlib import Path

import pytest

from phalanx.report.parallelism.study_data import ParallelismStudyData, read_study_data
from tests.report.parallelism.made_parallelism import parallelism_study


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parallelism_study(tmp_path_factory.mktemp("parallelism") / "study")


@pytest.fixture(scope="session")
def made(study: Path) -> ParallelismStudyData:
    return read_study_data(study)
