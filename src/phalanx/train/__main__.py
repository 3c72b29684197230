"""`python -m phalanx.train <run folder>`: one rank of a run that `phalanx train` started."""

import sys
from pathlib import Path

from phalanx.launch.streams import prepare_streams
from phalanx.train.rank import run_started_by_phalanx

prepare_streams()
run_started_by_phalanx(Path(sys.argv[1]))
