"""Each rank: what is counted in a group, held against the formulas, exactly."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import get_args

import numpy as np
import torch
from mpi4py import MPI

from phalanx.comm import traffic as formulas
from phalanx.comm.buffer import Buffer
from phalanx.comm.collectives.expected_traffic import P2PAlgorithm, expected_traffic
from phalanx.comm.connections import Connections
from phalanx.comm.group import Group
from phalanx.comm.layout import share_of
from phalanx.comm.rank_labels import RankLabels
from phalanx.comm.traffic import Count, Traffic, TrafficCounter, sum_traffic
from phalanx.comm.world import World
from phalanx.gradients.bucketed_reducer import Method
from phalanx.gradients.fused import FusedOptimizerStep
from phalanx.gradients.make_reducer import make_reducer
from phalanx.gradients.optimizer_update import OptimizerConfig

COUNTS = [0, 1, 3, 1000, 700_001]
ITEMSIZE = 4
LAYOUT = [7, 0, 1000, 3, 33]  # elements of the parts of a vector


def zeros(count: int) -> Buffer:
    return Buffer.of(np.zeros(count, np.float32))


def check(
    group: Group,
    name: str,
    num_bytes: int,
    call: Callable[[], object],
    moved: Traffic,
    *,
    is_formula: bool = False,
) -> None:
    assert group.traffic is not None
    before = group.traffic.snapshot()
    call()
    counted = group.traffic - before
    formula_bytes = moved.sent_bytes if is_formula else 0
    expected = TrafficCounter(*placed(group, moved), {name: Count(1, num_bytes)}, formula_bytes)
    assert counted == expected, f"{name} in {group.name}: {counted}, not {expected}"


def placed(group: Group, moved: Traffic) -> Traffic:
    """Of ranks that all are on nodes of their own, everything goes to other nodes."""
    if group.size == 1 or len(set(group.nodes)) < group.size:
        return moved
    sent_bytes, received_bytes, *_ = moved
    return moved._replace(network_sent_bytes=sent_bytes, network_received_bytes=received_bytes)


def check_all_reduce(group: Group, algorithm: str | None, count: int) -> None:
    rank, size = group.rank, group.size
    if algorithm in get_args(P2PAlgorithm):
        nodes = group.topology.num_nodes
        moved = expected_traffic(algorithm, count, ITEMSIZE, rank, size, num_nodes=nodes)
    else:
        moved = formulas.all_reduce_traffic(count, ITEMSIZE, rank, size)
    buffer = zeros(count)
    check(
        group,
        "all_reduce",
        ITEMSIZE * count,
        lambda: group.all_reduce(buffer, algorithm=algorithm),
        moved,
        is_formula=algorithm == "library",
    )


def check_movement(group: Group, base: int) -> None:
    """What is the same scheme in shared memory and on messages."""
    rank, size = group.rank, group.size
    counts = [base + 3 * (peer % 2) for peer in range(size)]
    given = [zeros(count) for count in counts]
    taken = [zeros(count) for count in counts]
    num_bytes = [ITEMSIZE * count for count in counts]
    own = zeros(counts[rank])
    check(
        group,
        "all_gather",
        num_bytes[rank],
        lambda: group.all_gather(taken, own),
        formulas.all_gather_traffic(num_bytes, rank),
    )
    check(
        group,
        "reduce_scatter",
        sum(num_bytes),
        lambda: group.reduce_scatter(own, given),
        formulas.reduce_scatter_traffic(num_bytes, rank),
    )
    mine = [zeros(counts[rank]) for _ in range(size)]
    check(
        group,
        "all_to_all",
        sum(num_bytes),
        lambda: group.all_to_all(mine, given),
        formulas.all_to_all_traffic(num_bytes, [num_bytes[rank]] * size, rank),
    )
    for root in range(size):
        at_root = rank == root
        check(
            group,
            "gather",
            num_bytes[rank],
            lambda at_root=at_root, root=root: group.gather(
                taken if at_root else None, own, root=root
            ),
            formulas.gather_traffic(num_bytes, rank, root),
        )
        check(
            group,
            "scatter",
            sum(num_bytes) if at_root else 0,
            lambda at_root=at_root, root=root: group.scatter(
                own, given if at_root else None, root=root
            ),
            formulas.scatter_traffic(num_bytes, rank, root),
        )


def check_memory(group: Group) -> None:
    """What shared memory does in its own way."""
    for count in COUNTS:
        check_all_reduce(group, None, count)
        buffer = zeros(count)
        for root in range(group.size):
            check(
                group,
                "reduce",
                ITEMSIZE * count,
                lambda root=root, buffer=buffer: group.reduce(buffer, root=root),
                formulas.reduce_traffic(count, ITEMSIZE, group.rank, group.size, root),
            )
            check(
                group,
                "broadcast",
                ITEMSIZE * count,
                lambda root=root, buffer=buffer: group.broadcast(buffer, root=root),
                formulas.broadcast_traffic(ITEMSIZE * count, group.rank, group.size, root),
            )


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
        reducer = make_reducer(world, parameters, method=method)
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


def on_network(world: World, nodes: list[int]) -> Group:
    """All ranks, as if they were on other machines."""
    connections = Connections(
        MPI.COMM_WORLD,
        name="network",
        labels=RankLabels(members=tuple(range(world.size))),
        nodes=tuple(nodes),
        policy=world.policy,
        timeout_s=30,
    )
    return Group(connections, traffic=TrafficCounter())


def check_two_nodes(world: World) -> None:
    """2 nodes of 2 ranks: what stays on the node, and what goes to the other."""
    nodes = [rank // 2 for rank in range(world.size)]
    group, rank = on_network(world, nodes), world.rank
    assert group.traffic is not None
    for count in (1, 1001):
        moved = formulas.all_reduce_traffic(count, ITEMSIZE, rank, 4, nodes)
        buffer, num_bytes = zeros(count), ITEMSIZE * count
        for algorithm in ("direct", "library"):
            check(
                group,
                "all_reduce",
                num_bytes,
                lambda algorithm=algorithm, buffer=buffer: group.all_reduce(
                    buffer, algorithm=algorithm
                ),
                moved,
                is_formula=algorithm == "library",
            )
    parts = [ITEMSIZE * (10 + peer) for peer in range(4)]
    given, taken = ([zeros(10 + peer) for peer in range(4)] for _ in range(2))
    for root in range(4):
        check(
            group,
            "scatter",
            sum(parts) if rank == root else 0,
            lambda root=root: group.scatter(
                taken[rank], given if rank == root else None, root=root
            ),
            formulas.scatter_traffic(parts, rank, root, nodes),
        )
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
    count, rank = 1001, group.rank
    slices = [ITEMSIZE * len(share_of(lane, 2, count)) for lane in range(2)]
    lane = rank % 2
    on_node = sum_traffic(
        [formulas.reduce_scatter_traffic(slices, lane), formulas.all_gather_traffic(slices, lane)]
    )
    across = formulas.all_gather_traffic([slices[lane]] * 2, rank // 2, [0, 1])
    assert across.network_sent_bytes == across.sent_bytes
    buffer = zeros(count)
    check(
        group,
        "all_reduce",
        ITEMSIZE * count,
        lambda: group.all_reduce(buffer, algorithm="lanes"),
        sum_traffic([on_node, across]),
    )
    own, num_bytes = zeros(count), ITEMSIZE * count
    outputs = [zeros(count) for _ in range(4)]
    check(
        group,
        "all_gather",
        num_bytes,
        lambda: group.all_gather(outputs, own),
        Traffic(3 * num_bytes, 3 * num_bytes, 3, num_bytes, num_bytes),
    )
    check(
        group,
        "reduce_scatter",
        4 * num_bytes,
        lambda: group.reduce_scatter(own, outputs),
        Traffic(3 * num_bytes, 3 * num_bytes, 3, num_bytes, num_bytes),
    )


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
    network = on_network(world, list(range(world.size)))
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


try:
    main()
except BaseException:  # noqa: BLE001
    traceback.print_exc()
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(1)  # the others would wait for this rank
