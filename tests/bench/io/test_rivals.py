"""PyTorch's DataLoader gives the samples that were asked for, epoch after epoch."""

from pathlib import Path

import numpy as np
import pytest

from phalanx.bench.io.fetch import Fetch
from phalanx.bench.io.formats.store import Shape
from phalanx.bench.io.generate import Place, generate
from phalanx.bench.io.rivals import TorchLoader
from phalanx.bench.io.samples import wrong_samples


@pytest.mark.parametrize("batched", [False, True])
def test_two_epochs(tmp_path: Path, batched: bool) -> None:
    shape = Shape(num_samples=60, sample_bytes=100, shard_samples=20)
    place = Place(root=tmp_path, shape=shape)
    generate(place, ["npy"], 1, lambda *_: None)
    fetch = Fetch("npy", place.part("npy", 0), shape)
    loader = TorchLoader(fetch, readers=0, depth=0, batched=batched)
    for epoch in range(2):
        order = np.random.default_rng(epoch).permutation(60)
        wanted = np.split(order, 5)
        got = list(loader.batches(wanted, 0))
        assert [wrong_samples(*pair) for pair in zip(got, wanted, strict=True)] == [0] * 5
    loader.close()
    fetch.close()
