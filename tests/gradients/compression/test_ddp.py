"""The hook of compressed gradients for stock DDP, on a bucket that is not in the host's memory."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Size, Tensor

from phalanx.gradients.compression.ddp import Compressed, reduce_bucket


class OnDevice(Tensor):
    """Stand-in for a tensor in memory of a device, which comes to the host as a copy."""

    def cpu(self, *_: Any) -> Tensor:
        return self.as_subclass(Tensor).clone()


def test_a_bucket_on_a_device_is_compressed_on_the_host() -> None:
    """The kernels of the host were given its address, and ended the process."""
    seen = []

    def double(number: int, values: Tensor, _: object) -> None:
        seen.append((number, type(values)))
        values *= 2

    state: Any = Compressed("bf16")
    state.backend = SimpleNamespace(size=4)
    state.compressor = SimpleNamespace(reduce=double, prepare=lambda *_: None)
    values = torch.arange(6.0).as_subclass(OnDevice)
    parameter = SimpleNamespace(shape=Size([6]))
    bucket: Any = SimpleNamespace(
        index=lambda: 3, parameters=lambda: [parameter], buffer=lambda: values
    )
    found = reduce_bucket(state, bucket).wait()
    assert seen == [(3, Tensor)]
    assert found is values and values.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
