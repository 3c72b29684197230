"""Streams, generated data and shards give the same global batches on any number of ranks."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, IterableDataset

import phalanx
from phalanx.run.batch import MicroBatch, Position
from phalanx.run.device import choose_device, copy_to
from phalanx.run.feed import Feed, FeedPlace, MappedFeed
from phalanx.run.streams import GeneratedFeed, ShardedFeed, StreamFeed, rows_of


class Noise(IterableDataset[Tensor]):
    """Draws from PyTorch's generator, as streams that augment do."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Tensor]:
        for number in range(self.length):
            yield torch.stack([torch.tensor(float(number)), torch.rand(())])


def all_of(feed: Feed, epoch: int = 0, *, seen: int = 0, max_steps: int = 99) -> list[MicroBatch]:
    found = []
    for batch in feed.micro_batches(Position(epoch, seen, 5), max_steps):
        torch.rand(7 + batch.number)  # a computation that draws, too
        found.append(batch)
    return found


def stream(rank: int, num_ranks: int, length: int = 11, **options: Any) -> StreamFeed:
    place = FeedPlace(batch_size=4, micro_batches=3, seed=1, rank=rank, num_ranks=num_ranks)
    return StreamFeed(Noise(length), place, **options)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_a_stream_is_cut_among_the_ranks(num_ranks: int) -> None:
    alone = {(b.step, b.number): b for b in all_of(stream(0, 1))}
    ranks = [all_of(stream(rank, num_ranks)) for rank in range(num_ranks)]
    found = {(b.step, b.number): b for batches in ranks for b in batches}
    assert found.keys() == alone.keys()
    for key, batch in found.items():
        assert torch.equal(batch.data, alone[key].data), "also what the stream draws"
        assert batch.num_samples == alone[key].num_samples
        assert batch.global_samples == alone[key].global_samples
    for batches in ranks:
        assert [b.ends_epoch for b in batches] == [False] * (len(batches) - 1) + [True]
        assert sum(b.ends_step for b in batches) == 3
    order = torch.cat([alone[key].data[:, 0] for key in sorted(alone)])
    assert torch.equal(order, torch.arange(11.0))
    assert [alone[step, 0].global_samples for step in (5, 6, 7)] == [4, 4, 3]


def test_a_stream_goes_on_after_samples_that_were_seen_and_ends_by_steps() -> None:
    whole, rest = all_of(stream(0, 1)), all_of(stream(0, 1), seen=4, max_steps=1)
    assert [b.data.tolist() for b in rest] == [b.data.tolist() for b in whole[3:6]]
    assert [b.ends_epoch for b in rest] == [False, False, True]
    different = all_of(stream(0, 1), epoch=1)
    assert not torch.equal(different[0].data, whole[0].data)


def test_a_short_global_batch_leaves_padding() -> None:
    batches = [all_of(stream(rank, 3, length=5))[-1] for rank in range(3)]
    assert [batch.num_samples for batch in batches] == [0, 0, 1]
    assert all(batch.ends_epoch and len(batch.data) == 1 for batch in batches)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_ranks_take_their_rows_of_generated_data(num_ranks: int) -> None:
    def make(number: int) -> dict[str, Any]:
        return {"inputs": (torch.rand(number, 2),), "targets": torch.rand(number).numpy()}

    def batches(num_ranks: int) -> list[MicroBatch]:
        given = {"batch_size": 7, "micro_batches": num_ranks, "seed": 1, "num_ranks": num_ranks}
        places = [FeedPlace(rank=rank, **given) for rank in range(num_ranks)]
        feeds = [GeneratedFeed(make, place) for place in places]
        return [batch for feed in feeds for batch in all_of(feed, max_steps=1)]

    (whole,), found = batches(1), batches(num_ranks)
    assert torch.equal(torch.cat([b.data["inputs"][0] for b in found]), whole.data["inputs"][0])
    assert [len(b.data["targets"]) for b in found] == [b.num_samples for b in found]


def test_generated_data_without_a_row_for_each_sample() -> None:
    with pytest.raises(
        phalanx.UserError, match=r"should make 7 samples, but returned shape \(3,\)"
    ):
        rows_of((torch.rand(7), torch.rand(3)), 0, 4, length=7)


def test_generated_data_have_random_numbers_of_their_micro_batch() -> None:
    def found(num_ranks: int) -> dict[tuple[int, int], Tensor]:
        given = {"batch_size": 5, "micro_batches": 3, "seed": 1, "num_ranks": num_ranks}
        places = [FeedPlace(rank=rank, has_fixed_cut=True, **given) for rank in range(num_ranks)]
        feeds = [GeneratedFeed(torch.rand, place) for place in places]
        batches = [batch for feed in feeds for batch in all_of(feed, max_steps=2)]
        assert sum(batch.ends_epoch for batch in batches) == num_ranks
        return {(b.step, b.number): b.data for b in batches}

    alone, together = found(1), found(2)
    assert alone.keys() == together.keys() and len(alone) == 6
    assert all(torch.equal(alone[key], together[key]) for key in alone)
    assert len({float(data[0]) for data in alone.values()}) == 6


def sole_place(micro_batches: int) -> FeedPlace:
    return FeedPlace(batch_size=5, micro_batches=micro_batches, seed=1, rank=0, num_ranks=1)


def test_shards_count_by_their_length() -> None:
    items = [torch.zeros(3), (torch.zeros(2, 4), torch.zeros(9)), {"x": torch.zeros(4)}]
    feed = ShardedFeed(items, sole_place(2))
    batches = all_of(feed)
    assert [batch.num_samples for batch in batches] == [3, 2, 4]
    assert [batch.global_samples for batch in batches] == [5, 5, 4]
    assert [(b.ends_step, b.ends_epoch) for b in batches] == [
        (False, False), (True, False), (True, True)
    ]  # fmt: skip
    assert [batch.num_samples for batch in all_of(feed, seen=5)] == [4]
    with pytest.raises(
        phalanx.UserError, match="the micro-batches differ from those of the checkpoint"
    ):
        all_of(feed, seen=4)


def test_data_are_copied_to_a_device_whatever_holds_them() -> None:
    there = torch.device("meta")  # no GPU is needed to see where tensors are
    items = [{"x": torch.zeros(3, 2), "rest": (torch.zeros(3), ["name"])}]
    feed = ShardedFeed(items, sole_place(1))
    (batch,) = all_of(MappedFeed(feed, lambda b: replace(b, data=copy_to(there, b.data))))
    assert batch.data["x"].device == batch.data["rest"][0].device == there
    assert (batch.data["rest"][1], batch.num_samples) == (["name"], 3)
    if not torch.cuda.is_available():
        assert choose_device("auto", 1).type == "cpu"
        with pytest.raises(phalanx.UserError, match="PyTorch finds no GPU here"):
            choose_device("cuda", 0)


def samples() -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(torch.randn(6, 4), torch.randn(6, 2), strict=True)


class Again:
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return samples()


@pytest.mark.parametrize(
    ("data", "options", "text"),
    [
        (samples(), {"epochs": 2}, r"epochs=2, but data is an iterator \(generator\)"),
        (Again(), {"loading": {"num_workers": 2}}, "is for a data set of PyTorch, but data is of"),
        (torch.rand, {}, "data is a function, .* give steps="),
        (torch.rand, {"steps": 2, "epochs": 2}, "epochs=2 is not for data from a function"),
        (7, {"sharded": True}, "type int: with sharded=True give an iterable"),
        (Again(), {"sharded": True, "loading": {"collate_fn": list}}, "collate_fn is for samples"),
        (iter(()), {}, "data has no samples in epoch 0"),
    ],
)
def test_bad_streams(data: object, options: dict[str, Any], text: str) -> None:
    with pytest.raises(phalanx.UserError, match=text):
        train(data, **options)


def train(data: object, **options: Any) -> Iterable[int]:
    model = nn.Linear(4, 2)
    run = phalanx.start(model, SGD(model.parameters(), lr=0.1), data, batch_size=4, **options)
    seen = []
    for batch in run:
        run.backward((run.model(batch.inputs) - batch.targets).square().mean())
        seen.append(batch.num_samples)
    return seen


def test_a_program_takes_each_kind() -> None:
    assert train(samples()) == [4, 2]
    assert train(Again(), epochs=2) == [4, 2, 4, 2]
    assert train(lambda n: (torch.randn(n, 4), torch.randn(n, 2)), steps=3) == [4, 4, 4]
    batches = [(torch.randn(n, 4), torch.randn(n, 2)) for n in (3, 1)]
    assert train(batches, sharded=True, epochs=2) == [3, 1, 3, 1]


@pytest.mark.parametrize("steps", [None, 5])
@pytest.mark.parametrize("kind", ["sharded", "stream", "function"])
def test_data_that_depend_on_the_model_are_those_of_the_last_update(
    kind: str, steps: int | None
) -> None:
    """An iterable was read one sample ahead, a sharded one a step ahead: data that a policy makes
    were one update old, which no error told."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)

    def now(number: int) -> Tensor:
        return torch.full((number, 1), model.weight.item())

    def items() -> Iterator[Tensor]:
        for _ in range(5 if kind == "sharded" else 5 * 4):
            yield now(4) if kind == "sharded" else now(1)[0]

    data = now if kind == "function" else items()
    steps = 5 if kind == "function" else steps
    optimizer = SGD(model.parameters(), lr=1.0)  # each update adds 1
    run = phalanx.start(
        model, optimizer, data, batch_size=4, steps=steps, sharded=kind == "sharded"
    )
    found = []
    for batch in run:
        found.append(batch.data.flatten().tolist())
        run.backward(-model.weight.sum())
        assert batch.ends_epoch == (batch.step == 4)
    assert found == [[float(step)] * 4 for step in range(5)]


def test_an_iterator_is_not_read_after_the_last_step() -> None:
    """The next item of one that waits for another program would never come."""
    numbers = iter(torch.arange(9.0)[:, None])
    model = nn.Linear(1, 1)
    for batch in (
        run := phalanx.start(model, SGD(model.parameters(), 0.1), numbers, batch_size=2, steps=3)
    ):
        run.backward(run.model(batch.data).mean())
    assert list(numbers) == [6.0, 7.0, 8.0]


@pytest.mark.parametrize("length", [8, 11])
def test_a_stream_without_its_last_short_batch(length: int) -> None:
    """A loader of an iterable data set with drop_last=True was refused."""
    loader = DataLoader(Noise(length), 4, drop_last=True)
    model = nn.Linear(2, 1)
    run = phalanx.start(model, SGD(model.parameters(), lr=0.1), loader, epochs=2)
    found = []
    for batch in run:
        run.backward(run.model(batch.data).mean())
        found.append((batch.num_samples, batch.ends_epoch))
    assert found == [(4, False), (4, True)] * 2


class Numbers(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.arange(10.0))


@pytest.mark.parametrize(
    ("data", "expected"),
    [(torch.arange(10.0), 7), (Numbers(), 7), (iter(Numbers()), 3)],
    ids=["tensor", "stream", "iterator"],
)
def test_steps_alone_are_as_many_epochs_as_they_need(data: object, expected: int) -> None:
    """They ended with the first epoch; an iterator is read once."""
    model = nn.Linear(1, 1)
    run = phalanx.start(model, SGD(model.parameters(), lr=0.1), data, batch_size=4, steps=7)
    steps = 0
    for batch in run:
        run.backward(run.model(batch.inputs[:, None]).mean())
        steps += batch.ends_step
    assert steps == expected
