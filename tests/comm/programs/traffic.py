"""Each rank: what is counted in a group, held against the formulas, exactly."""

import os
from typing import get_args

import numpy as np
import torch
from pretended import group_on

from phalanx.comm import traffic as formulas
from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import AlgorithmOption, Collective
from phalanx.comm.collectives.expected_traffic import P2PAlgorithm, expected_traffic
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.group import Group
from phalanx.comm.layout import share_of
from phalanx.comm.traffic import Count, Traffic, TrafficCounter
from phalanx.comm.world import World
from phalanx.gradients.bucketed_reducer import Method
from phalanx.gradients.fused import FusedOptimizerStep
from phalanx.gradients.make_reducer import AllReduce
from phalanx.gradients.optimizer_update import OptimizerConfig

COUNTS = [0, 1, 3, 1000, 700_001]
ITEMSIZE = 4
LAYOUT = [7, 0, 1000, 3, 33]  # elements of the parts of a vector


def zeros(count: int) -> Buffer:
    return Buffer.of(np.zeros(count, np.float32))


def check(group: Group, collective: Collective, num_bytes: int, moved: Traffic) -> None:
    """num_bytes: that this rank hands in."""
    assert group.traffic is not None
    before = group.traffic.snapshot()
    group.run(collective)
    counted = group.traffic - before
    formula_bytes = moved.sent_bytes if collective.algorithm == "library" else 0
    payload = {collective.kind: Count(1, num_bytes)}
    expected = TrafficCounter(*placed(group, moved), payload, formula_bytes)
    assert counted == expected, f"{collective.kind} in {group.name}: {counted}, not {expected}"


def all_reduce(count: int, algorithm: AlgorithmOption = "auto") -> Collective:
    both = [zeros(count)]
    return Collective("all_reduce", both, both, ReduceOp.SUM, algorithm=algorithm)


def placed(group: Group, moved: Traffic) -> Traffic:
    """Of ranks that all are on nodes of their own, everything goes to other nodes."""
    if group.size == 1 or len(set(group.nodes)) < group.size:
        return moved
    sent_bytes, received_bytes, *_ = moved
    return moved._replace(network_sent_bytes=sent_bytes, network_received_bytes=received_bytes)


def check_all_reduce(group: Group, algorithm: AlgorithmOption, count: int) -> None:
    rank, size = group.rank, group.size
    if algorithm in get_args(P2PAlgorithm):
        nodes = group.topology.nodes
        moved = expected_traffic(algorithm, count, ITEMSIZE, rank, size, nodes=nodes)
    else:
        moved = formulas.all_reduce_traffic(count, ITEMSIZE, rank, size)
    check(group, all_reduce(count, algorithm), ITEMSIZE * count, moved)


def check_movement(group: Group, base: int) -> None:
    """What is the same scheme in shared memory and on messages."""
    rank, size = group.rank, group.size
    counts = [base + 3 * (peer % 2) for peer in range(size)]
    given = [zeros(count) for count in counts]
    taken = [zeros(count) for count in counts]
    num_bytes = [ITEMSIZE * count for count in counts]
    own, everything = zeros(counts[rank]), sum(num_bytes)
    moved = formulas.all_gather_traffic(num_bytes, rank)
    check(group, Collective("all_gather", [own], taken), num_bytes[rank], moved)
    moved = formulas.reduce_scatter_traffic(num_bytes, rank)
    check(group, Collective("reduce_scatter", given, [own], ReduceOp.SUM), everything, moved)
    mine = [zeros(counts[rank]) for _ in range(size)]
    moved = formulas.all_to_all_traffic(num_bytes, [num_bytes[rank]] * size, rank)
    check(group, Collective("all_to_all", given, mine), everything, moved)
    for root in range(size):
        at_root = rank == root
        gather = Collective("gather", [own], taken if at_root else [], root=root)
        check(group, gather, num_bytes[rank], formulas.gather_traffic(num_bytes, rank, root))
        scatter = Collective("scatter", given if at_root else [], [own], root=root)
        moved = formulas.scatter_traffic(num_bytes, rank, root)
        check(group, scatter, everything if at_root else 0, moved)


def check_memory(group: Group) -> None:
    """What shared memory does in its own way."""
    rank, size = group.rank, group.size
    for count in COUNTS:
        check_all_reduce(group, "auto", count)
        both, num_bytes = [zeros(count)], ITEMSIZE * count
        for root in range(size):
            moved = formulas.all_reduce_traffic(count, ITEMSIZE, rank, size, root=root)
            check(
                group, Collective("reduce", both, both, ReduceOp.SUM, 1.0, root), num_bytes, moved
            )
            moved = formulas.broadcast_traffic(num_bytes, rank, size, root)
            check(group, Collective("broadcast", both, both, root=root), num_bytes, moved)


def check_messages(group: Group) -> None:
    for count in COUNTS:
        for algorithm in (*get_args(P2PAlgorithm), "library"):
            check_all_reduce(group, algorithm, count)


def check_sends(group: Group) -> None:
    """Requests that are asked several times whether they are done are counted once."""
    assert group.traffic is not None
    rank, size = group.rank, group.size
    before = group.traffic.snapshot()
    sent = group.send(zeros(10 + rank), dest=(rank + 1) % size)
    received = group.receive(zeros(10 + (rank - 1) % size), source=(rank - 1) % size)
    for request in (received, sent, received, sent):
        request.wait()
        assert request.test()
    num_sent, num_received = 4 * (10 + rank), 4 * (10 + (rank - 1) % size)
    assert group.traffic - before == TrafficCounter(
        *placed(group, Traffic(num_sent, num_received, 1)),
        {"send": Count(1, num_sent), "receive": Count(1, num_received)},
    )


def check_vectors(world: World) -> None:
    """Reducers and fused steps: the shares of all ranks make up the whole, in both directions."""
    parts = [np.ones(size, np.float32) for size in LAYOUT]
    num_bytes = ITEMSIZE * sum(LAYOUT)
    parameters = [torch.from_numpy(part) for part in parts]
    methods = [] if world.size == 1 else get_args(Method)  # one rank reduces nothing
    for method in methods:
        reducer = AllReduce(method=method, overlap="off").make(parameters, world)
        before = world.traffic.snapshot()
        reducer.flush()
        counted = world.traffic - before
        moved = reducer.expected_traffic()
        formula_bytes = moved.sent_bytes if reducer.name == "library" else 0
        payload = {"all_reduce": Count(1, num_bytes)}
        assert counted == TrafficCounter(*moved, payload, formula_bytes), method
        if reducer.name != "halving":  # where ranks are no power of two some send more
            check_sum(world, moved.sent_bytes, moved.received_bytes, num_bytes)
        world.barrier()
        reducer.close()
    rule = OptimizerConfig(name="sgd", learning_rate=0.1)
    fused = FusedOptimizerStep.join(world, rule, LAYOUT, "float32")
    assert fused is not None
    before = world.traffic.snapshot()
    fused.step_at([part.ctypes.data for part in parts], 0.1, 1)
    counted = world.traffic - before
    moved = fused.expected_traffic()
    assert moved is not None
    assert counted == TrafficCounter(*moved, {"fused_step": Count(1, num_bytes)})
    check_sum(world, moved.sent_bytes, moved.received_bytes, num_bytes)
    world.barrier()
    fused.close()


def check_sum(world: World, sent_bytes: int, received_bytes: int, num_bytes: int) -> None:
    """All ranks together send each byte p - 1 times to its owner, and p - 1 times back."""
    rows = world.gather(np.array([sent_bytes, received_bytes], float))
    if rows is not None:
        assert (rows.sum(axis=0) == 2 * (world.size - 1) * num_bytes).all(), rows


def check_inheritance(world: World) -> None:
    """Groups made from one that counts count in the same place; those that exist do not."""
    half = [rank for rank in range(world.size) if rank % 2 == world.rank % 2]
    before = world.group.subgroup(half, name="before", tag=world.rank % 2)
    world.group.traffic = counted = TrafficCounter()
    after = world.group.subgroup(half, name="after", tag=world.rank % 2)
    assert before.traffic is None
    assert after.traffic is counted is world.traffic
    after.all_reduce(zeros(6))
    before.all_reduce(zeros(6))
    assert counted.payload == {"all_reduce": Count(1, 24)}
    world.group.barrier()
    assert counted.payload == {"all_reduce": Count(1, 24)}, "barriers are not counted"
    for group in (before, after):
        group.close()


def check_two_nodes(world: World) -> None:
    """2 nodes of 2 ranks: what stays on the node, and what goes to the other."""
    nodes = [rank // 2 for rank in range(world.size)]
    group, rank = group_on(nodes, traffic=TrafficCounter()), world.rank
    assert group.traffic is not None
    for count in (1, 1001):
        moved = formulas.all_reduce_traffic(count, ITEMSIZE, rank, 4, nodes)
        for algorithm in ("direct", "library"):
            check(group, all_reduce(count, algorithm), ITEMSIZE * count, moved)
    parts = [ITEMSIZE * (10 + peer) for peer in range(4)]
    given, taken = ([zeros(10 + peer) for peer in range(4)] for _ in range(2))
    for root in range(4):
        scatter = Collective("scatter", given if rank == root else [], [taken[rank]], root=root)
        moved = formulas.scatter_traffic(parts, rank, root, nodes)
        check(group, scatter, sum(parts) if rank == root else 0, moved)
    check_received_from_any(group)
    check_lanes(group)
    assert group.traffic.node_s > 0
    assert group.traffic.network_s > 0
    group.close()


def check_received_from_any(group: Group) -> None:
    """A message from any source is placed once it is known who sent it."""
    assert group.traffic is not None
    before = group.traffic.snapshot()
    if group.rank:
        group.send(zeros(group.rank), dest=0).wait()
    else:
        for request in [group.receive(zeros(1), source=1)]:
            request.wait()
        for _ in range(2):
            request = group.receive(zeros(5), source=None, tag=1)
            request.wait()
    if group.rank > 1:
        group.send(zeros(5), dest=0, tag=1).wait()
    elif group.rank == 0:
        for source in (2, 3):
            group.receive(zeros(source), source=source).wait()
    counted = group.traffic - before
    far = ITEMSIZE * (5 + group.rank) if group.rank > 1 else 0
    found = (counted.network_sent_bytes, counted.network_received_bytes)
    assert found == ((0, ITEMSIZE * (2 * 5 + 2 + 3)) if group.rank == 0 else (far, 0)), counted
    group.barrier()


def check_lanes(group: Group) -> None:
    """Ranks of a node hand each other slices in memory, which counts as well; of n bytes a node
    sends n in an all-reduce, half of it by each rank, and its own half in an all-gather."""
    rank = group.rank
    for count in (1, 1001, 700_001):
        moved = expected_traffic("lanes", count, ITEMSIZE, rank, 4, nodes=group.nodes)
        assert moved.network_sent_bytes == ITEMSIZE * len(share_of(rank % 2, 2, count))
        check(group, all_reduce(count, "lanes"), ITEMSIZE * count, moved)
    count = 1001
    own, num_bytes = zeros(count), ITEMSIZE * count
    outputs = [zeros(count) for _ in range(4)]
    moved = Traffic(3 * num_bytes, 3 * num_bytes, 3, num_bytes, num_bytes)
    check(group, Collective("all_gather", [own], outputs), num_bytes, moved)
    scatter = Collective("reduce_scatter", outputs, [own], ReduceOp.SUM)
    check(group, scatter, 4 * num_bytes, moved)


def main() -> None:
    world = World.create(timeout_s=30)
    assert world.traffic is None
    assert world.group._fast is not None
    check_inheritance(world)
    for base in (0, 1, 1000):
        check_movement(world.group, base)
    check_memory(world.group)
    check_messages(world.group)
    check_vectors(world)
    network = group_on(range(world.size), traffic=TrafficCounter())
    for base in (0, 1, 1000):
        check_movement(network, base)
    check_messages(network)
    check_sends(network)
    network.close()
    if world.size == 4:
        check_two_nodes(world)
    world.group.traffic = None
    assert world.group._fast is not None, "as fast as before"
    world.close()
    os.environ["PHALANX_COUNT"] = "1"
    world = World.create(timeout_s=30)
    assert world.traffic == TrafficCounter()
    world.close()
    print(f"\nrank {world.rank} of {world.size} is done", flush=True)


main()
