"""Samples of arrays, tables and packs, as batches of tensors."""

from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import phalanx
from phalanx.data.packed.index import Field
from phalanx.data.packed.writer import PackWriter
from phalanx.data.samples import as_tensor
from phalanx.errors import UserError
from phalanx.run.batch import MicroBatch
from phalanx.run.samples import samples_of
from tests.data.packs import alter, make_pack, number_of, rows

INPUTS, TARGETS = np.arange(24.0).reshape(6, 4), np.arange(6)
CHOSEN = torch.tensor([4, 0, 5])


def first_batch(data: object, **loading: Any) -> Any:
    (batch,) = samples_of(data, loading).batches([CHOSEN])
    return batch


def test_numpy_arrays() -> None:
    assert torch.equal(first_batch(INPUTS), torch.from_numpy(INPUTS)[CHOSEN])
    inputs, targets = first_batch((INPUTS.astype(">f4"), torch.from_numpy(TARGETS)))
    assert (inputs.dtype, targets.tolist()) == (torch.float32, [4, 0, 5])
    batch = first_batch({"x": INPUTS, "y": TARGETS[::-1]})
    assert (batch["x"].shape, batch["y"].tolist()) == ((3, 4), [1, 5, 0])
    with pytest.raises(UserError, match="data: 'y' is of type list: give tensors or arrays"):
        samples_of({"x": INPUTS, "y": [1, 2]}, {})
    with pytest.raises(UserError, match="different lengths: x 6, y 5"):
        samples_of({"x": INPUTS, "y": TARGETS[1:]}, {})
    with pytest.raises(UserError, match="data: 'names' is of <U1, which no tensor holds"):
        samples_of({"names": np.array(["a", "b"])}, {})
    with pytest.raises(UserError, match="is a single number"):
        samples_of(np.array(3.0), {})


def test_unsigned_numbers() -> None:
    """PyTorch picks no rows of uint16, uint32 and uint64, and the first batch was a traceback."""
    for dtype, wide in (("u1", "uint8"), ("u2", "int32"), ("u4", "int64"), ("u8", "int64")):
        batch = first_batch(np.array([0, 1, 2, 3, 4, np.iinfo(dtype).max >> 1], dtype))
        assert (str(batch.dtype), batch.tolist()) == (
            f"torch.{wide}", [4, 0, np.iinfo(dtype).max >> 1],
        )  # fmt: skip
    with pytest.raises(UserError, match="holds 18446744073709551615, which int64 does not"):
        samples_of(np.array([2**64 - 1], np.uint64), {})


def test_an_array_in_a_file_is_not_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", INPUTS)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    samples = samples_of(mapped, {})
    assert torch.equal(next(samples.batches([CHOSEN])), torch.from_numpy(INPUTS)[CHOSEN])
    assert as_tensor(mapped).data_ptr() == mapped.ctypes.data


def test_arrow_tables() -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"x": INPUTS.tolist(), "y": TARGETS, "z": TARGETS % 2 == 0, "n": ["a"] * 6})
    batch = first_batch(table.select(["x", "y", "z"]))
    assert torch.equal(batch["x"], torch.from_numpy(INPUTS)[CHOSEN])
    assert (batch["y"].tolist(), batch["z"].tolist()) == ([4, 0, 5], [True, True, False])
    assert first_batch(table.select(["y"]).to_batches()[0])["y"].tolist() == [4, 0, 5]
    reader = table.select(["y"]).to_reader()  # as a table of another library gives itself
    assert first_batch(reader)["y"].tolist() == [4, 0, 5]
    assert len(samples_of(table.select(["x"]).slice(2, 3), {})) == 3
    with pytest.raises(UserError, match="column 'n' of the table holds string, not numbers"):
        samples_of(table, {})
    with pytest.raises(
        UserError, match="'x' of the table has lists of differing lengths: 1 in row 0, 2 in row 1"
    ):
        samples_of(pa.table({"x": [[1], [2, 3]]}), {})
    with pytest.raises(UserError, match="'x' of the table has no value in row 1"):
        samples_of(pa.table({"x": [1, None]}), {})


def test_arrow_tables_are_judged_as_parquet_is() -> None:
    """Decimals were refused here and classes in `phalanx data pack`; nulls in lists the reverse."""
    pa = pytest.importorskip("pyarrow")
    with pytest.raises(UserError, match="data: column 'x' of the table has no value in row 1"):
        samples_of(pa.table({"x": [[1, 2], [None, 3], [4, 5]]}), {})
    prices = [Decimal("1.50"), Decimal("0.10"), Decimal("10.00")]
    table = pa.table({"x": prices, "__index_level_0__": [0, 1, 2]})
    (batch,) = samples_of(table, {}).batches([torch.arange(3)])
    assert {name: part.tolist() for name, part in batch.items()} == {"x": [1.5, 0.1, 10]}
    for column, words in (
        (pa.array([b"x"]), "binary, neither numbers nor text"),
        (pa.array([["a"]]), "list<.*: string>, neither numbers nor text"),
        (pa.array(["a"]).dictionary_encode(), "dictionary<.*>, not numbers"),
    ):
        with pytest.raises(UserError, match=f"column 'x' of the table holds {words}"):
            samples_of(pa.table({"x": column}), {})
    with pytest.raises(UserError, match="the table has two columns 'x'"):
        samples_of(pa.table([pa.array([1]), pa.array([2])], names=["x", "x"]), {})


@pytest.mark.parametrize("workers", [0, 2])
def test_data_sets_of_hugging_face(workers: int) -> None:
    """Lists came transposed, as a list of tensors by position, and bare numbers as int64 alone."""
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"x": INPUTS.tolist(), "label": TARGETS % 2})
    made = made.cast_column("label", datasets.ClassLabel(names=["cat", "dog"]))
    batch = first_batch(made, num_workers=workers)
    assert torch.equal(batch["x"], torch.from_numpy(INPUTS)[CHOSEN])
    assert batch["label"].tolist() == [0, 0, 1]
    chosen = made.shuffle(seed=0).select(range(3))
    (batch,) = samples_of(chosen, {}).batches([torch.arange(3)])
    assert batch["x"].tolist() == chosen["x"][:]
    assert first_batch(made.with_format("torch"))["x"].shape == (3, 4), "as the program has it"
    assert first_batch(made, collate_fn=len) == 3
    words = made.add_column("text", ["a"] * 6)
    with pytest.raises(UserError, match="column 'text' of the data set holds text, not numbers"):
        samples_of(words, {})
    with pytest.raises(UserError, match="'x' of the data set has no value in row 1"):
        first_batch(datasets.Dataset.from_dict({"x": [None, 2, 3, 4, 5, 6]}))


class Squares:
    def __len__(self) -> int:
        return 6

    def batches(self, indices: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for chosen in indices:
            yield chosen[:, None].float(), chosen.float() ** 2


def test_samples_of_the_program() -> None:
    inputs, targets = first_batch(Squares())
    assert (inputs[:, 0].tolist(), targets.tolist()) == ([4, 0, 5], [16, 0, 25])
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    run = phalanx.start(model, SGD(model.parameters(), 0.1), Squares(), batch_size=4)
    seen = []
    for batch in run:
        seen += batch.targets.tolist()
        run.backward((run.model(batch.inputs)[:, 0] - batch.targets).abs().mean())
    assert sorted(seen) == [0, 1, 4, 9, 16, 25]


@pytest.mark.parametrize("workers", [0, 2])
def test_packs(tmp_path: Path, workers: int) -> None:
    folder = make_pack(tmp_path / "p")
    samples = samples_of(str(folder), {"num_workers": workers})
    order = torch.randperm(77, generator=torch.Generator().manual_seed(0)).split(10)
    batches = list(samples.batches(order))
    assert [number_of(inputs) for inputs, _ in batches] == [chosen.tolist() for chosen in order]
    expected = torch.from_numpy(rows(77)[1])
    assert all(torch.equal(t, expected[c]) for c, (_, t) in zip(order, batches, strict=True))
    assert len(samples_of(folder, {}, "validation")) == 20
    assert len(samples_of(folder / "validation", {})) == 20
    assert len(samples_of(phalanx.Pack(folder / "train"), {})) == 77


def test_packs_that_are_refused(tmp_path: Path) -> None:
    folder = make_pack(tmp_path / "p")
    with pytest.raises(UserError, match="there is no such folder; `phalanx data pack` makes one"):
        samples_of("nowhere", {})
    with pytest.raises(UserError, match=r"is not a pack: it has no index\.json"):
        samples_of(tmp_path, {})
    with pytest.raises(
        UserError, match=r"loading=.'pin_memory': …}: a pack is read only by num_workers"
    ):
        samples_of(folder, {"pin_memory": True})
    alter(folder, 13)
    with pytest.raises(UserError, match=r"shard-00001\.inputs\.npy.*is not what was packed"):
        list(samples_of(folder, {}).batches([torch.arange(20)]))
    (folder / "validation" / "index.json").unlink()
    with pytest.raises(UserError, match="has no samples for validation, only for train"):
        samples_of(folder, {}, "validation")


def test_samples_that_differ_in_shape_are_collated_by_the_program(tmp_path: Path) -> None:
    fields = [
        Field(name="places", dtype="float32", shape=None),
        Field(name="targets", dtype="float32", shape=[]),
    ]
    with PackWriter(tmp_path / "p", fields=fields) as writer:
        for number in range(6):
            places = np.full((number + 1, 3), number, np.float32)
            writer.add({"places": places, "targets": np.float32(number)[...]})
    with pytest.raises(
        UserError, match="differ in the shape of places, so they cannot form a batch"
    ):
        samples_of(tmp_path / "p", {})
    places, targets = first_batch(tmp_path / "p", collate_fn=padded)
    assert (places.shape, targets.tolist()) == ((3, 6, 3), [4, 0, 5])


def padded(samples: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
    places = nn.utils.rnn.pad_sequence([s["places"] for s in samples], batch_first=True)
    return places, torch.stack([s["targets"] for s in samples])


def test_parts_of_a_dictionary() -> None:
    def batch(data: object) -> MicroBatch:
        return MicroBatch(data, 3, 0, 0, 0, True, True, 3)

    named = batch({"x": 1, "z": 2, "targets": 3})
    assert (named.inputs, named.targets) == ({"x": 1, "z": 2}, 3)
    assert batch({"inputs": 1, "mask": 2, "targets": 3}).inputs == 1


def test_a_run_from_a_pack(tmp_path: Path) -> None:
    folder = make_pack(tmp_path / "p", dtype="float32")
    model = nn.Linear(16, 3)
    seen: list[int] = []
    with phalanx.start(model, SGD(model.parameters(), lr=0.1), folder, batch_size=32) as run:
        for batch in run:
            logits = run.model(batch.inputs.flatten(1))
            run.backward(nn.functional.cross_entropy(logits, batch.targets))
            seen += number_of(batch.inputs)
        assert run.evaluate(lambda _, batch: float(len(batch[0])), folder, reduction="sum") == 20
    assert sorted(seen) == list(range(77))
