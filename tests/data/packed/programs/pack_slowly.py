"""Packs a hundred samples into the folder that is named, and says after each how many there are."""

import sys
from pathlib import Path

from tests.data.packed.made import IMAGES, rows

from phalanx.data.packed.index import Layout
from phalanx.data.packed.writer import PackWriter

NUM_SAMPLES = 100


def main(folder: str, layout: Layout) -> None:
    content = rows(IMAGES, NUM_SAMPLES)
    shard_bytes = 24 * 13 if layout == "npy" else 15_000
    with PackWriter(Path(folder), layout=layout, fields=IMAGES, shard_bytes=shard_bytes) as writer:
        while writer.num_samples < NUM_SAMPLES:
            i = writer.num_samples
            writer.add({name: part[i, ...] for name, part in content.items()})
            print(writer.num_samples, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], "tar" if sys.argv[2] == "tar" else "npy")
