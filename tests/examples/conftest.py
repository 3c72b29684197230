"""The modules of `examples/scratch`, as its program finds them, and the installed command."""

import sys
from pathlib import Path

from tests.cli.conftest import phalanx, started

__all__ = ["phalanx", "started"]

SCRATCH = Path(__file__).parents[2] / "examples" / "scratch"
sys.path.append(str(SCRATCH))
