"""Packs a hundred samples into the folder that is named, and says after each how many there are."""

import sys
from pathlib import Path

from tests.data.packed.made import IMAGES, Kind, fields_of, rows, sample_of

from phalanx.data.packed.writer import PackWriter

NUM_SAMPLES = 100


def main(folder: str, kind: Kind) -> None:
    content = rows(IMAGES, NUM_SAMPLES)
    shard_bytes = 24 * 13 if kind == "raw" else 1000
    with PackWriter(Path(folder), fields=fields_of(kind), shard_bytes=shard_bytes) as writer:
        while writer.num_samples < NUM_SAMPLES:
            i = writer.num_samples
            writer.add(sample_of(content, i, kind))
            print(writer.num_samples, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], "png" if sys.argv[2] == "png" else "raw")
