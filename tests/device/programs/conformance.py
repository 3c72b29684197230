"""Each rank: the conformance program of backend mpi with all of its tensors on a device.

Arguments: cuda, cpu, or the name of an emulated device.
"""

import runpy
import sys
from pathlib import Path

import torch
from tests.device.emulated import use

torch.set_default_device(use(sys.argv[1]))
program = Path(__file__).parents[2] / "torch_backend" / "programs" / "conformance.py"
runpy.run_path(str(program), run_name="__main__")
