"""Programs of users on two nodes of two ranks: PyTorch's own DDP, and `phalanx.start`."""

from pathlib import Path

import pytest
import torch

from tests.nodes.mpi_nodes import ROOT, Nodes
from tests.run.programs.truth import CASES, trained

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(300)]

LAYOUT = {"num_nodes": 2, "local_ranks": 2}


def test_ddp_trains_what_one_process_trains(nodes: Nodes) -> None:
    program = ROOT / "tests" / "torch_backend" / "programs" / "ddp.py"
    output = nodes.run_ranks(program, **LAYOUT, timeout_s=120)
    for rank in range(4):
        assert f"rank {rank} of 4 is done" in output, output


def test_programs_train_what_one_process_trains(nodes: Nodes) -> None:
    program = ROOT / "tests" / "run" / "programs" / "truth.py"
    folder: Path = nodes.shared
    nodes.run_ranks(program, str(folder), *CASES, **LAYOUT, timeout_s=250)
    truth = {name: trained(name) for name in CASES}
    for rank in range(4):
        results = torch.load(folder / f"{rank}.pt")
        for name in CASES:
            for key, value in truth[name].items():
                if key == "scores" or value.is_floating_point() or value.is_complex():
                    distance = (results[name][key] - value).abs().max()
                    assert distance < 1e-10, (name, rank, key)
