"""The fused step against an all-reduce followed by an optimizer step, in turn, in one run.

    python benchmarks/fused_step.py [RANKS]      # default 2; a minute

Measured is Adam on 25 million parameters in 25 tensors, after the backward pass: from every rank's
gradients to parameters that all ranks see.

    fused    reduce and update in one pass, parameters and state once per node (`--strategy shared`)
    shared   all-reduce in shared memory, then PyTorch's fused Adam on every rank (`--strategy mpi`)
    gloo     as in DDP: gradients lie in buckets of 25 MiB, Gloo sums each, and the sum is divided
             by the number of ranks; then PyTorch's fused Adam on every rank

Reported: milliseconds, median and quartiles over 30 steps. Gradients are rewritten before each
step, and the parameters of all three are compared at the end. Memory is the growth of a rank's PSS
(shared pages divided by the processes that share them), without gradients. Raw values, commit and
machine go to runs/benchmarks/fused_step.json.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Adam

from harness import quartiles, run_ranks, save
from phalanx.comm.world import World
from phalanx.gradients.fused import FusedOptimizerStep
from phalanx.gradients.make_reducer import AllReduce
from phalanx.gradients.optimizer_update import OptimizerConfig

TENSORS, ELEMENTS = 25, 1_000_000
SIZES = [ELEMENTS] * TENSORS
BUCKET_TENSORS = 25 * 2**20 // (4 * ELEMENTS)
LEARNING_RATE = 1e-3
STEPS = 30


class Way(ABC):
    """A way from gradients to updated parameters, which holds both."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.gradients = [torch.zeros(ELEMENTS) for _ in SIZES]

    @abstractmethod
    def step(self) -> None: ...

    @abstractmethod
    def parameter(self, number: int) -> Tensor: ...


class Fused(Way):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        rule = OptimizerConfig(name="adam", learning_rate=LEARNING_RATE)
        fused = FusedOptimizerStep.join(world, rule, SIZES, "float32")
        assert fused is not None, "two ranks of one node"
        self.fused = fused
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        addresses = [gradient.data_ptr() for gradient in self.gradients]
        self.fused.step_at(addresses, LEARNING_RATE, self.steps)

    def parameter(self, number: int) -> Tensor:
        return torch.from_numpy(self.fused.parameters[number])


class Separate(Way):
    """A way with a copy of the parameters and their optimizer on every rank."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.parameters = [nn.Parameter(torch.zeros(ELEMENTS)) for _ in SIZES]
        self.adam = Adam(self.parameters, lr=LEARNING_RATE, fused=True)

    def parameter(self, number: int) -> Tensor:
        return self.parameters[number].detach()


class Shared(Separate):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.reducer = AllReduce(method="shared", overlap="off").make(self.parameters, world)

    def step(self) -> None:
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        self.reducer.flush()
        self.adam.step()


class Gloo(Separate):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.buckets = [
            torch.zeros(ELEMENTS * len(SIZES[first : first + BUCKET_TENSORS]))
            for first in range(0, TENSORS, BUCKET_TENSORS)
        ]
        self.gradients = [part for bucket in self.buckets for part in bucket.split(ELEMENTS)]
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient

    def step(self) -> None:
        works = [dist.all_reduce(bucket, async_op=True) for bucket in self.buckets]
        for work, bucket in zip(works, self.buckets, strict=True):
            work.wait()
            bucket.div_(self.world.size)
        self.adam.step()


WAYS: dict[str, Callable[[World], Way]] = {"fused": Fused, "shared": Shared, "gloo": Gloo}


def join_gloo(world: World) -> None:
    server = dist.TCPStore(world.hostname, 0, world.size, True, wait_for_workers=False)
    host, port = world.share((world.hostname, server.port))
    store = server if world.rank == 0 else dist.TCPStore(host, port, world.size, False)
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)


def rewrite(way: Way, values: Tensor) -> None:
    """Write this step's gradients, times the number of ranks for Gloo, whose sum is divided."""
    weight = way.world.size if isinstance(way, Gloo) else 1
    for gradient in way.gradients:
        torch.mul(values, weight, out=gradient)


def proportional_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def rank_main(folder: Path) -> None:
    torch.set_num_threads(1)
    world = World.create(timeout_s=120)
    join_gloo(world)
    generator = torch.Generator().manual_seed(world.rank)
    ways: dict[str, Way] = {}
    num_bytes: dict[str, int] = {}
    for name, make in WAYS.items():
        gc.collect()
        world.barrier()
        before = proportional_bytes()
        ways[name] = make(world)
        rewrite(ways[name], torch.zeros(ELEMENTS))
        ways[name].step()
        world.barrier()
        num_bytes[name] = proportional_bytes() - before - 4 * sum(SIZES)
        world.barrier()
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(STEPS):
        values = torch.rand(ELEMENTS, generator=generator) - 0.5
        for name, way in ways.items():
            rewrite(way, values)
            world.barrier()
            began = time.perf_counter()
            way.step()
            times[name].append(time.perf_counter() - began)
            world.barrier()
    for name, way in ways.items():
        for number in (0, TENSORS - 1):
            difference = (way.parameter(number) - ways["fused"].parameter(number)).abs().max()
            assert difference < 1e-6, f"{name} is off by {difference}"
    if world.rank == 0:
        (folder / "found.json").write_text(json.dumps({"seconds": times, "bytes": num_bytes}))
    world.barrier()
    dist.destroy_process_group()


def report(times: dict[str, list[float]], num_bytes: dict[str, int]) -> None:
    fused = statistics.median(times["fused"])
    print(f"{'':8}{'ms [quartiles]':>24}{'times fused':>14}{'MB a rank':>12}")
    for name, values in times.items():
        cell = quartiles([1e3 * value for value in values], digits=1)
        times_fused = statistics.median(values) / fused
        print(f"{name:8}{cell:>24}{times_fused:14.2f}{num_bytes[name] / 1e6:12.0f}")


def main(ranks: int) -> None:
    found = run_ranks(__file__, ranks, timeout_s=600)["found"]
    report(found["seconds"], found["bytes"])
    save(
        __file__,
        ranks=ranks,
        parameters=sum(SIZES),
        bytes_a_rank=found["bytes"],
        seconds=found["seconds"],
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
