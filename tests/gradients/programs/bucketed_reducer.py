"""Each rank: gradients summed bucket by bucket, during and after the backward pass.

Words: "truth", against one process that sees the whole batch, in float64; "faults", what ends it.
"""

import sys
import time
from collections.abc import Callable

import torch
from mpi4py.MPI import COMM_WORLD
from tests.parallel.stepping import make_step
from torch import Tensor, nn

from phalanx.comm.errors import PeerFailedError, WaitTimeoutError
from phalanx.comm.link import Link
from phalanx.comm.traffic import TrafficCounter
from phalanx.comm.world import World
from phalanx.gradients.bucketed_reducer import BucketedGradReducer
from phalanx.gradients.compression.compressor import Compressor, ReduceBackend, Uncompressed
from phalanx.gradients.make_reducer import AllReduce
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.parallel.options import Overlap
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.step import Batch, StepOptions
from phalanx.parallel.world_group import WorldGroup
from phalanx.records.spans import SpanRecorder

RANK, SIZE = COMM_WORLD.Get_rank(), COMM_WORLD.Get_size()
FAST = Link(latency_s=100e-6)
RULE = OptimizerConfig(name="sgd", learning_rate=0.1, momentum=0.9)
GLOBAL_BATCH, STEPS = 10, 4  # 10 samples: uneven over 3 and 4 ranks


class Net(nn.Module):
    """With a frozen layer, one that nothing reaches, and one that some steps do not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(80, 50), nn.Linear(50, 10)
        self.frozen = nn.Linear(10, 10).requires_grad_(False)
        self.unused, self.sometimes = nn.Linear(7, 7), nn.Linear(10, 10)
        self.uses_all = True

    def forward(self, x: Tensor) -> Tensor:
        y = self.frozen(self.second(torch.relu(self.first(x))))
        return self.sometimes(y) if self.uses_all else y


def model(seed: int) -> Net:
    torch.manual_seed(seed)
    return Net().double()


def batch(step: int, part: slice) -> Batch:
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(GLOBAL_BATCH, 80, generator=generator, dtype=torch.float64)
    targets = torch.randint(10, (GLOBAL_BATCH,), generator=generator)
    return Batch(inputs[part], targets[part], len(inputs[part]), GLOBAL_BATCH, step)


def own_part() -> slice:
    return slice(GLOBAL_BATCH * RANK // SIZE, GLOBAL_BATCH * (RANK + 1) // SIZE)


def truth() -> list[Tensor]:
    net = model(0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        net.uses_all = step % 2 == 0
        whole = batch(step, slice(None))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(whole.inputs), whole.targets).backward()
        for parameter in net.parameters():
            if parameter.grad is None and parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


class Doubly(Compressor):
    """Sends everything in two halves, to be seen bucket by bucket."""

    name = "doubly"

    def __init__(self) -> None:
        self.shapes: dict[int, int] = {}

    def prepare(self, number: int, shapes: list[torch.Size]) -> None:
        self.shapes[number] = sum(shape.numel() for shape in shapes)

    def reduce(self, number: int, values: Tensor, ranks: ReduceBackend) -> None:
        assert self.shapes[number] == len(values) and ranks.size == SIZE and ranks.rank == RANK
        middle = len(values) // 2
        ranks.all_reduce(values[:middle])
        ranks.all_reduce(values[middle:])

    def sent_bytes(self, shapes: list[torch.Size], rank: int, num_ranks: int) -> int:
        raise NotImplementedError


def trained(
    link: Link | None,
    overlap: Overlap,
    *,
    accumulate: int = 1,
    compressor: Compressor | None = None,
    bucket_bytes: int | None = 5000,
    method: str = "auto",
) -> list[Tensor]:
    """The parameters after some steps, which the ranks have summed and counted as they say."""
    world = World.create(timeout_s=8, link=link)
    summation = AllReduce(
        method=method, compressor=compressor, overlap=overlap, bucket_bytes=bucket_bytes
    )
    step = StepOptions(accumulate=accumulate)
    strategy = Replicas(WorldGroup(world), step, summation=summation)
    spans = SpanRecorder()
    strategy.group.trace(spans)
    net = model(RANK)
    strategy.prepare(net, RULE)
    traffic = world.group.traffic = TrafficCounter()
    reducer = strategy.reducer
    if isinstance(reducer, BucketedGradReducer):
        reducer._group.traffic = traffic
    for step in range(STEPS):
        net.uses_all = step % 2 == 0
        result = make_step(strategy, batch(step, own_part()))
        assert result.communication_s >= 0 and result.backward_s > 0
        if isinstance(reducer, BucketedGradReducer):
            assert result.last_bucket_s >= 0
            assert result.hidden_s >= 0 and (overlap != "off" or result.hidden_s == 0)
    if isinstance(reducer, BucketedGradReducer):
        members = reducer.bucket_members()
        assert sorted(number for bucket in members for number in bucket) == list(range(8))
        assert members[0][0] in (6, 7), "the last layer's gradients come first"
        assert bucket_bytes is None or len(members) > 2
        spans_of_buckets = [span for span in spans.take() if span.name.startswith("bucket ")]
        assert len(spans_of_buckets) == STEPS * len(members)
    if compressor is None:
        expected = strategy.expected(GLOBAL_BATCH)
        found = (traffic.sent_bytes / STEPS, traffic.received_bytes / STEPS)
        assert found == (expected.sent_bytes, expected.received_bytes), (found, expected)
    parameters = [parameter.detach().clone() for parameter in net.parameters()]
    strategy.close()
    return parameters


def check_truth() -> None:
    wanted = truth()
    cases: dict[str, Callable[[], list[Tensor]]] = {
        "link, on": lambda: trained(FAST, "on"),
        "link, off and compressed": lambda: trained(FAST, "off", compressor=Doubly()),
        "link, on and compressed": lambda: trained(FAST, "on", compressor=Doubly()),
        "link, off": lambda: trained(FAST, "off"),
        "link, auto, pieces": lambda: trained(FAST, "auto", accumulate=3),
        "link, ring": lambda: trained(FAST, "on", method="ring"),
        "link, one bucket": lambda: trained(FAST, "on", bucket_bytes=None),
        "memory, on": lambda: trained(None, "on"),
        "memory, on, pieces": lambda: trained(None, "on", accumulate=2),
        "memory, compressed": lambda: trained(None, "off", compressor=Doubly()),
        "memory, auto": lambda: trained(None, "auto"),
    }
    found = {name: case() for name, case in cases.items()}
    for name, parameters in found.items():
        for a, b in zip(parameters, wanted, strict=True):
            assert (a - b).abs().max() < 1e-9, name
        bits = [b"".join(p.numpy().tobytes() for p in parameters)]
        assert len(set(COMM_WORLD.allgather(bits[0]))) == 1, f"{name}: ranks differ"
    for one, other in (
        ("link, on and compressed", "link, off and compressed"),
        ("link, on", "memory, on"),
        ("memory, on", "memory, auto"),
    ):
        assert all(map(torch.equal, found[one], found[other])), (one, other)


def check_reaching_nothing() -> None:
    """A rank whose loss reaches no parameter counts as zeros, and keeps nobody waiting."""
    strategy, net = strategy_with()
    strategy.clear_gradients()
    some = batch(1, own_part())
    lost = torch.zeros((), dtype=torch.float64, requires_grad=True)
    before = net.second.bias.detach().clone()
    loss = lost * 1.0 if RANK == 0 else nn.functional.cross_entropy(net(some.inputs), some.targets)
    strategy.backward_and_reduce(loss, 1.0)
    strategy.update()
    assert RANK or net.second.bias.grad is not None
    assert SIZE == 1 or not torch.equal(net.second.bias, before)
    biases = COMM_WORLD.allgather(net.second.bias.detach().numpy().tobytes())
    assert len(set(biases)) == 1
    strategy.close()


class Breaks(Uncompressed):
    """An error on the thread of one rank."""

    def reduce(self, number: int, values: Tensor, ranks: ReduceBackend) -> None:
        if RANK == 0 and self.is_on:
            raise ArithmeticError("it broke")
        super().reduce(number, values, ranks)

    is_on = False


def strategy_with(
    compressor: Compressor | None = None, timeout_s: float = 60
) -> tuple[Replicas, Net]:
    world = World.create(timeout_s=timeout_s, link=FAST)
    strategy = Replicas(
        WorldGroup(world),
        summation=AllReduce(compressor=compressor, overlap="on", bucket_bytes=5000),
    )
    net = model(0)
    strategy.prepare(net, RULE)
    make_step(strategy, batch(0, own_part()))
    strategy.group.barrier()
    return strategy, net


def says(
    error: type[Exception] | tuple[type[Exception], ...], words: str, call: Callable[[], object]
) -> None:
    began = time.monotonic()
    try:
        call()
    except error as found:
        assert words in str(found), found
    else:
        raise AssertionError(f"no {error}")
    assert time.monotonic() - began < 30, "not by the long timeout"


def check_faults() -> None:
    # A rank that fails in its backward pass tells the others, whose waits end at once.
    strategy, net = strategy_with()
    if RANK == 0:
        net.first.weight.register_hook(lambda _: 1 / 0)
        says(ZeroDivisionError, "division", lambda: make_step(strategy, batch(1, own_part())))
    else:
        says(PeerFailedError, "rank 0 failed: ", lambda: make_step(strategy, batch(1, own_part())))
    strategy.reducer.close()
    COMM_WORLD.Barrier()

    # A rank that does not come is named.
    strategy, net = strategy_with(timeout_s=0.5)
    if RANK == 0:
        time.sleep(3.5)  # the others ask each other for two seconds
    else:
        gone = (WaitTimeoutError, PeerFailedError)  # who gives up first tells the others
        says(gone, "for rank 0", lambda: make_step(strategy, batch(1, own_part())))
    COMM_WORLD.Barrier()
    strategy.reducer._group.fail("the others have given up")
    strategy.reducer.close()
    COMM_WORLD.Barrier()

    # An error on the thread is that of the step.
    compressor = Breaks()
    strategy, net = strategy_with(compressor, timeout_s=3)
    compressor.is_on = True
    if RANK == 0:
        says(ArithmeticError, "it broke", lambda: make_step(strategy, batch(1, own_part())))
    else:
        says(
            (PeerFailedError, WaitTimeoutError),
            "rank 0",
            lambda: make_step(strategy, batch(1, own_part())),
        )
    COMM_WORLD.Barrier()


if sys.argv[1] == "truth":
    check_reaching_nothing()
{"truth": check_truth, "faults": check_faults}[sys.argv[1]]()
print(f"\nrank {RANK} of {SIZE} is done", flush=True)
COMM_WORLD.Barrier()
