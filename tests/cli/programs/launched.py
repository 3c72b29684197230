"""Says what a rank was started with; one may fail, or wait to be ended."""

import os
import sys
import time
from pathlib import Path

rank, size = int(os.environ["RANK"]), os.environ["WORLD_SIZE"]
folder = Path(os.environ["PHALANX_RUN_DIR"]).name
print(f"rank {rank} of {size}: {sys.argv[1:]}, {os.environ['OMP_NUM_THREADS']} threads, {folder}")
if "--fail" in sys.argv and rank == 1:
    raise SystemExit("rank 1 has had enough")
if "--wait" in sys.argv:
    print("waiting", flush=True)
    time.sleep(60)
