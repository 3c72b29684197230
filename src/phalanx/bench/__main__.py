"""`python -m phalanx.bench <folder>`: one rank of a measurement that `phalanx bench` started."""

import sys
from pathlib import Path

from phalanx.bench.rank import run_rank
from phalanx.launch.streams import prepare_streams

prepare_streams()
run_rank(Path(sys.argv[1]))
