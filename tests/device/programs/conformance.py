"""Each rank: the conformance program of backend mpi with all of its tensors on a GPU.

Arguments: cuda, or cpu.
"""

import runpy
import sys
from pathlib import Path

import torch

torch.set_default_device(sys.argv[1])
program = Path(__file__).parents[2] / "torch_backend" / "programs" / "conformance.py"
runpy.run_path(str(program), run_name="__main__")
