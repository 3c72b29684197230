"""Models and losses of the user's end with the parameters of one process, however they are split.

One job of three ranks trains all cases in float64: batches of 7 that three ranks cannot share
evenly, and a last one of a single sample, in which ranks and micro-batches are padding alone.
"""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import Ranks, long

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

FEW = {
    "tower": ("mpi", "server", "tensor"),
    "transformer": ("shared", "zero", "pipeline"),
    "autoencoder": ("pieces",),  # its outputs are two tensors
}
ALL = {
    "tower": ("pieces", "shared", "local", "zero", "pipeline"),
    "transformer": ("mpi", "pieces", "tensor"),
    "autoencoder": ("mpi", "shared", "server"),
}


@pytest.mark.parametrize("cases", [FEW, long(ALL)], ids=["few", "all"])
def test_parameters_and_losses_equal_those_of_one_process(
    ranks: Ranks,
    programs: Callable[[str], Path],
    tmp_path: Path,
    cases: dict[str, tuple[str, ...]],
) -> None:
    runpy.run_path(str(programs("own_truth.py")))["main"](tmp_path, [f"{m}-alone" for m in cases])
    words = ",".join(f"{model}-{split}" for model, splits in cases.items() for split in splits)
    ranks.mpi(3, programs("own_truth.py"), str(tmp_path), words, timeout_s=250)
    for model, splits in cases.items():
        truth = load_file(tmp_path / f"{model}-alone-0.safetensors")
        totals = truth.pop("totals")
        for split in splits:
            seen, counted = set(), torch.zeros_like(totals)
            for rank in range(3):
                found = load_file(tmp_path / f"{model}-{split}-{rank}.safetensors")
                counted += found.pop("totals")
                for key, value in found.items():
                    assert torch.allclose(value, truth[key], rtol=0, atol=1e-10), (
                        f"{model}, {split}: {key} on rank {rank}"
                    )
                seen |= found.keys()
            assert seen == truth.keys(), (model, split)
            assert torch.allclose(counted, totals, rtol=1e-10), (model, split)
