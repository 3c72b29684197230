"""Sharding of parameters, gradients and optimizer state among data ranks, by PyTorch's FSDP2.

Source: Rajbhandari et al. 2020, "ZeRO", arXiv:1910.02054: stages 2 and 3.
"""

from __future__ import annotations

import traceback
import warnings
from functools import wraps
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from phalanx.errors import UserError
from phalanx.parallel.pipeline.chain import Chain


def shard_parameters(model: nn.Module, mesh: DeviceMesh, *, keep_whole: bool) -> None:
    """Shard every parameter along its first dim among the ranks of the mesh's last axis, in place;
    with two axes the first is one of replicas. No communication.

    Parameters of a unit are gathered together before it is used. keep_whole: gathered once a step,
    kept from the forward to the backward pass (stage 2); else gathered again in the backward pass
    (stage 3).
    Gradients become sums over all ranks of the mesh, each of the weight that its rank gave it.
    """
    units = [unit for unit in units_of(model).values() if any(True for _ in unit.parameters())]
    for module in (*units, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=not keep_whole)
    for unit in _sharded(model):
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
    # It is told of every layer that tensor parallelism has split as well; of what it warns, an
    # operation in place on a unit's output, no model here has one.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


def explain_parts(model: nn.Module) -> None:
    """Have the model name the line that uses a parameter of a module which is not called there,
    and has its part alone."""
    forward = model.forward

    @wraps(forward)
    def explained(*words: Any, **named: Any) -> Any:
        try:
            return forward(*words, **named)
        except RuntimeError as error:
            if "DTensor" not in str(error):
                raise
            frames = traceback.extract_tb(error.__traceback__)
            own = [each for each in frames if "/torch/" not in each.filename]
            raise UserError(
                f"{own[-1].filename}:{own[-1].lineno}: a parameter is used without a call of its "
                "module, which would gather it from the ranks: call it, or use another strategy"
            ) from error

    model.forward = explained


def units_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules whose parameters are gathered together, by name: layers of a chain, or
    children; of lists and dictionaries of modules, which are not called, their children."""
    if isinstance(model, Chain):
        return model.chained_layers()
    units: dict[str, nn.Module] = {}
    for name, child in model.named_children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            units |= {f"{name}.{key}": unit for key, unit in units_of(child).items()}
        else:
            units[name] = child
    return units


def parameters_by_unit(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return the parameters of each unit, by name; "" has those of none, if there are any."""
    found = {name: list(unit.parameters()) for name, unit in units_of(model).items()}
    within = {id(parameter) for parameters in found.values() for parameter in parameters}
    others = [each for each in model.parameters() if id(each) not in within]
    return found | ({"": others} if others else {})


def synchronize_gradients(model: nn.Module, is_wanted: bool) -> None:
    """Set whether the next backward pass sums gradients over the ranks, or accumulates locally."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_wanted)


def reshard_parameters(model: nn.Module) -> None:
    """Reshard parameters still gathered after a forward-only pass."""
    for module in _sharded(model):
        module.reshard()


def _sharded(model: nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]
