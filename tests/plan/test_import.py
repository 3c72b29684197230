"""`phalanx.plan` answers without PyTorch and MPI."""

import subprocess
import sys
from pathlib import Path

import phalanx

ROOM = Path(phalanx.__file__).parent / "plan"


def test_plan_loads_neither_torch_nor_mpi() -> None:
    modules = [f"phalanx.plan.{path.stem}" for path in ROOM.glob("*.py") if path.stem[0] != "_"]
    assert len(modules) > 5
    program = (
        f"import sys, {', '.join(modules)}; print('torch' in sys.modules, 'mpi4py' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "False"]
