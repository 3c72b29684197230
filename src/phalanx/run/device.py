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
    """Return the device of a rank, by its number on the node, or the CPU.

    name: cpu, auto, which takes an accelerator where PyTorch sees one, or the name of one, such as
        cuda, xpu or cuda:1.
    Raises: UserError for a device that PyTorch does not see here, or that another process has.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if name == "cpu" or (name == "auto" and accelerator is None):
        return CPU
    try:
        asked = accelerator if name == "auto" else torch.device(name)
    except RuntimeError:
        why = "is not one of cpu, cuda, auto and other accelerators that PyTorch knows"
        raise UserError(f"device={name!r} {why}") from None
    assert asked is not None, "cpu, if there is none"
    if asked.type == "cpu":
        return CPU
    number = 0 if accelerator is None else torch.accelerator.device_count()
    is_kind = accelerator is not None and asked.type == accelerator.type
    if not is_kind or (asked.index or 0) >= number:
        seen = f"{number} of {accelerator}" if accelerator is not None else "no GPU"
        raise UserError(
            f'device="{name}", but PyTorch finds {seen} here: use device="auto", or install a '
            "build of PyTorch for it"
        )
    index = local_rank % number if asked.index is None else asked.index
    torch.accelerator.set_device_index(index)
    place = torch.device(asked.type, index)
    try:
        torch.empty(1, device=place)
    except RuntimeError as error:
        why = next(iter(str(error).splitlines()), "")
        mend = "in exclusive mode a device takes one rank, so start as many ranks as devices"
        if isinstance(error, torch.OutOfMemoryError):
            mend = "free some of its memory, or start fewer ranks on it"
        raise UserError(
            f'device {place} refuses this process ({why}): {mend}, or use device="cpu" on some '
            "ranks"
        ) from error
    return place


def check_on_cpu(model: nn.Module) -> None:
    """Raise UserError for a parameter or buffer that is not in the memory of the CPU."""
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if tensor.device.type != "cpu":
            raise UserError(
                f"the model's {name} is on {tensor.device}, but gradients are summed in CPU "
                'memory: give device="cuda", which moves model and data, or leave the model on the '
                "CPU"
            )


def move_model(model: nn.Module, optimizers: Sequence[Optimizer], device: torch.device) -> None:
    """Move parameters, which stay those that the optimizers hold, buffers, and the state that the
    optimizers have."""
    # True if PyTorch would make new parameters, as for devices known only by a plug-in.
    swaps = not torch._has_compatible_shallow_copy_type(
        torch.empty(0, device=CPU), torch.empty(0, device=device)
    )
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(before or swaps)
    try:
        model.to(device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    state[name] = value.to(device)


def copy_to(device: torch.device, data: Any) -> Any:
    """Return nested data with its tensors on the device. The copy goes through pinned memory, and
    the program goes on meanwhile."""

    accelerator = torch.accelerator.current_accelerator()
    is_pinned = accelerator is not None and device.type == accelerator.type

    def copy(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if is_pinned and value.is_cpu:
            value = value.pin_memory()
        return value.to(device, non_blocking=True)

    return tree_map(copy, data)
