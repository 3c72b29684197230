"""`python -m phalanx.train <run folder>`: one rank of a run that `phalanx train` started."""

import os
import sys
from pathlib import Path

from phalanx.launch.binding import use_own_cores
from phalanx.launch.streams import prepare_streams

prepare_streams()
threads = use_own_cores(os.environ)
from phalanx.train.rank import run_started_by_phalanx  # noqa: E402  # loads PyTorch

run_started_by_phalanx(Path(sys.argv[1]), threads)
