"""Random collectives on overlapping groups from several threads, held against Gloo's.

Words: seed, number of calls. In every round the process group is made anew and each rank draws its
own surroundings: cores, cache, variables, moments in which it comes late. What is called is drawn
from the seed, the same on every rank. Values are small integers, so every order of summation has
one result. The last line of rank 0 says what ran.
"""

import os
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from phalanx.comm import settings
from phalanx.errors import UserError

SEED, NUM_CALLS = int(sys.argv[1]), int(sys.argv[2])
CALLS_A_ROUND, CALLS_A_BATCH = 500, 20
TIMEOUT = timedelta(seconds=90)
CORES = sorted(os.sched_getaffinity(0))

# Bytes around every threshold of both protocols: in one phase, and in chunks.
EDGES = (0, 64, 2048, 8192, 2**17, 2**19)
MOVED = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool),
)
SUMMED = MOVED[:-1]
OPERATIONS = {
    "SUM": dist.ReduceOp.SUM,
    "AVG": dist.ReduceOp.AVG,
    "MIN": dist.ReduceOp.MIN,
    "MAX": dist.ReduceOp.MAX,
    "PRODUCT": dist.ReduceOp.PRODUCT,
}


@dataclass
class Pair:
    """The same ranks as a group of backend mpi and of Gloo."""

    ranks: list[int]
    mpi: dist.ProcessGroup
    gloo: dist.ProcessGroup

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def rank(self) -> int:
        return self.ranks.index(dist.get_rank())


@dataclass
class Call:
    """One that was made: its work, what came of it, and how Gloo makes the same."""

    text: str
    work: dist.Work | None
    got: list[Tensor]
    oracle: Callable[[], list[Tensor]]
    inputs: list[Tensor] = field(default_factory=list)
    """Kept until the work is done."""


class Caller:
    """One thread of one rank: makes its calls, and compares them batch by batch."""

    def __init__(self, pairs: list[Pair], shared: Random, own: Random, label: str) -> None:
        """shared: draws the same on every rank; own: for this rank alone."""
        self.pairs, self.shared, self.own, self.label = pairs, shared, own, label
        self.kinds: Counter[str] = Counter()
        self.num_made = 0
        self._calls: list[Call] = []

    def run(self, num_calls: int) -> None:
        for number in range(num_calls):
            self.make(number)
            if number % CALLS_A_BATCH == CALLS_A_BATCH - 1:
                self.compare()
        self.compare()

    def make(self, number: int) -> None:
        """Draw a call; make it when this rank is in its group."""
        pair, kind = self.shared.choice(self.pairs), self.shared.choice(KINDS)
        dtype = self.shared.choice(SUMMED if kind in REDUCING else MOVED)
        count = self._count(dtype, pair.size if kind in MANY else 1)
        drawn = {
            "seed": self.shared.getrandbits(40),
            "root": self.shared.choice(pair.ranks),
            "operation": self.shared.choice(list(OPERATIONS)),
            "is_async": self.shared.random() < 0.5,
            "is_strided": self.shared.random() < 0.15,
        }
        self.kinds[kind] += 1
        if dist.get_rank() not in pair.ranks:
            return
        if self.own.random() < 0.01:
            time.sleep(self.own.random() * 3e-3)
        self.num_made += 1
        text = f"{self.label} call {number}: {kind} of {count} {dtype}, ranks {pair.ranks}, {drawn}"
        drawn.pop("seed")
        maker = Maker(pair, count, dtype, number, self.own_values(count, dtype), **drawn)
        call = getattr(maker, kind)(text)
        self._calls.append(call)

    def own_values(self, count: int, dtype: torch.dtype) -> Callable[..., Tensor]:
        """Makes tensors that only this rank knows: Gloo tells what the others have."""
        generator = torch.Generator().manual_seed(self.own.getrandbits(40))

        def values(rows: int = 1) -> Tensor:
            low, high = (0, 2) if dtype is torch.bool else (1, 4)
            made = torch.randint(low, high, (rows * count,), generator=generator)
            return made.to(dtype)

        return values

    def _count(self, dtype: torch.dtype, rows: int) -> int:
        edge = self.shared.choices(EDGES, weights=(2, 6, 6, 6, 2, 1))[0]
        near = edge // dtype.itemsize + self.shared.choice((-1, 0, 1))
        count = self.shared.choice((near, near, self.shared.randrange(near + 2)))
        return max(0, count) // (1 if self.shared.random() < 0.3 else rows)

    def compare(self) -> None:
        """Wait for all, in an order of this rank's own; then have Gloo do the same."""
        calls, self._calls = self._calls, []
        for call in self.own.sample(calls, len(calls)):
            if call.work is not None:
                call.work.wait()
        for call in calls:
            expected = call.oracle()
            for got, right in zip(call.got, expected, strict=True):
                if got.dtype != right.dtype or not torch.equal(got, right):
                    wrong = int((got != right).sum())
                    raise AssertionError(
                        f"{call.text}: {wrong} of {got.numel()} elements are wrong: "
                        f"{got[got != right][:5]} in place of {right[got != right][:5]}"
                    )


class Maker:
    """Makes one call, and says how Gloo makes it."""

    def __init__(
        self,
        pair: Pair,
        count: int,
        dtype: torch.dtype,
        number: int,
        values: Callable[..., Tensor],
        *,
        root: int,
        operation: str,
        is_async: bool,
        is_strided: bool,
    ) -> None:
        self.pair, self.count, self.dtype, self.tag = pair, count, dtype, number % 1000
        self.values, self.root, self.operation = values, root, operation
        self.is_strided = is_strided
        self.on_mpi = {"group": pair.mpi, "async_op": is_async}
        self.at_root = dist.get_rank() == root

    def laid(self, tensor: Tensor) -> Tensor:
        """A copy, now and then with gaps in memory."""
        if not self.is_strided or not tensor.numel():
            return tensor.clone()
        wide = torch.zeros(2 * tensor.numel(), dtype=tensor.dtype)[::2]
        wide.copy_(tensor)
        return wide

    def empty(self, rows: int = 1) -> Tensor:
        return torch.zeros(rows * self.count, dtype=self.dtype)

    def reduced(self, tensor: Tensor) -> Tensor:
        """Over the ranks, by Gloo."""
        total = tensor.clone()
        if not total.numel():
            return total
        op = "SUM" if self.operation == "AVG" else self.operation
        dist.all_reduce(total, OPERATIONS[op], group=self.pair.gloo)
        if self.operation != "AVG":
            return total
        if total.is_floating_point():
            return total / self.pair.size
        return torch.div(total, self.pair.size, rounding_mode="trunc")

    def all_of(self, tensor: Tensor) -> list[Tensor]:
        """Of every rank, by Gloo."""
        outputs = [torch.zeros_like(tensor) for _ in self.pair.ranks]
        if tensor.numel():
            dist.all_gather(outputs, tensor, group=self.pair.gloo)
        return outputs

    def all_reduce(self, text: str) -> Call:
        own = self.values()
        got = self.laid(own)
        work = dist.all_reduce(got, OPERATIONS[self.operation], **self.on_mpi)
        return Call(text, work, [got], lambda: [self.reduced(own)])

    def reduce(self, text: str) -> Call:
        own = self.values()
        got = self.laid(own)
        work = dist.reduce(got, self.root, OPERATIONS[self.operation], **self.on_mpi)

        def oracle() -> list[Tensor]:
            total = self.reduced(own)
            return [total if self.at_root else own]

        return Call(text, work, [got], oracle)

    def reduce_scatter(self, text: str) -> Call:
        own, got = self.values(self.pair.size), self.empty()
        op = OPERATIONS[self.operation]
        work = dist.reduce_scatter_tensor(got, own, op, **self.on_mpi)

        def oracle() -> list[Tensor]:
            rows = self.reduced(own).view(self.pair.size, self.count)
            return [rows[self.pair.rank]]

        return Call(text, work, [got], oracle, [own])

    def broadcast(self, text: str) -> Call:
        own = self.values()
        got = self.laid(own)
        work = dist.broadcast(got, self.root, **self.on_mpi)

        def oracle() -> list[Tensor]:
            right = own.clone()
            if right.numel():
                dist.broadcast(right, self.root, group=self.pair.gloo)
            return [right]

        return Call(text, work, [got], oracle)

    def all_gather(self, text: str) -> Call:
        own = self.values()
        got = [self.laid(self.empty()) for _ in self.pair.ranks]
        work = dist.all_gather(got, self.laid(own), **self.on_mpi)
        return Call(text, work, got, lambda: self.all_of(own))

    def all_gather_into_tensor(self, text: str) -> Call:
        own, got = self.values(), self.empty(self.pair.size)
        work = dist.all_gather_into_tensor(got, own, **self.on_mpi)
        return Call(text, work, [got], lambda: [torch.cat(self.all_of(own))], [own])

    def gather(self, text: str) -> Call:
        own = self.values()
        got = [self.empty() for _ in self.pair.ranks] if self.at_root else []
        work = dist.gather(own, got or None, self.root, **self.on_mpi)

        def oracle() -> list[Tensor]:
            rows = self.all_of(own)
            return rows if self.at_root else []

        return Call(text, work, got, oracle, [own])

    def scatter(self, text: str) -> Call:
        own, got = self.values(self.pair.size), self.empty()
        rows = list(own.view(self.pair.size, self.count)) if self.at_root else None
        work = dist.scatter(got, rows, self.root, **self.on_mpi)

        def oracle() -> list[Tensor]:
            right = own.clone()
            if right.numel():
                dist.broadcast(right, self.root, group=self.pair.gloo)
            return [right.view(self.pair.size, self.count)[self.pair.rank]]

        return Call(text, work, [got], oracle, [own])

    def all_to_all(self, text: str) -> Call:
        """Of parts of different sizes."""
        size, rank = self.pair.size, self.pair.rank

        def length(sender: int, receiver: int) -> int:
            return self.count * (sender + 2 * receiver + 1) % (self.count + 7)

        sent = [length(rank, peer) for peer in range(size)]
        expected = [length(peer, rank) for peer in range(size)]
        rows = -(-sum(sent) // self.count) if self.count else 0
        own = self.values(rows)[: sum(sent)] if rows else self.empty()[:0]
        got = torch.zeros(sum(expected), dtype=self.dtype)
        work = dist.all_to_all_single(got, own, expected, sent, **self.on_mpi)

        def oracle() -> list[Tensor]:
            right = torch.zeros_like(got)
            if self.count:
                dist.all_to_all_single(right, own, expected, sent, group=self.pair.gloo)
            return [right]

        return Call(text, work, [got], oracle, [own])

    def barrier(self, text: str) -> Call:
        return Call(text, dist.barrier(**self.on_mpi), [], list)

    def messages(self, text: str) -> Call:
        """Round the ranks of the group."""
        ranks, rank = self.pair.ranks, self.pair.rank
        dest, source = ranks[(rank + 1) % len(ranks)], ranks[rank - 1]
        own, got = self.values(), self.laid(self.empty())
        if len(ranks) == 1:
            return Call(text, None, [], list)
        receive = dist.irecv(got, source, group=self.pair.mpi, tag=self.tag)
        send = dist.isend(own, dest, group=self.pair.mpi, tag=self.tag)

        def oracle() -> list[Tensor]:
            send.wait()
            return [self.all_of(own)[rank - 1]]

        return Call(text, receive, [got], oracle, [own])


REDUCING = ("all_reduce", "reduce", "reduce_scatter")
MANY = ("reduce_scatter", "all_gather", "all_gather_into_tensor", "scatter", "all_to_all")
KINDS = (
    *("all_reduce", "all_reduce", "all_reduce", "reduce", "reduce_scatter", "broadcast"),
    *("all_gather", "all_gather_into_tensor", "gather", "scatter", "all_to_all"),
    *("barrier", "messages"),
)


def surround(shared: Random, own: Random, *, is_one: bool) -> str:
    """Draw this rank's cores, cache and variables. is_one: it is the one whose variables differ.
    Returns the variables that all ranks must have alike and have not."""
    os.sched_setaffinity(0, own.sample(CORES, own.randint(1, len(CORES))))
    # As on a machine with more cores than this one, or fewer, and with CPUs of several kinds.
    machine = range(shared.choice((1, 2, 8)))
    cores = own.sample(machine, own.randint(1, len(machine)))
    cache_bytes = own.choice((2**20, 2**25, 2**29))
    settings.affinity = lambda: cores
    settings.last_level_cache_bytes = lambda: cache_bytes
    names = ("CHECK", "COUNT", "KERNELS", "ALL_REDUCE", "LINK")
    for name in names:
        os.environ.pop(f"PHALANX_{name}", None)
    if shared.random() < 0.3:  # all alike
        words = ("ring", "tree", "halving", "direct", "naive", "lanes", "library")
        os.environ["PHALANX_ALL_REDUCE"] = shared.choice(words)
    name, value = shared.choice(
        (
            *(("CHECK", "1"), ("COUNT", "1"), ("KERNELS", "arrays"), ("", "")),
            *(("ALL_REDUCE", "auto"), ("LINK", "10Gbit/s,10us")),
        )
    )
    if name and is_one:
        os.environ[f"PHALANX_{name}"] = value
    return name if name in ("ALL_REDUCE", "LINK") else ""


def join(shared: Random, own: Random, rank: int, size: int) -> None:
    """Into the process group; when surroundings that must be alike are not, after being told."""
    differing = surround(shared, own, is_one=shared.randrange(size) == rank)
    is_told = False
    try:
        dist.init_process_group("mpi", timeout=TIMEOUT)
    except UserError as error:
        assert differing, error
        assert f"PHALANX_{differing} differs among the ranks" in str(error), error
        is_told = True
    assert is_told == (bool(differing) and size > 1), f"{differing} went through"
    if is_told:
        os.environ.pop("PHALANX_ALL_REDUCE", None)
        os.environ.pop("PHALANX_LINK", None)
        dist.init_process_group("mpi", timeout=TIMEOUT)


def make_pairs(shared: Random, num_threads: int) -> list[list[Pair]]:
    """Of each thread: the world, and groups that overlap, with and without gaps. Collective."""
    world = list(range(dist.get_world_size()))
    first = shared.randrange(len(world))
    pairs = []
    for _ in range(num_threads):
        members = [world, world[first:], [shared.choice(world)]]
        members += [sorted(shared.sample(world, shared.randint(1, len(world)))) for _ in range(2)]
        pairs.append(
            [Pair(m, dist.new_group(m), dist.new_group(m, backend="gloo")) for m in members]
        )
    return pairs


def train(pair: Pair, seed: int) -> None:
    """A model whose buckets another cache would cut otherwise, on both."""
    gradients = []
    for group in (pair.mpi, pair.gloo):
        torch.manual_seed(seed)
        model = nn.Sequential(*(nn.Linear(192, 192) for _ in range(12)))
        ddp = DistributedDataParallel(model, process_group=group, find_unused_parameters=True)
        for step in range(2):
            torch.manual_seed(100 * step + dist.get_rank())
            ddp(torch.randn(2, 192)).sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for own, right in zip(*gradients, strict=True):
        torch.testing.assert_close(own, right, msg=lambda text: f"DDP: {text}")


def run_round(number: int, num_calls: int, rank: int, size: int) -> Counter[str]:
    shared, own = Random(f"{SEED} {number}"), Random(f"{SEED} {number} rank {rank}")
    join(shared, own, rank, size)
    num_threads = shared.randint(1, 3)
    callers = [
        Caller(
            pairs,
            Random(f"{SEED} {number} {thread}"),
            Random(f"{SEED} {number} {thread} rank {rank}"),
            f"seed {SEED} round {number} thread {thread} rank {rank}",
        )
        for thread, pairs in enumerate(make_pairs(shared, num_threads))
    ]

    def call(thread: int, caller: Caller) -> None:
        try:
            caller.run(len(range(thread, num_calls, num_threads)))
        except BaseException:  # noqa: BLE001 at once: the others would only tell of their timeouts
            print(f"{caller.label}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            os._exit(1)

    threads = [threading.Thread(target=call, args=pair) for pair in enumerate(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if number % 4 == 0:
        train(callers[0].pairs[0], number)
    dist.barrier()
    dist.destroy_process_group()
    return sum((caller.kinds for caller in callers), Counter())


def main() -> None:
    warnings.simplefilter("ignore")  # of ranks that are told to share no memory
    from mpi4py import MPI

    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    kinds: Counter[str] = Counter()
    number, began = 0, time.monotonic()
    while kinds.total() < NUM_CALLS:
        kinds += run_round(number, min(CALLS_A_ROUND, NUM_CALLS - kinds.total()), rank, size)
        number += 1
        if rank == 0 and number % 10 == 0:
            print(f"{kinds.total()} calls, {time.monotonic() - began:.0f} s", flush=True)
    if rank == 0:
        print(
            f"{kinds.total()} calls on {size} ranks, {number} rounds, seed {SEED}: none wrong; "
            f"{time.monotonic() - began:.0f} s; {dict(kinds)}",
            flush=True,
        )
    print(f"\nrank {rank} of {size} is done", flush=True)


main()
