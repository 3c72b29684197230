"""`phalanx.notebook`: ranks from a cell, in a real kernel."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat.v4 import new_code_cell

pytestmark = pytest.mark.mpi

TRAINING = """
import torch, phalanx

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(6, 3)
    def forward(self, inputs):
        return WIDTH * self.layer(inputs)

WIDTH = 2.0

def train():
    generator = torch.Generator().manual_seed(2)
    data = [(torch.randn(6, generator=generator), n % 3) for n in range(24)]
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = phalanx.start(model, optimizer, data, batch_size=8, epochs=2)
    for batch in run:
        run.backward(torch.nn.functional.cross_entropy(run.model(batch.inputs), batch.targets))
    print("trained")
    return [parameter.detach() for parameter in model.parameters()]
"""


class Notebook:
    """A notebook whose cells are run one by one."""

    def __init__(self, client: NotebookClient) -> None:
        self.client = client

    def run(self, source: str) -> list[Any]:
        """Return the outputs of a cell."""
        cells = self.client.nb.cells
        cells.append(new_code_cell(source))
        self.client.execute_cell(cells[-1], len(cells) - 1)
        return list(cells[-1].outputs)

    def text(self, source: str) -> str:
        """Return what a cell prints and shows as text."""
        outputs = self.run(source)
        return "".join(each.get("text", "") or str(each.get("data", "")) for each in outputs)

    @property
    def kernel(self) -> psutil.Process:
        return psutil.Process(int(self.text("import os; print(os.getpid())")))


@contextmanager
def opened(folder: Path) -> Iterator[Notebook]:
    client = NotebookClient(
        nbformat.v4.new_notebook(),
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    with client.setup_kernel():
        yield Notebook(client)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with opened(tmp_path_factory.mktemp("notebook")) as made:
        yield made


def test_a_function_runs_on_ranks(notebook: Notebook) -> None:
    folder = Path(notebook.text("import os; print(os.getcwd())").strip())
    notebook.run(TRAINING)
    outputs = notebook.run("weights = phalanx.notebook(train, ranks=2)")
    shown = "".join(each.get("text", "") for each in outputs)
    assert "trained" in shown
    pages = [each["data"]["text/html"] for each in outputs if "data" in each]
    assert len(pages) == 1, "the report"
    assert pages[0].startswith("<iframe srcdoc=")
    same = notebook.text(
        "alone = phalanx.notebook(train, ranks=1, show_report=False)[0]\n"
        "assert len(weights) == 2\n"
        "for rank in weights:\n"
        "    for one, other in zip(rank, alone, strict=True):\n"
        "        torch.testing.assert_close(one, other)\n"
        "print(len(weights), 'the same')"
    )
    assert "2 the same" in same
    folders = list((folder / "runs" / "notebook").iterdir())
    assert len(folders) == 2, "no function is left"


def test_errors_of_ranks_are_those_of_the_cell(notebook: Notebook) -> None:
    notebook.run("import os, phalanx, threading")
    failing = """
def fail():
    if os.environ.get("RANK", "0") == "1":
        raise ValueError("no such width")
phalanx.notebook(fail, ranks=2)
"""
    with pytest.raises(CellExecutionError, match=r"RunFailedError") as found:
        notebook.run(failing)
    assert "no such width" in str(found.value) + str(notebook.client.nb.cells[-1].outputs)
    for source, words in {
        "lock = threading.Lock()\nphalanx.notebook(lambda: lock, ranks=1)": "cannot be sent to oth",
        "phalanx.notebook(lambda: threading.Lock(), ranks=1)": "a result of lock cannot be sent",
        "phalanx.notebook(lambda: 1, ranks=0)": "--ranks 0 must be at least 1",
    }.items():
        with pytest.raises(CellExecutionError, match="UserError"):
            notebook.run(source)
        assert words in str(notebook.client.nb.cells[-1].outputs)
    folder = Path(notebook.text("import os; print(os.getcwd())").strip())
    (folder / "json.py").write_text("raise SystemExit('a module of the user')")
    (folder / "my_widths.py").write_text("WIDTH = 7")
    importing = "import my_widths; print(phalanx.notebook(lambda: my_widths.WIDTH, ranks=2))"
    assert "[7, 7]" in notebook.text(importing), "modules beside the notebook, and none by accident"
    assert "[0, 1]" in notebook.text(
        "print(phalanx.notebook(lambda: int(os.environ['RANK']), ranks=2))"
    ), "a cell that is run after all that"


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_no_rank_outlives_its_cell(tmp_path: Path, ending: int) -> None:
    """An interruption of the kernel, and its death."""
    waiting = f"""
import os, pathlib, time, phalanx
def wait():
    pathlib.Path({str(tmp_path)!r}, f"rank-{{os.getpid()}}").touch()
    time.sleep(300)
phalanx.notebook(wait, ranks=2)
"""

    def waiting_ranks() -> list[int]:
        return [int(path.name[5:]) for path in tmp_path.glob("rank-*")]

    def end(kernel: psutil.Process) -> None:
        while len(waiting_ranks()) < 2:
            time.sleep(0.1)
        kernel.send_signal(ending)

    with opened(tmp_path) as notebook:
        killer = threading.Thread(target=end, args=(notebook.kernel,))
        killer.start()
        with pytest.raises((CellExecutionError, DeadKernelError)):
            notebook.run(waiting)
        killer.join()
    deadline = time.monotonic() + 20
    while left := list(filter(psutil.pid_exists, waiting_ranks())):
        assert time.monotonic() < deadline, f"{left} are left"
        time.sleep(0.1)
