"""Each rank: every collective of torch.distributed against what PyTorch computes in one process.

Imports nothing of Phalanx: `import torch` alone makes the backend known.
"""

import functools
import itertools

import torch
import torch.distributed as dist
from torch import Tensor

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16]
INTS += [torch.uint32, torch.uint64]
MOVED = [torch.float8_e4m3fn, torch.float8_e5m2, torch.bool, torch.complex64, torch.complex128]
SHAPES = [(5,), (3, 4), (), (0,), (2, 0, 3), (1031,)]
Op = dist.ReduceOp
# Up to PyTorch 2.12 by their older names.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
ARITHMETIC = [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX]
BITWISE = [Op.BAND, Op.BOR, Op.BXOR]


def value(rank: int, shape: tuple[int, ...], dtype: torch.dtype, salt: int = 0) -> Tensor:
    """What `rank` has: small whole numbers, so that every dtype adds and multiplies exactly."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(1000 * salt + rank)
    numbers = torch.randint(1, 4, shape, generator=generator)
    if dtype is torch.bool:
        return numbers > 1
    if dtype.is_complex:
        return torch.complex(numbers.double(), numbers.double() + 1).to(dtype)
    return numbers.to(dtype)


def apart(tensor: Tensor) -> Tensor:
    """The same values in a tensor that is not contiguous."""
    wide = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)
    wide[..., 0] = tensor
    return wide[..., 0]


def reduced(op: Op.RedOpType, tensors: list[Tensor]) -> Tensor:
    wide = torch.float64 if tensors[0].is_floating_point() else tensors[0].dtype
    if tensors[0].dtype in (torch.uint16, torch.uint32, torch.uint64):
        wide = torch.int64
    parts = [tensor.to(wide) for tensor in tensors]
    pair = {
        Op.SUM: torch.add,
        Op.AVG: torch.add,
        Op.PRODUCT: torch.mul if wide is not torch.bool else torch.logical_and,
        Op.MIN: torch.minimum,
        Op.MAX: torch.maximum,
        Op.BAND: torch.bitwise_and,
        Op.BOR: torch.bitwise_or,
        Op.BXOR: torch.bitwise_xor,
    }[op]
    total = functools.reduce(pair, parts)
    if op is Op.AVG:
        total = total / len(parts) if total.is_floating_point() else total // len(parts)
    return total.to(tensors[0].dtype)


def same(got: Tensor, expected: Tensor, text: str) -> None:
    kinds = {torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8}
    kind = kinds.get(got.dtype, got.dtype)
    assert got.shape == expected.shape, f"{text}: {got.shape}, not {expected.shape}"
    equal = torch.equal(got.contiguous().view(kind), expected.contiguous().view(kind))
    assert equal, f"{text}: {got}, not {expected}"


class Case:
    """One way of calling: async or not, contiguous or not, in a group."""

    def __init__(self, group: dist.ProcessGroup, is_async: bool, is_apart: bool) -> None:
        self.group, self.is_async, self.is_apart = group, is_async, is_apart
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.keywords = {"group": group, "async_op": is_async}

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size}, async {self.is_async}, apart {self.is_apart}"

    def given(self, tensor: Tensor) -> Tensor:
        return apart(tensor) if self.is_apart else tensor.clone()

    def done(self, work: dist.Work | None) -> None:
        assert (work is None) is not self.is_async
        if work is not None:
            work.wait()
            assert work.is_completed()

    def values(self, shape: tuple[int, ...], dtype: torch.dtype, salt: int = 0) -> list[Tensor]:
        return [value(rank, shape, dtype, salt) for rank in range(self.size)]

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self.given(torch.zeros(shape, dtype=dtype))


def check_reductions(case: Case) -> None:
    pairs = itertools.chain(
        itertools.product(FLOATS, [*ARITHMETIC, Op.AVG]),
        itertools.product(INTS, [*ARITHMETIC, Op.AVG, *BITWISE]),
        itertools.product([torch.bool], [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX, *BITWISE]),
        itertools.product([torch.complex64, torch.complex128], [Op.SUM, Op.AVG]),
    )
    for number, (dtype, op) in enumerate(pairs):
        shape = SHAPES[number % len(SHAPES)]
        inputs = case.values(shape, dtype, number)
        if dtype.is_complex:
            # PyTorch divides complex numbers by another formula: let the last bit agree
            inputs = [case.size * tensor for tensor in inputs]
            expected = sum(inputs[1:], start=inputs[0]) / (case.size if op is Op.AVG else 1)
        else:
            expected = reduced(op, inputs)
        text = f"{op} of {dtype} {shape}, {case}"
        tensor = case.given(inputs[case.rank])
        case.done(dist.all_reduce(tensor, op, **case.keywords))
        same(tensor, expected, f"all_reduce {text}")
        for root in range(case.size):
            tensor = case.given(inputs[case.rank])
            case.done(dist.reduce(tensor, group_dst=root, op=op, **case.keywords))
            right = expected if case.rank == root else inputs[case.rank]
            same(tensor, right, f"reduce to {root} {text}")
        if dtype.is_complex:
            continue
        lists = [case.values(shape, dtype, 77 + rank) for rank in range(case.size)]
        expected = reduced(op, [given[case.rank] for given in lists])
        output = case.empty(shape, dtype)
        parts = [case.given(tensor) for tensor in lists[case.rank]]
        case.done(dist.reduce_scatter(output, parts, op, **case.keywords))
        same(output, expected, f"reduce_scatter {text}")
        output = case.empty(shape, dtype)
        whole = case.given(torch.stack(lists[case.rank]))
        case.done(reduce_scatter_single(output, whole, op, **case.keywords))
        same(output, expected, f"reduce_scatter_single {text}")


def check_premultiplied(case: Case) -> None:
    op = dist._make_nccl_premul_sum(0.5)
    inputs = case.values((7,), torch.float32)
    expected = sum(0.5 * tensor for tensor in inputs)
    tensor = case.given(inputs[case.rank])
    case.done(dist.all_reduce(tensor, op, **case.keywords))
    same(tensor, expected, f"premultiplied, {case}")
    tensor = case.given(inputs[case.rank])
    case.done(dist.reduce(tensor, group_dst=0, op=op, **case.keywords))
    same(tensor, expected if case.rank == 0 else inputs[case.rank], f"premultiplied, {case}")
    output, whole = case.empty((7,), torch.float32), torch.cat([inputs[case.rank]] * case.size)
    case.done(reduce_scatter_single(output, case.given(whole), op, **case.keywords))
    same(output, expected, f"premultiplied, {case}")


def check_moves(case: Case, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    inputs = case.values(shape, dtype)
    text = f"{dtype} {shape}, {case}"
    mine = inputs[case.rank]
    for root in range(case.size):
        tensor = case.given(mine)
        case.done(dist.broadcast(tensor, group_src=root, **case.keywords))
        same(tensor, inputs[root], f"broadcast from {root} {text}")

        is_root = case.rank == root
        outputs = [case.empty(shape, dtype) for _ in inputs] if is_root else None
        case.done(dist.gather(case.given(mine), outputs, group_dst=root, **case.keywords))
        for got, right in zip(outputs or [], inputs, strict=is_root):
            same(got, right, f"gather to {root} {text}")

        output = case.empty(shape, dtype)
        parts = [case.given(tensor) for tensor in inputs] if is_root else None
        case.done(dist.scatter(output, parts, group_src=root, **case.keywords))
        same(output, mine, f"scatter from {root} {text}")

    outputs = [case.empty(shape, dtype) for _ in inputs]
    case.done(dist.all_gather(outputs, case.given(mine), **case.keywords))
    for got, right in zip(outputs, inputs, strict=True):
        same(got, right, f"all_gather {text}")

    whole = case.empty((case.size, *shape), dtype)
    case.done(all_gather_single(whole, case.given(mine), **case.keywords))
    same(whole, torch.stack(inputs), f"all_gather_single {text}")

    lists = [case.values(shape, dtype, 5 + rank) for rank in range(case.size)]
    outputs = [case.empty(shape, dtype) for _ in inputs]
    parts = [case.given(tensor) for tensor in lists[case.rank]]
    case.done(dist.all_to_all(outputs, parts, **case.keywords))
    for got, given in zip(outputs, lists, strict=True):
        same(got, given[case.rank], f"all_to_all {text}")

    whole = case.empty((case.size, *shape), dtype)
    stacked = case.given(torch.stack(lists[case.rank]))
    case.done(dist.all_to_all_single(whole, stacked, **case.keywords))
    same(whole, torch.stack([given[case.rank] for given in lists]), f"all_to_all_single {text}")


def check_uneven(case: Case) -> None:
    """Rank r has r rows for everybody, and everybody gets 2 + r rows from rank r."""
    inputs = [value(rank, (rank, 3), torch.int32) for rank in range(case.size)]
    outputs = [case.empty((rank, 3), torch.int32) for rank in range(case.size)]
    case.done(dist.all_gather(outputs, case.given(inputs[case.rank]), **case.keywords))
    for got, right in zip(outputs, inputs, strict=True):
        same(got, right, f"uneven all_gather, {case}")

    rows = range(case.size)
    whole = [value(rank, (sum(rows), 3), torch.int32) for rank in range(case.size)]
    output = case.empty((case.rank * case.size, 3), torch.int32)
    splits = [case.rank] * case.size
    work = dist.all_to_all_single(
        output, case.given(whole[case.rank]), splits, list(rows), **case.keywords
    )
    case.done(work)
    right = torch.cat([tensor.split(list(rows))[case.rank] for tensor in whole])
    same(output, right, f"uneven all_to_all_single, {case}")

    output = case.empty((case.rank, 3), torch.int32)
    parts = [case.given(value(case.rank + rank, (rank, 3), torch.int32)) for rank in rows]
    case.done(dist.reduce_scatter(output, parts, **case.keywords))
    right = sum(value(rank + case.rank, (case.rank, 3), torch.int32) for rank in rows)
    same(output, right.to(torch.int32), f"uneven reduce_scatter, {case}")


def check_coalesced(case: Case) -> None:
    group = case.group
    tensors = [value(case.rank, (n,), torch.float32, n) for n in (1, 8, 33)]
    expected = [
        sum(value(rank, (n,), torch.float32, n) for rank in range(case.size)) for n in (1, 8, 33)
    ]
    with dist._coalescing_manager(group, async_ops=case.is_async) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    if case.is_async:
        manager.wait()
    for got, right in zip(tensors, expected, strict=True):
        same(got, right, f"coalesced all_reduce, {case}")

    sizes = (2, 5)
    inputs = [value(case.rank, (n,), torch.int64, n) for n in sizes]
    outputs = [torch.zeros(n * case.size, dtype=torch.int64) for n in sizes]
    device = torch.device("cpu")
    with dist._coalescing_manager(group, device, async_ops=case.is_async) as manager:
        for output, tensor in zip(outputs, inputs, strict=True):
            all_gather_single(output, tensor, group=group)
    if case.is_async:
        manager.wait()
    for output, n in zip(outputs, sizes, strict=True):
        right = torch.cat([value(rank, (n,), torch.int64, n) for rank in range(case.size)])
        same(output, right, f"coalesced all_gather, {case}")

    parts = [torch.zeros(n) for n in sizes]
    wholes = [torch.arange(float(n * case.size)) for n in sizes]
    with dist._coalescing_manager(group, async_ops=case.is_async) as manager:
        for part, whole in zip(parts, wholes, strict=True):
            reduce_scatter_single(part, whole, group=group)
    if case.is_async:
        manager.wait()
    for part, whole in zip(parts, wholes, strict=True):
        same(part, case.size * whole.chunk(case.size)[case.rank], f"coalesced, {case}")

    with dist._coalescing_manager(group, device, async_ops=True) as manager:
        send = torch.full((4,), float(case.rank))
        receive = torch.empty(4)
        dist.isend(send, group=group, group_dst=(case.rank + 1) % case.size)
        dist.irecv(receive, group=group, group_src=(case.rank - 1) % case.size)
    manager.wait()
    assert receive[0] == (case.rank - 1) % case.size

    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)  # the state of coalescing must not stick
    assert tensor[0] == case.size

    lists = [[torch.zeros(2), torch.zeros(1)] for _ in range(case.size)]
    mine = [torch.full((2,), float(case.rank)), torch.full((1,), 10.0 + case.rank)]
    options = dist.distributed_c10d.AllgatherOptions()
    group.allgather_coalesced(lists, mine, options).wait()
    for rank, (one, other) in enumerate(lists):
        assert one[0] == rank
        assert other[0] == 10 + rank


def check_messages(case: Case) -> None:
    group, rank, size = case.group, case.rank, case.size
    to, source = (rank + 1) % size, (rank - 1) % size
    for dtype, shape in itertools.product([torch.float32, *MOVED], SHAPES):
        mine, got = case.given(value(rank, shape, dtype)), case.empty(shape, dtype)
        works = [
            dist.irecv(got, group=group, group_src=source, tag=3),
            dist.isend(mine, group=group, group_dst=to, tag=3),
        ]
        for work in works:
            work.wait()
        same(got, value(source, shape, dtype), f"isend, irecv {dtype} {shape}, {case}")
    one, two = torch.zeros(2), torch.zeros(2)
    operations = [
        dist.P2POp(dist.irecv, one, group=group, group_peer=source, tag=1),
        dist.P2POp(dist.irecv, two, group=group, group_peer=source, tag=2),
        dist.P2POp(dist.isend, torch.full((2,), 2.0), group=group, group_peer=to, tag=2),
        dist.P2POp(dist.isend, torch.full((2,), 1.0), group=group, group_peer=to, tag=1),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert one[0] == 1
    assert two[0] == 2, "tags were mixed up"
    if size > 1:
        check_any_source(group, rank, size)


def check_any_source(group: dist.ProcessGroup, rank: int, size: int) -> None:
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            number = torch.zeros(1, dtype=torch.int64)
            source = dist.recv(number, group=group, tag=9)
            assert source == dist.get_global_rank(group, int(number))
            seen.add(int(number))
        assert seen == set(range(1, size))
        work = dist.irecv(number, group=group, group_src=1, tag=10)
        (received,) = work.get_future().wait()
        assert received.item() == 42
    else:
        dist.send(torch.tensor([rank]), group=group, group_dst=0, tag=9)
        if rank == 1:
            dist.isend(torch.tensor([42]), group=group, group_dst=0, tag=10).get_future().wait()


def check_objects(group: dist.ProcessGroup) -> None:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank}, group=group)
    assert objects == [{"rank": r, "text": "x" * r} for r in range(size)]
    gathered = [None] * size if rank == size - 1 else None
    dist.gather_object((rank,), gathered, group=group, group_dst=size - 1)
    assert gathered in (None, [(r,) for r in range(size)])
    shared = [rank, "a" * 100] if rank == 0 else [None, None]
    dist.broadcast_object_list(shared, group=group, group_src=0)
    assert shared == [0, "a" * 100]
    output = [None]
    dist.scatter_object_list(output, list(range(size)) if rank == 0 else None, 0, group=group)
    assert output == [rank]
    if size > 1 and rank < 2:
        if rank == 0:
            dist.send_object_list([1, "two"], group=group, group_dst=1)
        else:
            received = [None, None]
            dist.recv_object_list(received, group=group, group_src=0)
            assert received == [1, "two"]


def check_sparse(case: Case) -> None:
    """Gradients of embeddings: other places, and other numbers of them, on every rank."""
    if torch.get_default_device().type != "cpu":
        return  # refused
    for rows, dtype in ((3, torch.float32), (7, torch.float64)):
        full = [torch.zeros(20, rows, dtype=dtype) for _ in range(case.size)]
        for rank, tensor in enumerate(full):
            tensor[rank : 2 * rank + 1] = rank + 1
        for sparse_dims in (1, 2):
            own = full[case.rank].to_sparse(sparse_dims)
            work = dist.all_reduce(own, group=case.group, async_op=case.is_async)
            if case.is_async:
                work.wait()
            assert own.is_sparse
            assert torch.equal(own.to_dense(), sum(full)), (rows, sparse_dims)
    doubled = torch.sparse_coo_tensor([[1, 1]], [1.0, 2.0], (3,), check_invariants=True)
    dist.all_reduce(doubled, group=case.group)
    assert doubled.to_dense().tolist() == [0, 3 * case.size, 0]


def check_futures(case: Case) -> None:
    tensor = torch.ones(5)
    work = dist.all_reduce(tensor, group=case.group, async_op=True)
    doubled = work.get_future().then(lambda future: 2 * future.value()[0])
    assert doubled.wait()[0] == 2 * case.size
    assert work.result()[0] is tensor

    def again(future: torch.futures.Future) -> Tensor:
        """A collective in the callback of another, on the thread that runs them."""
        dist.all_reduce(future.value()[0], group=case.group)
        return future.value()[0]

    tensor = torch.ones(5)
    work = dist.all_reduce(tensor, group=case.group, async_op=True)
    assert work.get_future().then(again).wait()[0] == case.size**2
    works = [dist.all_reduce(torch.ones(n), group=case.group, async_op=True) for n in range(1, 50)]
    dist.all_reduce(tensor, group=case.group)
    assert all(work.is_completed() for work in works), "a later call has overtaken them"
    dist.barrier(case.group)
    dist.barrier(case.group, async_op=True).wait()
    dist.monitored_barrier(case.group)


def check_functional(group: dist.ProcessGroup) -> None:
    import torch.distributed._functional_collectives as functional

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    mine = torch.full((size, 2), float(rank))
    total = sum(range(size))
    assert torch.equal(functional.all_reduce(mine, "sum", group), torch.full((size, 2), total))
    assert functional.all_reduce(mine, "avg", group)[0, 0] == total / size
    gathered = functional.all_gather_tensor(mine, 0, group)
    assert torch.equal(gathered[::size, 0], torch.arange(float(size)))
    scattered = functional.reduce_scatter_tensor(mine, "sum", 0, group)
    assert torch.equal(scattered, torch.full((1, 2), float(total)))
    assert functional.broadcast(mine, 0, group)[0, 0] == 0
    swapped = functional.all_to_all_single(mine, None, None, group)
    assert torch.equal(swapped[:, 0], torch.arange(float(size)))

    def waited(tensors: list[Tensor]) -> list[Tensor]:
        return [functional.wait_tensor(tensor) for tensor in tensors]

    both = waited(functional.all_reduce_coalesced([mine, mine + 1], "sum", group))
    assert both[1][0, 0] == total + size
    gather = "all_gather_single_coalesced"
    if not hasattr(functional, gather):
        gather = "all_gather_into_tensor_coalesced"
    both = waited(getattr(functional, gather)([mine, mine], group))
    assert both[1].shape == (size * size, 2)
    scatter = "reduce_scatter_single_coalesced"
    if not hasattr(functional, scatter):
        scatter = "reduce_scatter_tensor_coalesced"
    both = getattr(functional, scatter)([mine, mine], "sum", [0, 0], group)
    assert waited(both)[1][0, 0] == total
    flat = torch.full((4,), float(rank))
    permuted = functional.permute_tensor(flat, [(r + 1) % size for r in range(size)], group)
    assert permuted[0] == (rank - 1) % size


def main() -> None:
    dist.init_process_group("mpi")
    group = dist.group.WORLD
    assert dist.get_backend() == "mpi"
    for is_async, is_apart in itertools.product((False, True), repeat=2):
        case = Case(group, is_async, is_apart)
        check_reductions(case)
        check_premultiplied(case)
        check_sparse(case)
        for dtype, shape in itertools.product([torch.float32, *MOVED], SHAPES):
            check_moves(case, dtype, shape)
        for dtype in [*FLOATS, *INTS]:
            check_moves(case, dtype, (6,))
        check_uneven(case)
        check_coalesced(case)
        check_messages(case)
    check_futures(case)
    check_objects(group)
    check_functional(group)
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    print(f"rank {rank} of {size} is done", flush=True)


main()
