"""Loaders are read as they are written: the batches of one process, on any number of ranks."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import phalanx
from phalanx.data.samples import TensorSamples
from phalanx.run.batch import MicroBatch, Position
from phalanx.run.feed import FeedPlace, IndexedFeed
from phalanx.run.order import DrawnOrder, order_of

NUMBERS = torch.arange(23.0)
DATA = TensorDataset(NUMBERS)


class Buckets(Sampler[list[int]]):
    """Batches of uneven size, whose order is that of the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        batches = [[0, 1, 2], [3], [4, 5, 6, 7, 8], [9, 10]]
        order = torch.randperm(4, generator=torch.Generator().manual_seed(self.epoch))
        return iter([batches[number] for number in order])

    def __len__(self) -> int:
        return 4


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def of_replicas(rank: int) -> DataLoader[Any]:
    return DataLoader(DATA, 4, sampler=DistributedSampler(DATA, num_replicas=2, rank=rank))


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "in order": lambda: DataLoader(DATA, 5),
    "in order, full": lambda: DataLoader(DATA, 5, drop_last=True),
    "generator": lambda: DataLoader(DATA, 5, shuffle=True, generator=seeded()),
    "weighted": lambda: DataLoader(
        DATA, 5, sampler=WeightedRandomSampler(NUMBERS, 17, generator=seeded())
    ),
    "repeated": lambda: DataLoader(
        DATA, 5, sampler=RandomSampler(DATA, True, 12, seeded()), drop_last=True
    ),
    "a list": lambda: DataLoader(DATA, 2, sampler=[4, 4, 1, 20, 3]),  # type: ignore[arg-type]
    "buckets": lambda: DataLoader(DATA, batch_sampler=Buckets()),
    "batches": lambda: DataLoader(
        DATA, batch_sampler=BatchSampler(RandomSampler(DATA, generator=seeded()), 7, True)
    ),
}


def trained_on(data: object, **options: Any) -> list[list[float]]:
    """Return the samples of each step of a run."""
    model = nn.Linear(1, 1)
    run = phalanx.start(model, SGD(model.parameters(), lr=0.1), data, **options)
    steps = []
    for batch in run:
        steps.append(batch.inputs.tolist())
        run.backward(run.model(batch.inputs[:, None]).mean())
    return steps


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_gives_the_batches_that_it_gives_alone(name: str) -> None:
    """Each was refused: nearly every script has drop_last=True or a sampler. "Say shuffle=True"
    was the advice, which trains something else."""
    plain, expected = LOADERS[name](), []
    for epoch in range(2):
        if name == "buckets":
            plain.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
        expected += [batch.tolist() for (batch,) in plain]
    assert trained_on(LOADERS[name](), epochs=2) == expected


def of_ranks(
    make: Callable[[], DataLoader[Any]],
    num_ranks: int,
    epoch: int,
    *,
    seen: int = 0,
    max_steps: int = 99,
) -> list[list[float]]:
    """Return the global batches, put together from the micro-batches of all ranks."""
    steps: dict[int, list[MicroBatch]] = {}
    for rank in range(num_ranks):
        order = order_of(make(), 23, 5, seed=1, steps=None, drawn={})
        samples = TensorSamples([NUMBERS], is_single=True)
        place = FeedPlace(batch_size=5, micro_batches=3, seed=1, rank=rank, num_ranks=num_ranks)
        feed = IndexedFeed(samples, order, place)
        for batch in feed.micro_batches(Position(epoch, seen), max_steps):
            steps.setdefault(batch.step, []).append(batch)
    for batches in steps.values():
        assert sum(b.num_samples for b in batches) == batches[0].global_samples
    return [
        [number for b in sorted(steps[step], key=lambda b: b.number) if b.num_samples
         for number in b.data.tolist()]
        for step in sorted(steps)
    ]  # fmt: skip


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_share_the_batches_of_a_sampler(num_ranks: int) -> None:
    """A sampler that draws from PyTorch's global generator is seeded for the epoch, too."""
    makes: list[Callable[[], DataLoader[Any]]] = [
        lambda: DataLoader(DATA, 5, sampler=WeightedRandomSampler(torch.ones(23), 17)),
        lambda: DataLoader(DATA, batch_sampler=Buckets()),
        lambda: DataLoader(DATA, 5, shuffle=True, drop_last=True),
    ]
    for make in makes:
        state = torch.get_rng_state()
        alone = of_ranks(make, 1, 1)
        assert torch.equal(torch.get_rng_state(), state), "the program's generator stays"
        torch.rand(7)
        assert of_ranks(make, num_ranks, 1) == alone
        seen = len(alone[0])
        assert of_ranks(make, num_ranks, 1, seen=seen, max_steps=1) == alone[1:2]
    assert all(len(batch) == 5 for batch in alone) and len(alone) == 4


def test_replicas_are_the_global_batches_of_ddp() -> None:
    """The batches of all replicas together are one global batch."""
    plain = [list(of_replicas(rank)) for rank in range(2)]
    expected = [sorted((*a.tolist(), *b.tolist())) for (a,), (b,) in zip(*plain, strict=True)]
    assert [sorted(batch) for batch in trained_on(of_replicas(0))] == expected
    with pytest.raises(phalanx.UserError, match="is 8, of all 2 replicas of its Distributed"):
        trained_on(of_replicas(0), batch_size=4)


def test_a_resumed_run_draws_the_same_again_or_is_refused() -> None:
    def order(seed: int, drawn: dict[str, Any]) -> DrawnOrder:
        generator = torch.Generator().manual_seed(seed)
        loader = DataLoader(DATA, 5, shuffle=True, generator=generator)
        return DrawnOrder(loader, 23, seed=1, steps=None, drawn=drawn)

    drawn: dict[str, Any] = {}
    first = order(3, drawn)
    first.of(0)
    expected = first.of(1)
    assert drawn["epoch"] == 1
    assert torch.equal(order(3, dict(drawn)).of(1).indices, expected.indices)
    with pytest.raises(phalanx.UserError, match="draws different samples in epoch 1 from the run"):
        order(4, dict(drawn)).of(1)


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 3


class Names(Sampler[str]):
    def __iter__(self) -> Iterator[str]:
        return iter("ab")


class Again(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


def test_samplers_that_no_run_can_follow() -> None:
    assert trained_on(DataLoader(DATA, 2, sampler=Endless()), steps=2) == [[3.0, 3.0]] * 2
    for loader, text in (
        (DataLoader(DATA, 2, sampler=Endless()), "sampler Endless does not end within an epoch"),
        (DataLoader(DATA, 2, sampler=Names()), "sampler Names gives .'a', 'b'., but a run takes"),
        (DataLoader(DATA, 2, sampler=[30]), "sampler list gives sample 30, but data has 23"),  # type: ignore[arg-type]
        (DataLoader(DATA, 24, drop_last=True), "no samples in full batches, and drop_last=True"),
        (DataLoader(DATA, batch_size=None), "DataLoader with batch_size=None: give its data set"),
        (Again(DATA), "data is a Again, which changes how a DataLoader is iterated"),
    ):
        with pytest.raises(phalanx.UserError, match=text):
            trained_on(loader)


def padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)[:, :1], torch.tensor(len(rows))


def test_items_of_a_list_are_samples_where_they_are_put_together() -> None:
    """5,707 sentences were taken for columns: an error of 22,774 characters, and again from
    run.evaluate after the last step, with which the training was lost."""
    rows = [torch.full((1 + number % 3,), float(number)) for number in range(9)]
    model = nn.Linear(1, 1)
    loader = DataLoader(rows, 4, collate_fn=padded)  # type: ignore[arg-type]
    for data, options in (
        (loader, {}),
        (rows, {"batch_size": 4, "loading": {"collate_fn": padded}}),
    ):
        run = phalanx.start(model, SGD(model.parameters(), lr=0.1), data, **options)  # type: ignore[arg-type]
        for batch in run:
            run.backward(run.model(batch.inputs).mean())
        total = run.evaluate(lambda _, batch: batch[0].sum(), data, reduction="sum")
        assert total == sum(range(9))
    with pytest.raises(phalanx.UserError, match=r"lengths: 1, 2, 3, 1, 2, …; if each"):
        phalanx.start(model, SGD(model.parameters(), lr=0.1), rows, batch_size=4)


def test_an_evaluation_is_of_the_samples_of_its_loader() -> None:
    model = nn.Linear(1, 1)
    with phalanx.start(
        model, SGD(model.parameters(), lr=0.1), NUMBERS[:, None], batch_size=4
    ) as run:
        for loader, expected in (
            (DataLoader(DATA, 5, shuffle=True), sum(range(23))),
            (DataLoader(DATA, 5, drop_last=True), sum(range(20))),
            (DataLoader(DATA, 5, sampler=SubsetRandomSampler([2, 5, 7])), 14),
            (DataLoader(DATA, batch_sampler=Buckets()), sum(range(11))),
            (of_replicas(1), sum(range(23))),
        ):
            found = run.evaluate(lambda _, batch: batch[0].sum(), loader, reduction="sum")
            assert found == expected
