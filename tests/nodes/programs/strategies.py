"""Each rank: run `phalanx train` with every set of options in turn.

Words: a folder that all nodes see, for the last checkpoint of each run; a JSON object: for each run
its name, and its options. PyTorch and MPI start once for all.
"""

import json
import os
import sys
from pathlib import Path

from phalanx.jobs.detect import detect
from phalanx.train.config import TrainConfig
from phalanx.train.session import train

checkpoints = Path(sys.argv[1])
for name, options in json.loads(sys.argv[2]).items():
    config = TrainConfig.from_options(
        **options,
        run_dir=Path("runs", checkpoints.name, name).resolve(),
        checkpoint_dir=checkpoints / name,
    )
    train(config, detect(os.environ))
