"""Train a network in NumPy by a scheme that is written out, too: README.md is the guide.

    python examples/scratch/train.py --scheme alone
    phalanx launch -n 4 examples/scratch/train.py                       # a ring
    phalanx launch -n 4 examples/scratch/train.py --scheme server --servers 2
    phalanx launch -n 3 examples/scratch/train.py --scheme tensor --hidden 256 128

The number of ranks decides which rank computes what, never which samples make up an update: with
every scheme, the parameters are those of one process.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from network import ACTIVATIONS, Array, Momentum, Network, Result, full_layers, generator
from schemes import Alone, Library, Ring, Server, Worker
from tensor import Tensor, parts_of

import phalanx
from phalanx.data.datasets.arrays import read_arrays
from phalanx.data.datasets.catalog import resolve
from records import EpochSums, RunRecords

SCHEMES = ("alone", "library", "ring", "server", "tensor")
DATASETS = ("auto", "digits", "mnist", "fashion")
NUM_PIXELS, NUM_CLASSES = 28 * 28, 10
EVALUATION_BATCH_SIZE = 1000


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line. Raises: SystemExit with code 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, default, text, more in (
        ("scheme", "ring", "scheme to spread a step over the ranks", {"choices": SCHEMES}),
        ("servers", None, "parameter servers among the ranks; None: 1", {"type": int}),
        ("hidden", [128], "width of each hidden layer", {"type": int, "nargs": "*"}),
        ("activation", "relu", "function after a hidden layer", {"choices": list(ACTIVATIONS)}),
        ("epochs", 5, "passes over the training data", {}),
        ("batch-size", 128, "global batch size: samples per update, over all ranks", {}),
        ("lr", 0.05, "learning rate", {}),
        ("momentum", 0.9, "momentum of gradient descent, from 0 to below 1", {}),
        ("seed", 0, "seed of the initial weights and of the order of samples", {}),
        ("dtype", "float32", "precision", {"choices": ("float32", "float64")}),
        ("dataset", "auto", "auto: mnist if it is found, else digits", {"choices": DATASETS}),
        ("train-samples", None, "first samples to train on; None: all", {"type": int}),
        ("validation-samples", None, "first samples to evaluate; None: all", {"type": int}),
        ("timeout-s", 300.0, "seconds until a wait for a rank fails, and names it", {}),
    ):
        kind = {} if default is None else {"type": type(default)}
        parser.add_argument(f"--{name}", default=default, help=text, **{**kind, **more})
    options = parser.parse_args(words)
    options.sizes = (NUM_PIXELS, *options.hidden, NUM_CLASSES)
    options.num_servers = (options.servers or 1) if options.scheme == "server" else 0
    return options


def check(options: argparse.Namespace, ranks: int) -> None:
    """Raise UserError if options do not fit each other or the number of ranks."""
    for name in ("epochs", "batch_size", "servers", "train_samples", "validation_samples"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise _error(name, "must be at least 1", value)
    for name in ("lr", "timeout_s"):
        if not 0 < getattr(options, name) < float("inf"):
            raise _error(name, "must be positive", getattr(options, name))
    if not 0 <= options.momentum < 1:
        raise _error("momentum", "must be from 0 to below 1", options.momentum)
    if options.seed < 0:
        raise _error("seed", "must not be negative", options.seed)
    if any(width < 1 for width in options.hidden):
        listed = " ".join(map(str, options.hidden))
        raise _error("hidden", "must be widths of at least 1", listed)
    if options.servers is not None and options.scheme != "server":
        raise phalanx.UserError(f"--servers is for --scheme server, not {options.scheme}")
    if options.scheme == "alone" and ranks != 1:
        raise phalanx.UserError(f"--scheme alone is one process, not {ranks} ranks")
    workers = ranks - options.num_servers
    if workers < 1:
        raise phalanx.UserError(
            f"--servers {options.num_servers} of {ranks} ranks leaves no worker: "
            f"start {options.num_servers + 1} ranks or more"
        )
    if options.scheme == "tensor":
        parts_of(options.sizes, 0, ranks)
    elif options.batch_size < workers:
        raise phalanx.UserError(
            f"a global batch of {options.batch_size} cannot be split over {workers} workers: "
            f"use --batch-size {workers} or more"
        )


def _error(name: str, rule: str, value: object) -> phalanx.UserError:
    return phalanx.UserError(f"--{name.replace('_', '-')} {rule}, not {value}")


def make_scheme(options: argparse.Namespace, group: Any) -> Any:
    """Return this rank's network, optimizer and communication. group: all ranks."""
    how = {"seed": options.seed, "dtype": options.dtype}
    rates = {"lr": options.lr, "momentum": options.momentum}
    if options.scheme == "tensor":
        return Tensor(options.sizes, options.activation, group, **how, **rates)
    network = Network(full_layers(options.sizes), options.activation, **how)
    if options.scheme == "server":
        if group.rank < options.num_servers:
            return Server(network, group, servers=options.num_servers, **rates)
        return Worker(network, group, servers=options.num_servers)
    optimizer = Momentum(network.parameters, **rates)
    if options.scheme == "alone":
        return Alone(network, optimizer)
    return {"library": Library, "ring": Ring}[options.scheme](network, optimizer, group)


class Samples:
    """Images and their labels, as rows of bytes."""

    def __init__(self, rows: Array, dtype: str) -> None:
        """rows: (n, pixels + 1) uint8, the label last."""
        self.rows, self.scale = rows, np.dtype(dtype).type(1 / 255)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: Array) -> tuple[Array, Array]:
        """Return (k, pixels) from 0 to 1, and (k,) labels."""
        taken = self.rows[indices]
        return taken[:, :-1] * self.scale, taken[:, -1].astype(np.intp)


def share_on_node(array: Array | None, node: Any) -> Array:
    """Return the array of a node's first rank on all of its ranks, in memory once. Collective.

    array: None on the other ranks. node: mpi4py's communicator of the ranks of this node.
    """
    path = None
    if array is not None:
        path = Path(tempfile.mkstemp(suffix=".npy")[1])
        np.save(path, array)
    path = node.bcast(path)
    shared = np.asarray(np.load(path, mmap_mode="r"))
    node.Barrier()
    if array is not None:
        path.unlink()  # it stays in memory as long as a rank maps it
    return shared


def read_rows(options: argparse.Namespace) -> tuple[Array, Array]:
    """Return the rows of the training and of the validation samples."""
    arrays = read_arrays(resolve(options.dataset))
    train, validation = slice(options.train_samples), slice(options.validation_samples)
    return (
        rows_of(arrays.train_inputs[train], arrays.train_targets[train]),
        rows_of(arrays.validation_inputs[validation], arrays.validation_targets[validation]),
    )


def rows_of(images: Array, labels: Array) -> Array:
    """Return (n, pixels + 1) from images (n, …) and their labels (n,), which come last."""
    return np.concatenate([images.reshape(len(images), -1), labels[:, None]], axis=1)


def batches(num_samples: int, batch_size: int) -> Iterator[slice]:
    """Yield consecutive slices of `batch_size` samples; the last one may be shorter."""
    for start in range(0, num_samples, batch_size):
        yield slice(start, min(start + batch_size, num_samples))


def epoch_order(num_samples: int, *, seed: int, epoch: int) -> Array:
    """Return (num_samples,): the order of the samples in an epoch, the same on every rank."""
    return generator(seed, f"order of epoch {epoch}").permutation(num_samples)


class Laps:
    """Stopwatch of the verbs of a step in turn, without their waits for peers."""

    def __init__(self, scheme: Any) -> None:
        self.scheme, self.ended, self.waited_before = scheme, time.perf_counter(), scheme.waited_s
        self.waited = self.waited_before

    def next(self) -> float:
        """Return the seconds since the last call."""
        began, waited = self.ended, self.waited
        self.ended, self.waited = time.perf_counter(), self.scheme.waited_s
        return self.ended - began - (self.waited - waited)

    def waited_s(self) -> float:
        """Return the seconds of waiting so far."""
        return self.waited - self.waited_before


class Training:
    """One rank's training by a scheme."""

    def __init__(
        self, scheme: Any, train: Samples, validation: Samples, options: argparse.Namespace
    ) -> None:
        self.scheme, self.train, self.validation = scheme, train, validation
        self.options, self.step = options, 0

    def run_epoch(self, epoch: int, records: RunRecords) -> EpochSums:
        """Make one update for each global batch of the epoch."""
        order = epoch_order(len(self.train), seed=self.options.seed, epoch=epoch)
        sums, laps = EpochSums(), Laps(self.scheme)
        for batch in batches(len(order), self.options.batch_size):
            result, seconds = self.run_step(order[batch], laps)
            sums.add(result, seconds["communication_s"])
            records.step(epoch, self.step, result, seconds, laps.ended)
            self.step += 1
            laps = Laps(self.scheme)
        return sums

    def run_step(self, batch: Array, laps: Laps) -> tuple[Result, dict[str, float]]:
        """Make one update on the mean loss over a global batch, (n,) samples.

        Returns: losses and hits that this rank reports, and the seconds of each part.
        """
        scheme, seconds = self.scheme, {}
        share = scheme.share(len(batch))
        inputs, labels = self.train.take(batch[share.start : share.stop])
        seconds["data_s"] = laps.next()
        result = scheme.forward(inputs, labels)
        seconds["forward_s"] = laps.next()
        scheme.backward(len(batch))
        seconds["backward_s"] = laps.next()
        scheme.combine()
        combine_s = laps.next()
        scheme.update()
        seconds["optimizer_s"] = laps.next()
        scheme.distribute()
        seconds["communication_s"] = laps.waited_s() + combine_s + laps.next()
        reported = scheme.reported(len(batch))
        return Result(*(values[reported] for values in result)), seconds

    def evaluate(self) -> EpochSums:
        """Evaluate this rank's share of the validation samples, each of which one rank reports."""
        sums = EpochSums()
        for batch in batches(len(self.validation), EVALUATION_BATCH_SIZE):
            count = batch.stop - batch.start
            share = self.scheme.share(count)
            mine = np.arange(batch.start + share.start, batch.start + share.stop)
            result = self.scheme.forward(*self.validation.take(mine))
            sums.add(Result(*(values[self.scheme.reported(count)] for values in result)), 0.0)
        return sums


def train(options: argparse.Namespace) -> None:
    """Train on the ranks that a launcher has started, or in this process alone."""
    world = phalanx.World.create(timeout_s=options.timeout_s)
    check(options, world.size)
    choice = resolve(options.dataset)
    rows = read_rows(options) if world.local_rank == 0 else (None, None)
    samples = [Samples(share_on_node(each, world.node), options.dtype) for each in rows]
    training = Training(make_scheme(options, world.group), *samples, options)
    records = RunRecords(options, world, training, choice)
    for epoch in range(options.epochs):
        records.run_epoch(epoch)
    records.finish()
    world.close()


def main(words: Sequence[str]) -> None:
    try:
        train(parse(words))
    except phalanx.UserError as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
