"""A checkpoint of one strategy goes on under another."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import ONE_THREAD

pytestmark = pytest.mark.mpi

LAYOUTS = {"sequential": 1, "mpi": 2, "shared": 3}


def train(python: Path, folder: Path, strategy: str, epochs: int, *words: str) -> Path:
    """The checkpoint after `epochs` epochs; `epoch-0001` is the one before it, if any."""
    small = ("--dataset", "digits", "--train-samples", "700", "--validation-samples", "100")
    layout = ("--strategy", strategy, "--ranks", str(LAYOUTS[strategy]), "--threads", "1")
    command = (
        *(str(python), "-m", "phalanx", "train", *small, *layout, "--dtype", "float64"),
        *("--lr-schedule", "constant", "--epochs", str(epochs), "--run-dir", str(folder / "run")),
        *("--checkpoint-dir", str(folder), *words),
    )
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **ONE_THREAD})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / f"epoch-{epochs:04d}"


CROSSINGS = {
    "adam": [("shared", "sequential"), ("mpi", "shared")],
    "sgd": [("sequential", "shared"), ("shared", "mpi")],
}


@pytest.mark.parametrize(
    "optimizer",
    [name if name == "adam" else pytest.param(name, marks=pytest.mark.long) for name in CROSSINGS],
)
def test_strategies_go_on_from_each_other(
    forking_python: Path, tmp_path: Path, optimizer: str
) -> None:
    words = ("--optimizer", optimizer, "--weight-decay", "0.01")
    truth = train(forking_python, tmp_path / "truth", "sequential", 2, *words)
    for first, second in CROSSINGS[optimizer]:
        begun = train(forking_python, tmp_path / first, first, 1, *words)
        folder = tmp_path / f"{first}-{second}"
        resumed = train(forking_python, folder, second, 2, "--resume", str(begun), *words)
        for name in ("model", "optimizer"):
            expected = load_file(truth / f"{name}.safetensors")
            found = load_file(resumed / f"{name}.safetensors")
            assert found.keys() == expected.keys(), f"{name} from {first} to {second}"
            for key, tensor in expected.items():
                assert found[key].dtype == tensor.dtype, key
                assert torch.allclose(found[key], tensor, rtol=0, atol=1e-10), (
                    f"{key} from {first} to {second}"
                )
