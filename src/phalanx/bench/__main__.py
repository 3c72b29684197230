"""`python -m phalanx.bench <folder>`: one rank of a measurement that `phalanx bench` started."""

import sys
from pathlib import Path

from phalanx.bench.rank import run_rank

run_rank(Path(sys.argv[1]))
