"""Every strategy trains over nodes what it trains on one node, and what one process trains."""

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.conftest import PATIENCE
from tests.nodes.mpi_nodes import INSTALLED, Nodes

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(600)]

Options = dict[str, Any]
Layout = tuple[int, int]
"""Number of nodes, and of ranks on each."""
SMALL: Options = {
    "width": 32, "train_samples": 250, "validation_samples": 64, "batch_size": 60, "epochs": 1,
    "threads": 1, "timeout_s": 60.0, "dtype": "float64", "dataset": "digits",
}  # fmt: skip
TEXT: Options = SMALL | {
    "model": "gpt", "width": 48, "layers": 4, "heads": 12, "batch_size": 24,
    "train_samples": 60, "validation_samples": 24, "dataset": "text",
}  # fmt: skip
COMPRESSED: Options = SMALL | {"strategy": "mpi", "dtype": "float32"}
CASES: dict[str, Options] = {
    "mpi": SMALL | {"strategy": "mpi"},
    "blocking": SMALL | {"strategy": "mpi", "overlap": "off"},
    "library": SMALL | {"strategy": "mpi", "all_reduce": "library", "overlap": "off"},
    "ring": SMALL | {"strategy": "mpi", "all_reduce": "ring", "overlap": "off"},
    "direct": SMALL | {"strategy": "mpi", "all_reduce": "direct", "overlap": "off"},
    "overlap": SMALL | {"strategy": "mpi", "overlap": "on", "accumulate": 2},
    "shared": SMALL | {"strategy": "shared"},
    "gloo": SMALL | {"strategy": "gloo"},
    "local": SMALL | {"strategy": "local", "local_steps": 2},
    "zero1": SMALL | {"strategy": "zero", "zero_stage": 1},
    "zero2": SMALL | {"strategy": "zero", "zero_stage": 2},
    "zero3": SMALL | {"strategy": "zero", "zero_stage": 3},
    "text": TEXT | {"strategy": "mpi"},
    "tensor": TEXT | {"strategy": "tensor"},
    "pipeline": TEXT | {"strategy": "pipeline"},
    "mesh": TEXT | {"mesh": "dp=2,tp=2"},
    "bf16": COMPRESSED | {"compress": "bf16"},
    "int8": COMPRESSED | {"compress": "int8"},
    "topk": COMPRESSED | {"compress": "topk"},
    "powersgd": COMPRESSED | {"compress": "powersgd"},
    "server": SMALL | {"strategy": "server"},
}
PYTHON = (sys.executable, "-m", "mpi4py")  # ends all ranks where one fails
LAYOUTS: list[Layout] = [(2, 1), (3, 1), (2, 2)]
BY_LANES = {
    *("mpi", "blocking", "overlap", "shared", "local"),
    *("zero1", "zero2", "zero3", "text", "tensor"),
}
"""Sum within nodes first where a node has several ranks: the order of sums is another."""
BY_LIBRARY = {"library"}
"""Sums in an order of the MPI library's own."""
COMPRESSED_BY_LANES = {"bf16", "int8", "topk"}
"""Compress the sums of nodes, others than one node does: tests/nodes/test_compressed.py."""
UNLIKE_ONE_PROCESS = {"local"}
"""Averages parameters after several steps of each rank."""

Trained = Callable[[str, Layout], dict[str, Tensor]]


def cases_of(layout: Layout) -> dict[str, Options]:
    """Return the runs of a layout, or those of one process."""
    if layout == (1, 1):
        return {"mlp": SMALL, "gpt": TEXT}
    four = layout[0] * layout[1] == 4
    return {name: options for name, options in CASES.items() if name != "mesh" or four}


@pytest.fixture(scope="module")
def trained(nodes: Nodes) -> Trained:
    """Parameters that a run ends with; all runs of a layout are one job."""
    program = Path(__file__).parent / "programs" / "strategies.py"

    @cache
    def job(layout: Layout) -> tuple[Path, str]:
        folder = nodes.shared / "x".join(map(str, layout))
        command = nodes.mpiexec(
            [*PYTHON, str(program), str(folder), json.dumps(cases_of(layout))],
            num_nodes=layout[0],
            local_ranks=layout[1],
        )
        done = nodes.run("n0", command, environment=INSTALLED, timeout_s=400 * PATIENCE)
        return folder, done.stdout

    def parameters(name: str, layout: Layout) -> dict[str, Tensor]:
        folder, output = job(layout)
        files = list((folder / name).glob("epoch-*/model.safetensors"))
        assert len(files) == 1, f"no result of {name}:\n{output}"
        return load_file(files[0])

    return parameters


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        pytest.param(layout, name, id=f"{layout[0]}x{layout[1]}-{name}")
        for layout in LAYOUTS
        for name in cases_of(layout)
    ],
)
def test_nodes_train_what_one_node_and_one_process_train(
    trained: Trained, layout: Layout, name: str
) -> None:
    found = trained(name, layout)
    one_node = trained(name, (1, layout[0] * layout[1]))
    exact = name not in BY_LIBRARY and (name not in BY_LANES or layout[1] == 1)
    assert found.keys() == one_node.keys()
    if name in COMPRESSED_BY_LANES and layout[1] > 1:
        assert all(tensor.isfinite().all() for tensor in found.values())
        return
    for key, tensor in found.items():
        assert torch.allclose(tensor, one_node[key], rtol=0, atol=0 if exact else 1e-10), key
    if CASES[name]["dtype"] == "float64" and name not in UNLIKE_ONE_PROCESS:
        alone = trained("gpt" if "model" in CASES[name] else "mlp", (1, 1))
        for key, tensor in found.items():
            assert torch.allclose(tensor, alone[key], rtol=0, atol=1e-10), key
