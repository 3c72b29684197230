"""Devices of a program's ranks: a GPU each, and data that are copied to it while it computes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from phalanx.errors import UserError

CPU = torch.device("cpu")


def choose_device(name: str, local_rank: int) -> torch.device:
    """Return the device of a rank: its GPU, by its number on the node, or the CPU.

    name: cpu, cuda, or auto, which takes a GPU where PyTorch sees one.
    Raises: UserError for `cuda` without a GPU.
    """
    number = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cuda" and not number:
        raise UserError(
            'device="cuda", and PyTorch sees no GPU here: take device="auto", or install a build '
            "of PyTorch for it"
        )
    if name == "cpu" or not number:
        return CPU
    device = torch.device("cuda", local_rank % number)
    torch.cuda.set_device(device)
    return device


def check_on_cpu(model: nn.Module) -> None:
    """Raise UserError for a parameter or buffer that is not in the memory of the CPU."""
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if tensor.device.type != "cpu":
            raise UserError(
                f"the model's {name} is on {tensor.device}, and gradients are summed in the memory "
                'of the CPU: give device="cuda", which moves model and data, or leave the model '
                "on the CPU"
            )


def move_model(model: nn.Module, optimizers: Sequence[Optimizer], device: torch.device) -> None:
    """Move parameters, which stay those that the optimizers hold, buffers, and the state that the
    optimizers have."""
    model.to(device)
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    state[name] = value.to(device)


def copy_to(device: torch.device, data: Any) -> Any:
    """Return nested data with its tensors on the device. The copy goes through pinned memory, and
    the program goes on meanwhile."""

    def copy(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if device.type == "cuda" and value.is_cpu:
            value = value.pin_memory()
        return value.to(device, non_blocking=True)

    return tree_map(copy, data)
