"""What many small files cost."""

from pathlib import Path

from phalanx.bench.io.small_files import small_file_costs


def test_all_ways_are_measured(tmp_path: Path) -> None:
    costs = small_file_costs(tmp_path / "small", num_files=40, file_bytes=100_000, runs=3)
    assert list(costs) == ["open, close", "open, read, close", "read out of one file"]
    assert all(0 <= cost["low"] <= cost["median"] <= cost["high"] for cost in costs.values())
    assert (tmp_path / "small" / "whole").stat().st_size == 4_000_000
