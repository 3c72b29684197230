"""`python -m phalanx.bench.io <folder> <ranks>`: one rank of what `phalanx bench io` started."""

import os
import sys
from pathlib import Path

from phalanx.bench.io.rank_benchmark import measure_on_rank, ranks_folder
from phalanx.jobs.rank import run_rank
from phalanx.launch.detect import detect
from phalanx.launch.streams import prepare_streams

if __name__ == "__main__":  # reader processes read this file again
    prepare_streams()
    folder, ranks = Path(sys.argv[1]), int(sys.argv[2])
    launched = detect(os.environ) if ranks > 1 else None
    run_rank(ranks_folder(folder, ranks), launched, lambda: measure_on_rank(folder, ranks))
