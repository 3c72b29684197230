"""Tensors on their way to the rank that writes them; without MPI."""

from typing import Any

import torch
from torch import Tensor

from phalanx.checkpoints.gathering import Box, GatherPlan, full_tensors
from phalanx.checkpoints.tensor_file import Spec
from phalanx.comm.buffer import Buffer


class OnDevice(Tensor):
    """Stand-in for a tensor in memory that the host cannot read."""

    def numpy(self, *_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def cpu(self, *_: Any) -> Tensor:
        return self.as_subclass(Tensor).clone()


class Sender:
    """Rank 1 of 2, whose messages are kept."""

    rank, size = 1, 2

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, buffer: Buffer, dest: int) -> "Sender":
        assert dest == 0
        self.sent.append(buffer.bytes().tobytes())
        return self

    def wait(self) -> None:
        pass


def test_what_lies_on_a_device_is_sent_from_the_host() -> None:
    """It was sent from where it lay: an error on this rank, and rank 0 waited for the message."""
    tensor = torch.arange(6.0).reshape(2, 3)
    plan = GatherPlan({"weight": Spec.of(tensor)}, {"weight": [Box(1, (0, 0), (2, 3))]})
    sender: Any = Sender()
    assert not list(full_tensors(sender, plan, {"weight": tensor.as_subclass(OnDevice)}))
    assert sender.sent == [tensor.numpy().tobytes()]
