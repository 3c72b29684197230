"""`import phalanx` offers its names, and costs nothing before they are asked for."""

import inspect
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import phalanx

PROGRAM = """
import sys
import phalanx
assert set(phalanx.__all__) <= set(dir(phalanx))
heavy = {"torch", "mpi4py", "numpy"} & set(sys.modules)
assert not heavy, heavy
for name in phalanx.__all__:
    assert getattr(phalanx, name).__name__ == name
assert phalanx.World.__module__ == "phalanx.comm.world"
try:
    phalanx.Wolrd
except AttributeError as error:
    print(error)
"""


def test_names_are_loaded_when_they_are_asked_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "module phalanx has no attribute 'Wolrd'\n"


@pytest.mark.parametrize(
    ("module", "heavy"),
    [("phalanx.cli.train", {"torch", "mpi4py", "numpy"}), ("phalanx.train.session", {"rich"})],
)
def test_a_run_starts_without_what_it_may_never_use(module: str, heavy: set[str]) -> None:
    program = f"import sys, {module}; print(*{heavy!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("\n", 0), done.stderr


def test_what_is_public_is_documented() -> None:
    for name in phalanx.__all__:
        assert getattr(phalanx, name).__doc__
        assert name in phalanx.__all__


PREAMBLE = """
from pathlib import Path
import numpy as np
import torch
from torch import nn
import phalanx
from phalanx.data.packed.index import Field
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.functional.cross_entropy
data = validation_data = (torch.randn(40, 4), torch.randint(2, (40,)))
batches_of_this_rank = [data]
rows = np.ones((5, 3), np.float32)
converged, steps, folder = True, 10, Path("runs")
network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2))
its_optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
fields = [
    Field(name="inputs", dtype="uint8", shape=(3, 8, 8)),
    Field(name="targets", dtype="int64", shape=()),
]
for split in ("train", "validation"):
    with phalanx.PackWriter(Path("images.pack") / split, fields=fields, classes=["a", "b"]) as made:
        made.add_rows(
            {"inputs": np.ones((9, 3, 8, 8), np.uint8), "targets": np.arange(9, dtype=np.int64) % 2}
        )
digits = [Field(name="inputs", dtype="float32", shape=(3,))]
with phalanx.PackWriter(Path("digits.pack/train"), fields=digits) as pack_writer:
    for row in np.ones((9, 3), np.float32):
        pack_writer.add({"inputs": row})
"""


def examples(text: str) -> list[str]:
    """Paragraphs of a docstring that are code: all lines indented."""
    paragraphs, code = inspect.cleandoc(text).split("\n\n"), []
    for paragraph in paragraphs:
        lines = paragraph.splitlines()
        if all(line.startswith("    ") for line in lines):
            code.append(textwrap.dedent(paragraph))
    return code


def test_every_public_name_has_an_example_that_runs(tmp_path: Path) -> None:
    parts = [PREAMBLE]
    for name in phalanx.__all__:
        found = examples(getattr(phalanx, name).__doc__ or "")
        assert found, f"phalanx.{name} has no example in its docstring"
        parts += [f"print({name!r})", *found]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(parts)],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
