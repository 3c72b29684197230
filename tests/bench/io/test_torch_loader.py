"""PyTorch's DataLoader gives the samples that were asked for, epoch after epoch."""

from pathlib import Path

import numpy as np
import pytest

from phalanx.bench.io.formats import Shape
from phalanx.bench.io.generate import DataLocation, generate, wrong_samples
from phalanx.bench.io.loaders import BatchReader
from phalanx.bench.io.torch_loader import TorchLoader


@pytest.mark.parametrize("batched", [False, True])
def test_two_epochs(tmp_path: Path, batched: bool) -> None:
    shape = Shape(num_samples=60, sample_bytes=100, shard_samples=20)
    location = DataLocation(root=tmp_path, shape=shape)
    generate(location, ["npy"], 1, lambda *_: None)
    fetch = BatchReader("npy", location.part("npy", 0), shape)
    loader = TorchLoader(fetch, readers=0, depth=0, batched=batched)
    for epoch in range(2):
        order = np.random.default_rng(epoch).permutation(60)
        wanted = np.split(order, 5)
        got = list(loader.batches(wanted, 0))
        assert [wrong_samples(*pair) for pair in zip(got, wanted, strict=True)] == [0] * 5
    loader.close()
    fetch.close()
