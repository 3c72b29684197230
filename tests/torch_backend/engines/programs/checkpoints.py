"""Each rank: torch.distributed.checkpoint, written by one job and read by another of another size.

Words: save or load, and a folder.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import truth
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

SAVED_AFTER = 2  # of truth.NUM_STEPS
FOLDER = Path()


def replicated() -> nn.Module:
    return DistributedDataParallel(truth.net())


def sharded() -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = truth.net()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def sharded_by_fsdp1() -> nn.Module:
    """With a mesh its state is of DTensors; PyTorch cannot async_save that of the older kind."""
    return FullyShardedDataParallel(
        truth.net(),
        device_mesh=init_device_mesh("cpu", (dist.get_world_size(),)),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )


KINDS = {"ddp": replicated, "fsdp1": sharded_by_fsdp1, "fsdp2": sharded}


def state_of(model: nn.Module, optimizer: Optimizer) -> dict[str, object]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "step": SAVED_AFTER}


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    options = StateDictOptions(full_state_dict=True)
    state = get_model_state_dict(model, options=options)
    return {name: value for name, value in state.items() if value.numel()}


def save() -> None:
    """At once, and with async_save: training goes on while the files are written.

    That runs collectives on a thread of its own, so it wants a group of its own: on the one in
    which training reduces gradients, ranks would take turns in different orders. (Gloo then waits
    without end; here an error names both calls.)
    """
    beside = dist.new_group()
    for name, make in KINDS.items():
        model = make()
        optimizer = truth.adam(model.parameters())
        truth.train(model, optimizer, truth.parts(range(SAVED_AFTER)))
        state = state_of(model, optimizer)
        dcp.save(state, checkpoint_id=FOLDER / name)
        path = FOLDER / f"{name}-async"
        future = dcp.async_save(state, checkpoint_id=path, process_group=beside)
        truth.train(model, optimizer, truth.parts(range(SAVED_AFTER, truth.NUM_STEPS)))
        future.result()
        full = whole(model)
        if full:
            truth.same_parameters(full, dict(truth.trained(truth.adam).named_parameters()))


def load() -> None:
    """Each checkpoint into each kind of model, and on to the end."""
    for path in sorted(FOLDER.iterdir()):
        for make in KINDS.values():
            model = make()
            with torch.no_grad():
                for parameter in model.parameters():
                    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
                    local.fill_(100.0)
            optimizer = truth.adam(model.parameters())
            state = state_of(model, optimizer)
            state["step"] = -1
            dcp.load(state, checkpoint_id=path)
            assert state["step"] == SAVED_AFTER
            set_state_dict(
                model,
                optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
            truth.train(model, optimizer, truth.parts(range(SAVED_AFTER, truth.NUM_STEPS)))
            truth.same_parameters(whole(model), dict(truth.trained(truth.adam).named_parameters()))


def broadcast_from_rank_0() -> None:
    """Whole states, of rank 0 only, into shards."""
    model = sharded()
    expected = truth.trained(truth.adam)
    state = expected.state_dict() if dist.get_rank() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, state, options=options)
    truth.same_parameters(whole(model), dict(expected.named_parameters()))
    moments = get_optimizer_state_dict(
        model, truth.adam(model.parameters()), options=StateDictOptions(full_state_dict=True)
    )
    assert "param_groups" in moments


if __name__ == "__main__":
    FOLDER = Path(sys.argv[2])
    truth.run(*((save, broadcast_from_rank_0) if sys.argv[1] == "save" else (load,)))
