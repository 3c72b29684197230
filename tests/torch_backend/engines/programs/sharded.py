"""Each rank: FSDP1, FSDP2, HSDP and ZeroRedundancyOptimizer train what one process trains."""

import functools

import torch
import torch.distributed as dist
import truth
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.optim.functional_adam import _FunctionalAdam
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

CPU = torch.device("cpu")


def wrapped(model: nn.Module, **options: object) -> FullyShardedDataParallel:
    """FSDP1, a unit a linear layer."""
    policy = ModuleWrapPolicy({nn.Linear})
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=CPU, **options)


def weights_of(model: FullyShardedDataParallel) -> dict[str, Tensor]:
    """Whole, on every rank."""
    with FullyShardedDataParallel.summon_full_params(model):
        named = {name: value.detach().clone() for name, value in model.named_parameters()}
    return {name.replace("_fsdp_wrapped_module.", ""): value for name, value in named.items()}


def check_fsdp1() -> None:
    for options in (
        {},
        {"use_orig_params": True},
        {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
        {"sharding_strategy": ShardingStrategy.NO_SHARD},
        {"backward_prefetch": BackwardPrefetch.BACKWARD_POST, "forward_prefetch": True},
        {"limit_all_gathers": False},
    ):
        model = wrapped(truth.net(), **options)
        truth.train(model, truth.adam(model.parameters()), truth.parts())
        truth.same_parameters(weights_of(model), truth.trained(truth.adam))


def check_fsdp1_accumulates() -> None:
    model = wrapped(truth.net(), use_orig_params=True)
    optimizer = truth.sgd(model.parameters())
    for inputs, targets in truth.parts():
        optimizer.zero_grad()
        first, second = zip(inputs.chunk(2), targets.chunk(2), strict=True)
        with model.no_sync():
            (truth.loss_of(model, first) / 2).backward()
        (truth.loss_of(model, second) / 2).backward()
        optimizer.step()
    truth.same_parameters(weights_of(model), truth.trained())


def check_fsdp1_clips() -> None:
    """Norms of gradients are taken over all ranks; FSDP1 does it in single precision only."""
    model, expected = wrapped(truth.net(torch.float32)), truth.net(torch.float32)
    given = truth.batch(0, torch.float32)
    truth.loss_of(expected, given).backward()
    truth.loss_of(model, truth.part(given)).backward()
    norm = nn.utils.clip_grad_norm_(expected.parameters(), 0.1)
    truth.close(model.clip_grad_norm_(0.1), norm, "norm", 1e-6)


def check_fsdp1_halves() -> None:
    """bfloat16 for what is computed and sent; the weights stay in double precision."""
    half = MixedPrecision(
        param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16
    )
    model = wrapped(truth.net(), mixed_precision=half)
    truth.train(model, truth.sgd(model.parameters()), truth.parts())
    truth.same_parameters(weights_of(model), truth.trained(), 0.05)


def sharded(
    mesh: DeviceMesh, dtype: torch.dtype = torch.float64, **options: object
) -> nn.Sequential:
    """FSDP2, a unit a linear layer."""
    model = truth.net(dtype)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def whole(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.full_tensor() for name, tensor in model.named_parameters()}


def line() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def check_fsdp2() -> None:
    """61 rows on 2, 3 or 4 ranks: the last shard is smaller, and of 5 rows on 4 ranks it is
    missing."""
    for options in ({}, {"reshard_after_forward": False}):
        model = sharded(line(), **options)
        parameter = model[2].weight
        assert isinstance(parameter, DTensor)
        rows = [len(rows) for rows in torch.empty(truth.WIDTH).chunk(dist.get_world_size())]
        assert parameter.to_local().shape == (rows[dist.get_rank()], truth.WIDTH)
        truth.train(model, truth.adam(model.parameters()), truth.parts())
        truth.same_parameters(whole(model), truth.trained(truth.adam))


def check_fsdp2_accumulates_and_clips() -> None:
    model, expected = sharded(line()), truth.net()
    optimizer, theirs = truth.sgd(model.parameters()), truth.sgd(expected.parameters())
    for step in range(truth.NUM_STEPS):
        inputs, targets = truth.part(truth.batch(step))
        optimizer.zero_grad()
        for is_last, given in enumerate(zip(inputs.chunk(2), targets.chunk(2), strict=True)):
            model.set_requires_gradient_sync(bool(is_last))
            (truth.loss_of(model, given) / 2).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.2).full_tensor()
        optimizer.step()
        theirs.zero_grad()
        truth.loss_of(expected, truth.batch(step)).backward()
        truth.close(norm, nn.utils.clip_grad_norm_(expected.parameters(), 0.2), "norm")
        theirs.step()
    truth.same_parameters(whole(model), expected)


def check_fsdp2_halves() -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded(line(), torch.float32, mp_policy=policy)
    parts = [truth.part(truth.batch(step, torch.float32)) for step in range(truth.NUM_STEPS)]
    truth.train(model, truth.sgd(model.parameters()), parts)
    truth.same_parameters(whole(model), truth.trained(), 0.05)


def check_fsdp2_offloads() -> None:
    """A policy for GPUs, which changes nothing where all is on the CPU anyway."""
    model = sharded(line(), offload_policy=CPUOffloadPolicy(pin_memory=False))
    truth.train(model, truth.sgd(model.parameters()), truth.parts())
    truth.same_parameters(whole(model), truth.trained())


def check_hsdp() -> None:
    """Replicas of shards: 2 × 2 of 4 ranks; 2 × 1 and 1 × 2 of 2; 3 × 1 and 1 × 3 of 3.

    FSDP1 reduces nothing over replicas of shards of one rank, on any backend: not tried.
    """
    size = dist.get_world_size()
    for shape in [(2, 2)] if size == 4 else [(size, 1), (1, size)]:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replica", "shard"))
        model = sharded(mesh)
        truth.train(model, truth.adam(model.parameters()), truth.parts())
        truth.same_parameters(whole(model), truth.trained(truth.adam))
        if shape[1] == 1:
            continue
        hybrid = wrapped(
            truth.net(), device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD
        )
        truth.train(hybrid, truth.adam(hybrid.parameters()), truth.parts())
        truth.same_parameters(weights_of(hybrid), truth.trained(truth.adam))


def check_zero() -> None:
    """ZeroRedundancyOptimizer: every rank updates some parameters and broadcasts them."""
    for options in (
        {},
        {"parameters_as_bucket_view": True},
    ):
        model = truth.net()
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01, **options
        )
        truth.train(DistributedDataParallel(model), optimizer, truth.parts())
        truth.same_parameters(model, truth.trained(truth.adam))
        truth.same_on_all(model.parameters())


def check_zero_state() -> None:
    """Its state, consolidated on one rank, is that of the whole optimizer, and can be loaded."""
    size = dist.get_world_size()
    make = functools.partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.Adam, lr=0.01)
    model, expected = truth.net(), truth.net()
    optimizer, theirs = make(model.parameters()), truth.adam(expected.parameters())
    truth.train(DistributedDataParallel(model), optimizer, truth.parts(range(2)))
    truth.train(expected, theirs, truth.batches(range(2)))
    optimizer.consolidate_state_dict(to=size - 1)
    state = [optimizer.state_dict() if dist.get_rank() == size - 1 else None]
    if dist.get_rank() == size - 1:
        for number, moments in theirs.state_dict()["state"].items():
            truth.close(state[0]["state"][number]["exp_avg"], moments["exp_avg"], "moment")
    dist.broadcast_object_list(state, src=size - 1)
    later = make(model.parameters())
    later.load_state_dict(state[0])
    truth.train(DistributedDataParallel(model), later, truth.parts(range(2, 4)))
    truth.train(expected, theirs, truth.batches(range(2, 4)))
    truth.same_parameters(model, expected)


def check_zero_overlap() -> None:
    """The update of a bucket in DDP's hook, as soon as it is reduced; it leaves out the first
    steps, while DDP makes its buckets anew."""
    model = truth.net()
    ddp = DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=_FunctionalAdam, lr=0.01, overlap_with_ddp=True
    )
    ddp.register_comm_hook(dist.group.WORLD, hook_with_zero_step(allreduce_hook, ddp, optimizer))
    for given in truth.parts(range(8)):
        ddp.zero_grad()
        truth.loss_of(ddp, given).backward()
    truth.same_on_all(model.parameters())
    expected = {}
    for skipped in range(4):
        trained = truth.net()
        truth.train(trained, truth.adam(trained.parameters()), truth.batches(range(skipped, 8)))
        expected[skipped] = (trained[0].weight - model[0].weight).abs().max().item()
    assert min(expected.values()) < 1e-10, f"farthest by steps left out: {expected}"


def check_post_local_sgd() -> None:
    """Gradients are averaged for two steps, from then on parameters every second step."""
    group = dist.group.WORLD
    model = truth.net()
    ddp = DistributedDataParallel(model)
    state = PostLocalSGDState(group, subgroup=dist.new_subgroups(1)[0], start_localSGD_iter=2)
    ddp.register_comm_hook(state, post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        PeriodicModelAverager(period=2, warmup_steps=2),
    )
    truth.train(ddp, optimizer, truth.parts(range(5)))

    rank, size = dist.get_rank(), dist.get_world_size()
    replicas = [truth.net() for _ in range(size)]
    for step in range(5):
        chunks = list(zip(*(tensor.chunk(size) for tensor in truth.batch(step)), strict=True))
        for replica, given in zip(replicas, chunks, strict=True):
            replica.zero_grad()
            truth.loss_of(replica, given).backward()
        for same in zip(*(replica.parameters() for replica in replicas), strict=True):
            mean = sum(parameter.grad for parameter in same) / size
            for parameter in same:
                parameter.data -= 0.1 * (mean if step < 2 else parameter.grad)
            if step >= 2 and step % 2 == 0:
                average = sum(parameter.data for parameter in same) / size
                for parameter in same:
                    parameter.data.copy_(average)
    truth.same_parameters(model, replicas[rank])


CHECKS = [check for name, check in globals().items() if name.startswith("check_")]

if __name__ == "__main__":
    truth.run(*CHECKS)
