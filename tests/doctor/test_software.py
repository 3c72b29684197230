"""Versions: of what is installed, and that the limits are those of the project file."""

import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from phalanx.data.datasets import catalog
from phalanx.doctor import software
from phalanx.doctor.checks import check_data
from phalanx.doctor.devices import judge_gpu
from phalanx.doctor.software import check_python, check_report, check_torch, release

PROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text()


def test_limits_are_those_of_the_project_file():
    (python,) = re.findall(r'requires-python = ">=([\d.]+)"', PROJECT)
    (torch,) = re.findall(r'"torch>=([\d.]+)"', PROJECT)
    assert release(python) == software.OLDEST_PYTHON
    assert release(torch) == software.OLDEST_TORCH
    for name in software.REPORT_PACKAGES.values():
        assert f'"{name}>=' in PROJECT


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2.13.0+cpu", (2, 13, 0)), ("2.14.0.dev20261101", (2, 14, 0)), ("unknown", ())],
)
def test_releases(text, numbers):
    assert release(text) == numbers


def test_this_environment_is_well():
    for check in (check_python, check_torch, check_report):
        (found,) = check()
        assert found.status in ("ok", "warning"), found


def test_an_old_torch(monkeypatch):
    monkeypatch.setattr(software, "version", lambda _: "2.4.1")
    (found,) = check_torch()
    assert (found.status, found.mend) == ("problem", "pip install --upgrade 'torch>=2.11'")


def test_no_torch(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(software, "version", missing)
    (found,) = check_torch()
    assert (found.status, found.mend) == ("problem", "pip install torch")


@pytest.mark.parametrize(
    ("names", "cuda", "has_driver", "status"),
    [
        ([], None, False, "ok"),
        ([], "13.0", False, "ok"),
        (["NVIDIA H200"], "13.0", True, "ok"),
        ([], None, True, "warning"),
        ([], "13.0", True, "warning"),
    ],
)
def test_gpu(names, cuda, has_driver, status):
    assert judge_gpu(names, cuda, has_driver=has_driver).status == status


def test_an_environment_without_the_extra_of_studies(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(software, "version", missing)
    (found,) = check_report()
    assert (found.status, found.mend) == ("warning", "pip install 'phalanx[study]'")


def test_what_only_the_embedded_digits_need_is_no_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An installation of the backend alone was never well."""
    monkeypatch.setattr(catalog, "find_spec", {}.get)
    monkeypatch.setattr(catalog, "digits_file", lambda: tmp_path / "none")
    monkeypatch.setenv("PHALANX_DATA", str(tmp_path))
    (finding,) = check_data(None)
    assert finding.status == "warning"
    assert "pip install 'phalanx[study]'" in finding.detail
