"""A GPT and a network with normalisation end with the parameters of one process on three ranks."""

import os
import re
import runpy
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from phalanx.report.folder import read_folder
from tests.conftest import ONE_THREAD, Ranks

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]


def test_parameters_on_three_ranks_equal_those_of_one_process(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    """Batches of 7 that three ranks cannot share evenly, and a last one of a single sample."""
    runpy.run_path(str(programs("train.py")))["main"](tmp_path, ["sequential"])
    ranks.mpi(3, programs("train.py"), str(tmp_path), "mpi,shared", timeout_s=200)
    for model in ("gpt", "resnet"):
        expected = load_file(tmp_path / f"{model}-sequential-0.safetensors")
        totals = expected.pop("totals")
        assert totals[[0, 3]].tolist() == [71, 5]
        for strategy in ("mpi", "shared"):
            counted = torch.zeros_like(totals)
            for rank in range(3):
                found = load_file(tmp_path / f"{model}-{strategy}-{rank}.safetensors")
                counted += found.pop("totals")
                assert found.keys() == expected.keys()
                for key, value in expected.items():
                    assert torch.allclose(found[key], value, rtol=0, atol=1e-10), (
                        f"{model}, {strategy}: {key} on rank {rank}"
                    )
            torch.testing.assert_close(counted, totals, rtol=1e-10, atol=0)


def test_text_as_it_is_typed(command: list[str], tmp_path: Path) -> None:
    """`auto` is text for a GPT, and its figures are those of characters."""
    words = ["train", "--model", "gpt", "--width", "16", "--layers", "1", "--epochs", "1"]
    words += ["--train-samples", "64", "--validation-samples", "8", "--threads", "1"]
    words += ["--strategy", "mpi", "--ranks", "2", "--run-dir", str(tmp_path / "run")]
    answer = subprocess.run(
        [*command, *words],
        env=os.environ | ONE_THREAD,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    reason, title, line = answer.stdout.splitlines()[:3]
    assert reason.startswith("text: the language reference of Python 3.")
    assert title.startswith("gpt on text: mpi, 2 ranks × 1 thread, global batch 32, adam")
    loss = re.match(r"epoch 1/1  loss (\d\.\d{4})  validation \d\.\d{4}  characters right ", line)
    assert loss is not None, line
    assert " samples/s  communication " in line
    (measure,) = read_folder(tmp_path / "run").runs
    epoch = measure.epochs[-1]
    assert f"{epoch.train_loss:.4f}" == loss[1], "the report divides by the same predictions"
    assert epoch.samples == 64
