"""Record folders for the tests of the report, made once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from tests.report import browser
from tests.report.made_study import Job, full_study, make_run, troubled_study


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return full_study(tmp_path_factory.mktemp("full") / "full")


@pytest.fixture(scope="session")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return troubled_study(tmp_path_factory.mktemp("troubled") / "troubled")


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("alone") / "alone", Job("cnn", "mpi", ranks=2))


@pytest.fixture(scope="session")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="session")
def chrome(tmp_path_factory: pytest.TempPathFactory, downloads: Path) -> Iterator[Chrome]:
    with browser.browser(tmp_path_factory.mktemp("profile"), downloads) as chrome:
        yield chrome
