"""Each rank stands for a node: shards are staged to all, while the ranks also talk otherwise.

Words: the pack, a folder, a small disk, which is that of rank 2.
"""

import sys
import time
from pathlib import Path

import numpy as np

from phalanx.comm.world import World
from phalanx.data.packed.pack import Pack
from phalanx.data.staging.stage_folder import StageFolder, stage_path
from phalanx.data.staging.stage_schedule import StageUnit
from phalanx.data.staging.stager import Stager


def bring(world: World, pack: Path, disk: Path, max_bytes: float | None) -> None:
    units = [
        StageUnit(split="train", files=tuple(shard.files)) for shard in Pack(pack / "train").shards
    ]
    path = stage_path(disk, "print", "run", world.rank)
    group = world.group.subgroup(range(world.size), name="stagers")
    place = [0]
    stager = Stager(
        pack,
        StageFolder(path, "print", keep=False),
        units,
        lambda: [[unit] for unit in range(place[0], len(units))],
        max_bytes=max_bytes,
        group=group,
    )
    told: list[str] = []
    staged: set[str] = set()
    total, numbers, is_over = 0.0, np.ones(50_000), False
    deadline = time.monotonic() + 60
    while not is_over:  # what training does meanwhile
        summed = numbers.copy()
        world.all_reduce(summed)
        total += summed[0]
        names = {entry.name for entry in path.glob("train/shard*")}
        assert max_bytes is None or len(names) <= 3 * 3, names
        staged |= names
        told += stager.notices()
        is_done = len(staged) == 3 * len(units) or any("No space" in text for text in told)
        wanted = range(place[0], min(place[0] + 3, len(units)))
        is_there = all(f"shard-{unit:05}.npy" in names for unit in wanted)
        flags = np.array([float(is_done), float(is_there)])
        world.all_reduce(flags)
        is_over = flags[0] == world.size
        if max_bytes and flags[1] == world.size:  # not before all have seen what there is room for
            place[0] = min(place[0] + 1, len(units) - 1)
        assert time.monotonic() < deadline, (world.rank, sorted(staged), told)
        time.sleep(0.002)
    stager.close()
    assert not path.exists()
    read = np.array([float(stager.read_bytes)])
    world.all_reduce(read)
    assert read[0] == sum(unit.bytes for unit in units), read
    assert stager.read_bytes < read[0], "in turn"
    if world.rank < 2:
        assert not told, told


def main(pack: Path, folder: Path, small: Path) -> None:
    world = World.create(timeout_s=60)
    own = folder / f"node{world.rank}"
    bring(world, pack, small if world.rank == 2 else own, None)
    world.barrier()
    shard = sum(file.bytes for file in Pack(pack / "train").shards[0].files)
    bring(world, pack, own, 3.5 * shard)
    world.barrier()
    world.close()
    print(f"\nrank {world.rank} is done", flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
