"""`python -m phalanx.bench <folder>`: one rank of a measurement that `phalanx bench` started."""

import os
import sys
from pathlib import Path

from phalanx.jobs.rank import run_rank
from phalanx.launch.binding import use_own_cores
from phalanx.launch.detect import detect
from phalanx.launch.streams import prepare_streams

prepare_streams()
use_own_cores(os.environ)
from phalanx.bench.rank_benchmark import measure_on_rank  # noqa: E402  # loads PyTorch

folder, launched = Path(sys.argv[1]), detect(os.environ)
run_rank(folder, launched, lambda: measure_on_rank(folder, launched))
