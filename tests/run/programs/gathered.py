"""Each rank: its records go home over MPI or Gloo, from a folder that rank 0 does not see.

Words: a folder, and `mpi` or `gloo`.
"""

import os
import sys
from pathlib import Path

import torch.distributed as dist

from phalanx.comm.world import World
from phalanx.parallel.gloo import GlooGroup
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.world_group import WorldGroup
from phalanx.records.files import rank_file
from phalanx.run.recording import GatheredRecords


def main(folder: Path, what: str) -> None:
    if what == "mpi":
        group: RunGroup = WorldGroup(World.create(timeout_s=60))
    else:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size)
        group = GlooGroup(rank=rank, size=size, local_rank=rank, store=store, timeout_s=60)
    own = folder / str(group.rank)
    own.mkdir()
    gathered = GatheredRecords(group, own, list(range(1, group.size)))
    for number in range(3):
        with rank_file(own, group.rank).open("a") as file:
            file.write(f"line {number} of {group.rank}\n" * 1000 * (number + group.rank))
        gathered.bring()
        gathered.bring()  # nothing is new
        group.barrier()
        for peer in range(group.size):
            home, there = rank_file(folder / "0", peer), rank_file(folder / str(peer), peer)
            assert home.read_bytes() == there.read_bytes(), f"{number}: {peer}"
        group.barrier()
    assert not group.rank or len(list(own.iterdir())) == 1
    print(f"rank {group.rank} has sent its records", flush=True)
    group.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
