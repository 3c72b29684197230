"""The page "Your first cluster" does what it says, on virtual nodes with a real Slurm."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import PATIENCE
from tests.nodes.mpi_nodes import INSTALLED
from tests.nodes.slurm import Slurm

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"^```python\n(# train\.py\n.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = [pytest.mark.nodes, pytest.mark.long, pytest.mark.timeout(600)]


def test_the_page_works_from_top_to_bottom(slurm: Slurm) -> None:
    here = slurm.shared / "cluster"
    here.mkdir()
    (found,) = PROGRAM.findall((DOCS / "first_hour.md").read_text())
    (here / "train.py").write_text(found)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    outputs = []
    for block in BLOCK.findall((DOCS / "first_cluster.md").read_text()):
        done = slurm.run(
            "n0",
            ["env", "-C", str(here), "bash", "-e", "-c", block],
            environment={**INSTALLED, "PATH": path},
            timeout_s=200 * PATIENCE,
        )
        logs = [log.read_text() for log in here.glob("*.log")]
        assert done.returncode == 0, (block, done.stdout, *logs)
        outputs.append(done.stdout)
    at_once, _, _, first, second, report = outputs
    logs = sorted(here.glob("*.log"), key=lambda path: path.stat().st_mtime)
    losses = re.findall(r"^epoch .*", "".join(map(Path.read_text, logs)), re.MULTILINE)
    assert [line.split(":")[0] for line in losses] == [f"epoch {n}" for n in range(1, 9)]
    assert re.findall(r"^epoch .*", at_once, re.MULTILINE) == losses[:2]
    assert losses[5] in first
    assert re.findall(r"^epoch .*", second, re.MULTILINE) == losses[6:]
    assert "report.html" in report
