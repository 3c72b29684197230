"""A program that resumes ends as if it had not stopped, on any number of ranks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Ranks, long
from tests.run.programs.checkpoints import CASES, results

WITHIN = "epoch-0006-samples-00000048"  # step 27 of 50


def assert_close(found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            assert (found[key] - value).abs().max() <= tolerance, key
        elif isinstance(value, list):
            assert found[key] == pytest.approx(value, rel=1e-12), key
        else:
            assert found[key] == value, key


def saving(folder: Path, case: str, **options: Any) -> tuple[str, dict[str, Any]]:
    """The run that is broken off at step 30, of which a checkpoint of step 27 is left."""
    options = {"steps": 30, "checkpoint_dir": str(folder / case), "checkpoint_steps": 3, **options}
    return case, options


def test_one_process_goes_on_bit_for_bit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for case in CASES:
        expected = results(case)
        _, options = saving(tmp_path, case)
        results(case, **options)
        within = sorted(path.name for path in (tmp_path / case).glob("*-samples-*"))
        assert within == [WITHIN, "epoch-0007-samples-00000032"]
        resumed = results(case, resume=str(tmp_path / case / WITHIN))
        assert_close(resumed, expected, 0.0)
        options |= {"resume": True, "steps": None}
        capfd.readouterr()
        results(case, **{**options, "steps": 50})
        assert "resuming from" in capfd.readouterr().out
        assert_close(results(case, resume=str(tmp_path / case), steps=50), expected, 0.0)
        assert "has done 50 steps, all that steps=50 asks for" in capfd.readouterr().out


@pytest.mark.mpi
@pytest.mark.parametrize("sizes", [(3, 2), long((3, 4))])
def test_other_numbers_of_ranks_go_on(
    sizes: tuple[int, int], ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    program = programs("checkpoints.py")
    first, second = sizes
    runs = {f"{case} saved": saving(tmp_path, case) for case in CASES}
    ranks.mpi(first, program, str(tmp_path), json.dumps(runs))
    options: dict[str, Any] = {case: {"resume": str(tmp_path / case / WITHIN)} for case in CASES}
    again = {f"{case} again": (case, options[case]) for case in CASES}
    again["shared"] = ("averaged", {**options["averaged"], "strategy": "shared"})
    ranks.mpi(second, program, str(tmp_path), json.dumps(again))
    for case in CASES:
        expected = results(case)
        assert_close(results(case, **options[case]), expected, 1e-10)
        for name in (n for n in again if again[n][0] == case):
            for rank in range(second):
                assert_close(torch.load(tmp_path / f"{name}-{rank}.pt"), expected, 1e-10)
