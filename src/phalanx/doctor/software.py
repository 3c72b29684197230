"""Checks of Python, PyTorch and the packages of the report."""

from __future__ import annotations

import importlib
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version

from phalanx.doctor.examine import Finding, ok, problem, warning
from phalanx.jobs.cores import usable_cores

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)
REPORT_PACKAGES = {"altair": "altair", "jinja2": "jinja2", "vl_convert": "vl-convert-python"}


def check_python() -> list[Finding]:
    detail = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        needed = ".".join(map(str, OLDEST_PYTHON))
        mend = f"create an environment with Python {needed} or newer and install Phalanx in it"
        return [problem("Python", detail, mend)]
    return [ok("Python", detail)]


def check_torch() -> list[Finding]:
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return [problem("PyTorch", "not installed", "pip install torch")]
    if release(installed) < OLDEST_TORCH:
        needed = ".".join(map(str, OLDEST_TORCH))
        return [
            problem(
                "PyTorch", f"{installed} is too old", f"pip install --upgrade 'torch>={needed}'"
            )
        ]
    return [_describe_torch(installed)]


def _describe_torch(installed: str) -> Finding:
    import torch

    build = f"CUDA {torch.version.cuda} build" if torch.version.cuda else "CPU build"
    threads, cores = torch.get_num_threads(), usable_cores()
    detail = f"{installed}, {build}, {threads} threads"
    if threads > cores:
        return warning("PyTorch", f"{detail} on {cores} cores", f"export OMP_NUM_THREADS={cores}")
    return ok("PyTorch", detail)


def check_report() -> list[Finding]:
    absent, broken = list[str](), list[str]()
    for module, name in REPORT_PACKAGES.items():
        try:
            version(name)
            importlib.import_module(module)
        except PackageNotFoundError:
            absent.append(name)
        except ImportError:
            broken.append(name)
    if absent:
        detail = f"neither reports nor studies without {', '.join(absent)}"
        return [warning("report", detail, "pip install 'phalanx[study]'")]
    if broken:
        mend = f"pip install --force-reinstall {' '.join(broken)}"
        return [problem("report", f"cannot be drawn without {', '.join(broken)}", mend)]
    versions = ", ".join(f"{name} {version(name)}" for name in REPORT_PACKAGES.values())
    return [ok("report", versions)]


def release(version_text: str) -> tuple[int, ...]:
    """`2.13.0+cpu` → (2, 13, 0)."""
    found = re.match(r"\d+(\.\d+)*", version_text)
    return tuple(map(int, found[0].split("."))) if found else ()
