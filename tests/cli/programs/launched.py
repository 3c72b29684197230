"""Says what a rank was started with; one may fail, or wait to be ended."""

import os
import sys
import time

rank, size = int(os.environ["RANK"]), os.environ["WORLD_SIZE"]
print(f"rank {rank} of {size}: {sys.argv[1:]}, {os.environ['OMP_NUM_THREADS']} threads")
if "--fail" in sys.argv and rank == 1:
    raise SystemExit("rank 1 has had enough")
if "--wait" in sys.argv:
    print("waiting", flush=True)
    time.sleep(60)
