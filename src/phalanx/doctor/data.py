"""The data set that a run would use."""

from __future__ import annotations

from pathlib import Path

from phalanx.data.datasets.catalog import resolve
from phalanx.doctor.finding import Finding, ok


def check_data(data_root: Path | None) -> list[Finding]:
    return [ok("data", resolve("auto", data_root).reason)]
