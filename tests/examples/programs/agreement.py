"""Each rank: train for six steps by every scheme, in groups of several sizes one after the
other, and compare with one process: parameters, losses, hits, and bytes with the formulas.

Words: sizes of the groups.
"""

import itertools
import sys
from argparse import Namespace
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np

sys.path.append(str(Path(__file__).parents[3] / "examples" / "scratch"))
from costs import expected_costs
from schemes import ring_all_reduce

from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group
from phalanx.comm.traffic import Traffic, TrafficCounter
from phalanx.comm.world import World
from train import NUM_PIXELS, Samples, Training, batches, check, make_scheme, parse

BATCH = 21
SAMPLES = 5 * BATCH + 3  # the last batch has fewer samples than eight ranks
LAYERS = ("", "9", "11 9", "10 13 9")
BASE = f"--dtype float64 --batch-size {BATCH} --lr 0.05"
NO_RECORDS = SimpleNamespace(step=lambda *_: None)


def cases(ranks: int) -> Iterator[str]:
    for scheme, activation in itertools.product(("library", "ring"), ("relu", "sigmoid")):
        yield f"--scheme {scheme} --hidden 9 --activation {activation}"
    for servers in range(1, min(ranks, 4)):
        yield f"--scheme server --hidden 9 --servers {servers}"
    for hidden, activation in itertools.product(LAYERS, ("relu", "sigmoid")):
        yield f"--scheme tensor --hidden {hidden} --activation {activation}"


def samples() -> Samples:
    rows = np.random.default_rng(5).integers(256, size=(SAMPLES, NUM_PIXELS + 1), dtype=np.uint8)
    rows[:, -1] %= 10
    return Samples(rows, "float64")


def run(options: Namespace, group: Group | None) -> tuple[np.ndarray, np.ndarray, Traffic]:
    """All parameters, this rank's sums of losses, hits and samples, and the bytes it has moved."""
    training = Training(make_scheme(options, group), samples(), samples(), options)
    moved = TrafficCounter()
    if group is not None:
        group.traffic = moved
    trained = training.run_epoch(0, NO_RECORDS)  # type: ignore[arg-type]
    before = Traffic(moved.sent_bytes, moved.received_bytes, moved.messages)
    found = training.evaluate()
    assert training.scheme.waited_s >= 0
    counted = [(each.samples, each.loss_sum, each.correct) for each in (trained, found)]
    return training.scheme.full_parameters(), np.array(counted), before


@cache
def truth_of(hidden: tuple[int, ...], activation: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the parameters and sums of one process, which are those of every scheme."""
    words = ("--scheme", "alone", "--activation", activation, "--hidden", *map(str, hidden))
    return run(parse([*BASE.split(), *words]), None)[:2]


def compare(words: str, group: Group) -> None:
    options = parse([*BASE.split(), *words.split()])
    check(options, group.size)
    truth, counts = truth_of(tuple(options.hidden), options.activation)
    found, mine, moved = run(options, group)
    name = f"{words} on {group.rank} of {group.size}"
    assert np.abs(found - truth).max() < 1e-9, name
    assert np.abs(truth).max() > 1e-2
    rows = np.zeros((group.size, mine.size))
    rows[group.rank] = mine.ravel()
    group.all_reduce(Buffer.of(rows))
    np.testing.assert_allclose(rows.sum(0), counts.ravel(), rtol=1e-9, err_msg=name)
    steps = [
        expected_costs(options, group.rank, group.size, batch.stop - batch.start)
        for batch in batches(SAMPLES, BATCH)
    ]
    formula = sum(s.sent_bytes or 0 for s in steps), sum(s.received_bytes or 0 for s in steps)
    assert (moved.sent_bytes, moved.received_bytes) == formula, name


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
            for words in cases(size):
                compare(words, group)
            group.close()
        world.barrier()
    assert "torch" not in sys.modules
    if world.rank == 0:
        print("all schemes agree")
    world.close()


main([int(word) for word in sys.argv[1:]])
