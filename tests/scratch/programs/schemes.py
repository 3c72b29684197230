"""Each rank: train for twenty steps by every scheme, in groups of several sizes one after the
other, and compare with one process: parameters, losses, hits, and bytes with the formulas.

Words: sizes of the groups.
"""

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group
from phalanx.comm.traffic import Traffic
from phalanx.comm.world import World
from phalanx.records.files import EventWriter
from phalanx.scratch.batches import batches
from phalanx.scratch.build import build_scheme
from phalanx.scratch.config import NUM_PIXELS, ScratchConfig, complete
from phalanx.scratch.expected import expected_of
from phalanx.scratch.images import Samples
from phalanx.scratch.loop import LoopContext, evaluate, train_epoch
from phalanx.scratch.schemes.ring import ring_all_reduce
from phalanx.scratch.world import OneProcess

BATCH = 21
SAMPLES = 19 * BATCH + 3  # the last batch has fewer samples than eight ranks
LAYERS: tuple[tuple[int, ...], ...] = ((), (9,), (11, 9), (10, 13, 9))
BASE = ScratchConfig(
    scheme="alone", dataset="digits", dtype="float64", batch_size=BATCH, lr=0.05, hidden=(9,)
)


def configs(ranks: int) -> list[ScratchConfig]:
    made = [
        replace(BASE, scheme=scheme, ranks=ranks, activation=activation)
        for scheme, activation in itertools.product(("library", "ring"), ("relu", "sigmoid"))
    ]
    for servers in range(1, min(ranks, 4)):
        made.append(replace(BASE, scheme="server", ranks=ranks, servers=servers))
    for hidden, activation in itertools.product(LAYERS, ("relu", "sigmoid")):
        made.append(
            replace(BASE, scheme="tensor", ranks=ranks, hidden=hidden, activation=activation)
        )
    return [complete(config) for config in made]


def samples() -> Samples:
    rows = np.random.default_rng(5).integers(256, size=(SAMPLES, NUM_PIXELS + 1), dtype=np.uint8)
    rows[:, -1] %= 10
    return Samples(rows, "float64")


def run(config: ScratchConfig, group: Group | None) -> tuple[np.ndarray, np.ndarray, Traffic]:
    """All parameters, this rank's sums of losses, hits and samples, and the bytes it has moved."""
    context = LoopContext(
        scheme=build_scheme(config, group),
        world=OneProcess(),
        train=samples(),
        validation=samples(),
        batch_size=config.batch_size,
        seed=config.seed,
        writer=EventWriter(Path("/dev/null")),
        began_at=0.0,
    )
    if group is not None:
        group.traffic = context.traffic
    trained = train_epoch(context, 0)
    moved = context.traffic.snapshot()
    evaluation = evaluate(context, 0)
    assert context.scheme.waited_s >= 0
    counted = [
        *(trained.samples, trained.loss_sum, trained.correct),
        *(evaluation.samples, evaluation.loss_sum, evaluation.correct),
    ]
    bytes_moved = Traffic(moved.sent_bytes, moved.received_bytes, moved.messages)
    return context.scheme.full_parameters(), np.array(counted), bytes_moved


def formula(config: ScratchConfig, rank: int) -> tuple[float, float]:
    """Bytes sent and received in all steps."""
    steps = [expected_of(config, rank, batch_size=len(batch)) for batch in batches(SAMPLES, BATCH)]
    return sum(s.sent_bytes or 0 for s in steps), sum(s.received_bytes or 0 for s in steps)


def compare(config: ScratchConfig, group: Group) -> None:
    alone = replace(config, scheme="alone", ranks=1, servers=None)
    truth, counts, _ = run(alone, None)
    found, mine, moved = run(config, group)
    name = f"{config.scheme} {config.servers} {config.hidden} on {group.rank} of {group.size}"
    assert np.abs(found - truth).max() < 1e-9, name
    assert np.abs(truth).max() > 1e-2
    rows = np.zeros((group.size, mine.size))
    rows[group.rank] = mine
    group.all_reduce(Buffer.of(rows))
    np.testing.assert_allclose(rows.sum(0), counts, rtol=1e-9, err_msg=name)
    assert (moved.sent_bytes, moved.received_bytes) == formula(config, group.rank), name


def add_up_short_vectors(group: Group) -> None:
    """Of fewer elements than ranks, and of none: some chunks are empty."""
    for length in (0, 1, 2, 5, 9):
        vector = np.arange(length, dtype=np.float64) + group.rank
        ring_all_reduce(vector, group)
        total = group.size * np.arange(length) + sum(range(group.size))
        np.testing.assert_array_equal(vector, total)


def main(sizes: list[int]) -> None:
    world = World.create(timeout_s=60)
    for size in sizes:
        members = list(range(size))
        if world.rank in members:
            group = world.group.subgroup(members, name=f"of {size}", tag=size)
            add_up_short_vectors(group)
            for config in configs(size):
                compare(config, group)
            group.close()
        world.barrier()
    assert "torch" not in sys.modules
    if world.rank == 0:
        print("all schemes agree")
    world.close()


main([int(word) for word in sys.argv[1:]])
