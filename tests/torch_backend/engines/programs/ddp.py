"""Each rank: DistributedDataParallel in its many forms trains what one process trains."""

import functools
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
import truth
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

SEVERAL_BUCKETS = {"bucket_cap_mb": 0.02}


def check_plain() -> None:
    expected = truth.trained()
    for options in (
        {},
        SEVERAL_BUCKETS,
        {"gradient_as_bucket_view": True},
        {"gradient_as_bucket_view": True, **SEVERAL_BUCKETS},
        {"static_graph": True},
        {"static_graph": True, "gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"init_sync": False},
    ):
        model = truth.net()
        truth.train(
            DistributedDataParallel(model, **options), truth.sgd(model.parameters()), truth.parts()
        )
        truth.same_parameters(model, expected)
        truth.same_on_all(model.parameters())


def check_first_weights() -> None:
    """DDP begins with those of rank 0."""
    model = truth.net()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + dist.get_rank())
    truth.train(DistributedDataParallel(model), truth.sgd(model.parameters()), truth.parts())
    truth.same_parameters(model, truth.trained())


class Forked(nn.Module):
    """The branch that a batch goes through depends on the rank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.trunk = nn.Linear(truth.NUM_INPUTS, 64)
        self.even, self.odd, self.never = (nn.Linear(64, truth.NUM_OUTPUTS) for _ in range(3))
        self.double()

    def forward(self, inputs: Tensor, rank: int) -> Tensor:
        branch = self.odd if rank % 2 else self.even
        return branch(torch.tanh(self.trunk(inputs)))


def check_unused_parameters() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for is_view in (False, True):
        model, expected = Forked(), Forked()
        ddp = DistributedDataParallel(
            model, find_unused_parameters=True, gradient_as_bucket_view=is_view
        )
        mine, theirs = truth.sgd(model.parameters()), truth.sgd(expected.parameters())
        for step in range(truth.NUM_STEPS):
            mine.zero_grad()
            inputs, targets = truth.part(truth.batch(step))
            nn.functional.mse_loss(ddp(inputs, rank), targets).backward()
            mine.step()
            theirs.zero_grad()
            chunks = zip(*(tensor.chunk(size) for tensor in truth.batch(step)), strict=True)
            for r, (inputs, targets) in enumerate(chunks):
                (nn.functional.mse_loss(expected(inputs, r), targets) / size).backward()
            theirs.step()
        assert model.never.weight.grad is None
        truth.same_parameters(model, expected)


def check_accumulation() -> None:
    """no_sync: two micro-batches go into one step."""
    for is_view in (False, True):
        model = truth.net()
        ddp = DistributedDataParallel(model, gradient_as_bucket_view=is_view)
        optimizer = truth.sgd(model.parameters())
        for inputs, targets in truth.parts():
            optimizer.zero_grad()
            first, second = zip(inputs.chunk(2), targets.chunk(2), strict=True)
            with ddp.no_sync():
                (truth.loss_of(ddp, first) / 2).backward()
            (truth.loss_of(ddp, second) / 2).backward()
            optimizer.step()
        truth.same_parameters(model, truth.trained())


def check_uneven_inputs() -> None:
    """join(): a rank that has run out of batches shadows the collectives of the others."""
    rank, size = dist.get_rank(), dist.get_world_size()
    steps_of = [2 + r for r in range(size)]
    model, expected = truth.net(), truth.net()
    ddp, mine = DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1)
    with ddp.join(divide_by_initial_world_size=True):
        truth.train(ddp, mine, truth.parts(range(steps_of[rank])))
    theirs = torch.optim.SGD(expected.parameters(), lr=0.1)
    for step in range(max(steps_of)):
        theirs.zero_grad()
        chunks = zip(*(tensor.chunk(size) for tensor in truth.batch(step)), strict=True)
        for r, given in enumerate(chunks):
            if step < steps_of[r]:
                (truth.loss_of(expected, given) / size).backward()
        theirs.step()
    # whoever stops first is sent the last weights of who went on
    truth.same_parameters(model, expected)
    with Join([ddp]):
        truth.train(ddp, mine, truth.parts(range(steps_of[-1 - rank])))
    truth.same_on_all(model.parameters())


def hooked(
    register: Callable[[DistributedDataParallel], None], tolerance: float, **options: object
) -> None:
    model = truth.net()
    ddp = DistributedDataParallel(model, **options)
    register(ddp)
    truth.train(ddp, truth.sgd(model.parameters()), truth.parts())
    truth.same_parameters(model, truth.trained(), tolerance)
    truth.same_on_all(model.parameters())


def bf16_hook(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """PyTorch refuses `bf16_compress_hook` by its name where there is no GPU."""
    return default_hooks.bf16_compress_hook(group, bucket)


def check_hooks() -> None:
    group = dist.group.WORLD
    for hook, tolerance in (
        (default_hooks.allreduce_hook, 1e-10),
        (default_hooks.fp16_compress_hook, 2e-3),
        (bf16_hook, 2e-2),
        (default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), 2e-3),
    ):
        register = functools.partial(
            DistributedDataParallel.register_comm_hook, state=group, hook=hook
        )
        hooked(register, tolerance)
        hooked(register, tolerance, gradient_as_bucket_view=True, **SEVERAL_BUCKETS)
    # FP16_COMPRESS, the other one in C++, takes no futures that were made in Python
    kind = dist.BuiltinCommHookType.ALLREDUCE
    hooked(lambda ddp: ddp._register_builtin_comm_hook(kind), 1e-10)


def check_power_sgd() -> None:
    """Compressed to rank 64, which loses nothing of these matrices; to rank 1, all ranks agree.

    It hung for ever: in the callback of one collective it waits for the future of the next, on the
    thread that should have run it. (PyTorch's batched_powerSGD_hook fails on every backend: it
    gives a matrix to a function that asserts a batch of them.)
    """
    for rank, tolerance in ((64, 1e-6), (1, 1.0)):
        state = powerSGD_hook.PowerSGDState(
            dist.group.WORLD,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=2,
            min_compression_rate=0.01,
            orthogonalization_epsilon=1e-12,
        )
        hook = powerSGD_hook.powerSGD_hook
        hooked(
            functools.partial(DistributedDataParallel.register_comm_hook, state=state, hook=hook),
            tolerance,
        )


def check_own_hook() -> None:
    """A hook that sends two collectives of its own, one in the callback of the other."""

    def reduce_by_halves(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        halves = bucket.buffer().chunk(2)
        first = dist.all_reduce(halves[0], async_op=True).get_future()

        def second(_: torch.futures.Future[list[Tensor]]) -> Tensor:
            if len(halves) > 1:
                dist.all_reduce(halves[1])
            return bucket.buffer().div_(dist.get_world_size())

        return first.then(second)

    hooked(lambda ddp: ddp.register_comm_hook(None, reduce_by_halves), 1e-10)


def check_hook_that_waits_for_the_second() -> None:
    """Both are under way before the callback of the first waits for the second: the thread of the
    group waited for itself, without end."""

    def reduce_halves(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        halves = bucket.buffer().div_(dist.get_world_size()).split(len(bucket.buffer()) // 2 + 1)
        futures = [dist.all_reduce(half, async_op=True).get_future() for half in halves]

        def both(_: torch.futures.Future[list[Tensor]]) -> Tensor:
            futures[-1].wait()
            return bucket.buffer()

        return futures[0].then(both)

    hooked(lambda ddp: ddp.register_comm_hook(None, reduce_halves), 1e-10)


class SyncedNorm(nn.Module):
    """Batch norm over the samples of all ranks: a collective in forward and one in backward.

    `nn.SyncBatchNorm` itself takes GPU tensors only.
    """

    def __init__(self, num_features: int, *, by_gathering: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, num_features, dtype=torch.float64))
        self.by_gathering = by_gathering

    def forward(self, inputs: Tensor) -> Tensor:
        count = len(inputs) * dist.get_world_size()
        sums = torch.stack([inputs.sum(0), (inputs * inputs).sum(0)])
        if self.by_gathering:
            total = torch.stack(tuple(differentiable.all_gather(sums))).sum(0)
        else:
            total = differentiable.all_reduce(sums)
        mean = total[0] / count
        variance = total[1] / count - mean * mean
        return (inputs - mean) / (variance + 1e-5).sqrt() * self.weight


def check_synced_norm() -> None:
    norm = nn.BatchNorm1d(truth.WIDTH, affine=True, dtype=torch.float64)
    norm.bias.requires_grad_(False)
    norm.weight.data = torch.linspace(0.5, 1.5, truth.WIDTH, dtype=torch.float64)
    expected = truth.net()
    expected[3] = norm
    truth.train(expected, truth.sgd(expected.parameters()), truth.batches())
    weights = {name: value for name, value in expected.named_parameters() if value.requires_grad}
    for by_gathering in (False, True):
        model = truth.net()
        model[3] = SyncedNorm(truth.WIDTH, by_gathering=by_gathering)
        truth.train(DistributedDataParallel(model), truth.sgd(model.parameters()), truth.parts())
        truth.same_parameters(model, weights)


def check_sync_batch_norm_is_refused_by_pytorch() -> None:
    model = nn.SyncBatchNorm(4)
    with pytest.raises(ValueError, match=r"GPU|cuda"):  # where it works on the CPU: test it
        model(torch.randn(3, 4))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = truth.net()
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += 1 + dist.get_rank()
        self.steps += 1
        return self.net(inputs)


def check_buffers() -> None:
    """Every forward pass begins with the buffers of rank 0."""
    model = Counting()
    truth.train(DistributedDataParallel(model), truth.sgd(model.parameters()), truth.parts())
    assert model.steps == truth.NUM_STEPS
    assert model.seen[0] == truth.NUM_STEPS + dist.get_rank(), model.seen


def check_half() -> None:
    """bfloat16 and float16: within their rounding, and the same bits on all ranks."""
    for dtype, tolerance in ((torch.bfloat16, 0.1), (torch.float16, 0.01)):
        model = truth.net(dtype)
        parts = [truth.part(truth.batch(step, dtype)) for step in range(truth.NUM_STEPS)]
        truth.train(DistributedDataParallel(model), truth.sgd(model.parameters()), parts)
        truth.same_parameters(model, truth.trained(), tolerance)
        truth.same_on_all(model.parameters())


def check_mixed_dtypes() -> None:
    """Parameters of two dtypes, in buckets of their own."""
    model = truth.net()
    model[4].to(torch.float32)
    expected = truth.net()
    expected[4].to(torch.float32)

    def loss(net: nn.Module, given: truth.Batch) -> Tensor:
        inputs, targets = given
        return nn.functional.mse_loss(net(inputs), targets.float())

    for each in (model, expected):
        each.insert(4, Single())
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    truth.train(ddp, truth.sgd(model.parameters()), truth.parts(), loss)
    truth.train(expected, truth.sgd(expected.parameters()), truth.batches(), loss)
    truth.same_parameters(model, expected, 1e-5)


class Single(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.float()


def check_two_models() -> None:
    """Two DDP modules, alternately and one after the other in one graph."""
    first, second = truth.net(), nn.Linear(truth.NUM_OUTPUTS, truth.NUM_OUTPUTS).double()
    expected = nn.Sequential(truth.net(), nn.Linear(*second.weight.shape).double())
    expected[1].load_state_dict(second.state_dict())
    dist.broadcast(expected[1].weight.data, 0)
    dist.broadcast(expected[1].bias.data, 0)
    both = nn.Sequential(DistributedDataParallel(first), DistributedDataParallel(second))
    truth.train(both, truth.sgd(both.parameters()), truth.parts())
    truth.train(expected, truth.sgd(expected.parameters()), truth.batches())
    truth.same_parameters(first, expected[0])
    truth.same_parameters(second, expected[1])


def check_in_a_part_of_the_ranks() -> None:
    """Two groups train at the same time, each on batches of its own."""
    rank, size = dist.get_rank(), dist.get_world_size()
    members = [list(range(first, size, 2)) for first in (0, 1)]  # of 3 ranks, one is alone
    groups = [dist.new_group(ranks) for ranks in members]
    mine = next(i for i, ranks in enumerate(members) if rank in ranks)
    steps = range(10 * mine, 10 * mine + truth.NUM_STEPS)
    for options in ({}, {"gradient_as_bucket_view": True}):
        model, expected = truth.net(), truth.net()
        ddp = DistributedDataParallel(model, process_group=groups[mine], **options)
        truth.train(ddp, truth.sgd(model.parameters()), truth.parts(steps, groups[mine]))
        truth.train(expected, truth.sgd(expected.parameters()), truth.batches(steps))
        truth.same_parameters(model, expected)
        truth.same_on_all(model.parameters(), groups[mine])
    dist.destroy_process_group(groups[mine])


def check_evaluation_between() -> None:
    """A model in evaluation needs no collective, and the next training step works."""
    model = truth.net()
    ddp = DistributedDataParallel(model)
    optimizer = truth.sgd(model.parameters())
    for step in range(truth.NUM_STEPS):
        truth.train(ddp, optimizer, truth.parts([step]))
        with torch.no_grad() if step % 2 else nullcontext():
            model(truth.batch(step)[0])
        if dist.get_rank() == 0:
            model.eval()
            model(truth.batch(step)[0])
            model.train()
    truth.same_parameters(model, truth.trained())


CHECKS = [check for name, check in globals().items() if name.startswith("check_")]

if __name__ == "__main__":
    truth.run(*CHECKS)
