"""Ranks of one node of which some lack files: they share one copy while they read it."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phalanx.comm.buffer import Buffer
from phalanx.comm.file_copies import PIECE_BYTES, local_copies, send_files
from phalanx.comm.shared_folder import by_host, gather_text, ranks_without
from phalanx.comm.world import World
from phalanx.errors import UserError

SIZES = {"empty": 0, "split/small": 10, "large": 2 * PIECE_BYTES + 1}


class WorldRanks:
    """Ranks of a world, as copies need them."""

    def __init__(self, world: World) -> None:
        self._world, self.rank, self.size = world, world.rank, world.size

    def gather(self, values: Sequence[float]) -> list[list[float]] | None:
        rows = self._world.gather(np.array(values))
        return None if rows is None else rows.tolist()

    def share(self, text: str) -> str:
        return self._world.share(text)

    def broadcast(self, values: NDArray[np.uint8]) -> None:
        self._world.group.broadcast(Buffer.of(values), root=0)


def content(name: str) -> bytes:
    return np.random.default_rng(len(name)).bytes(SIZES[name])


def refusal(ranks: WorldRanks, files: dict[str, Path], into: Path | None) -> str:
    try:
        send_files(ranks, files, into)
    except UserError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    world = World.create(timeout_s=60)
    ranks = WorldRanks(world)
    assert gather_text(ranks, "é" * world.rank) == ["é" * rank for rank in range(world.size)]
    assert ranks_without(ranks, folder) == []
    apart = folder / str(world.rank)
    apart.mkdir()
    without = ranks_without(ranks, apart)
    assert [rank for rank, _ in without] == [1, 2]
    assert by_host(without) == f"{world.hostname} (ranks 1, 2)"
    assert not list(apart.iterdir())

    files = {name: folder / "0" / name for name in SIZES}
    for name, path in files.items() if world.rank == 0 else ():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content(name))
    # As on nodes that do not share the folder: nobody but rank 0 looks at its files.
    seen = files if world.rank == 0 else {name: apart / "elsewhere" / name for name in SIZES}
    with local_copies(ranks, seen, is_wanted=world.rank > 0) as copied:
        assert (copied is None) == (world.rank == 0)
        if copied is not None:
            time.sleep(0.3 * (world.rank - 1))  # the writer is done before the other begins
            assert all((copied / name).read_bytes() == content(name) for name in SIZES)
        folders = gather_text(ranks, str(copied or ""))
    assert folders[1] == folders[2] != ""
    world.barrier()
    assert not Path(folders[1]).exists()
    with local_copies(ranks, {}, is_wanted=False) as copied:
        assert copied is None

    missing = {"none": folder / "0/none"} if world.rank == 0 else {}
    told = refusal(ranks, missing, None)
    assert told == f"rank 0 ({world.hostname}): {folder}/0/none: No such file or directory", told
    (folder / "1/split").touch()
    world.barrier()
    told = refusal(ranks, files, apart if world.rank == 1 else None)
    assert told == f"rank 1 ({world.hostname}): {folder}/1/split: File exists", told
    outside = {"../stolen": folder / "0/large"} if world.rank == 0 else {}
    told = refusal(ranks, outside, apart)
    assert told.startswith("'..' is refused as a file name"), told
    assert not (folder / "stolen").exists()
    world.close()
    if world.rank == 0:
        print("files are copied")


main(Path(sys.argv[1]))
