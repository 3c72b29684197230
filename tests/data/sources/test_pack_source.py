"""Packed data as they are read: the same samples for any readers and ranks."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phalanx.comm.layout import share_of
from phalanx.data.packed.index import Field
from phalanx.data.packed.writer import PackWriter
from phalanx.data.reading.pack_reader import Preparation
from phalanx.data.sampler import epoch_order
from phalanx.data.samples import PartialBatch
from phalanx.data.sources.pack_source import PackSource
from phalanx.data.sources.packed import Packed, describe
from phalanx.errors import UserError
from phalanx.models.options import check_data
from tests.data.packs import alter, make_pack, number_of, rows

SAMPLES = 77


def open_pack(
    folder: Path,
    *,
    augment_seed: int | None = None,
    means: list[float] | None = None,
    deviations: list[float] | None = None,
    train_samples: int | None = None,
    dtype: str = "float64",
    **ahead: Any,
) -> PackSource:
    described = describe(folder)
    return PackSource(
        Packed(folder, **{"readers": 0, "train_samples": train_samples, **ahead}),
        described,
        Preparation(
            shape=described.shape.inputs,
            dtype=dtype,
            means=means,
            deviations=deviations,
            packed_dims=len(described.shape.inputs),
            num_classes=described.shape.num_classes,
            augment_seed=augment_seed,
        ),
    )


def epoch(
    source: PackSource,
    ranks: int = 1,
    batch: int = 12,
    epoch: int = 0,
    first_sample: int = 0,
    split: str = "train",
) -> list[list[PartialBatch]]:
    """The parts of every global batch, of a source that is read as every rank in turn."""
    number = source.first_samples(split)[-1]
    order, parts = epoch_order(number, 1, epoch), list[list[PartialBatch]]()
    batches = [order[at : at + batch] for at in range(first_sample, number, batch)]
    for rank in range(ranks):
        shares = [share_of(rank, ranks, len(whole)) for whole in batches]
        indices = [w[s.start : s.stop] for w, s in zip(batches, shares, strict=True)]
        parts.append(list(source.read(split, indices, epoch)))
    return [list(one) for one in zip(*parts, strict=True)]


def together(batches: list[list[PartialBatch]]) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [part for batch in batches for part in batch if part.num_samples]
    inputs, targets = zip(*(part.data for part in parts), strict=True)
    return torch.cat(inputs), torch.cat(targets)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pack(tmp_path_factory.mktemp("pack") / "numbers")


def test_an_epoch_holds_what_was_packed(pack: Path) -> None:
    inputs, targets = rows(SAMPLES)
    source = open_pack(pack)
    found, classes = together(epoch(source))
    numbers = number_of(found.numpy())
    assert sorted(numbers) == list(range(SAMPLES))
    assert np.array_equal(found.numpy(), inputs[numbers])
    assert np.array_equal(classes.numpy(), targets[numbers])
    shape = describe(pack).shape
    assert shape.inputs == (1, 4, 4) and shape.num_classes == 3
    source.close()


@pytest.mark.parametrize(
    "ahead",
    [
        {"readers": 3, "prefetch": 2},
        {"readers": 2, "prefetch": 5, "reader_kind": "processes"},
        {"readers": 2, "cache_mb": 30 * 136 / 1e6},
        {"readers": 1, "cache_mb": 1.0},
    ],
    ids=["threads", "processes", "some in memory", "all in memory"],
)
def test_readers_and_ranks_change_nothing(pack: Path, ahead: dict[str, Any]) -> None:
    plain, source = open_pack(pack, augment_seed=4), open_pack(pack, augment_seed=4, **ahead)
    for number, ranks in ((0, 1), (1, 3)):
        expected, classes = together(epoch(plain, epoch=number))
        found = together(epoch(source, ranks, epoch=number))
        assert torch.equal(found[0], expected) and torch.equal(found[1], classes)
    part, _ = together(epoch(source, split="validation"))
    assert sorted(number_of(part.numpy())) == list(range(20))
    source.close()


def test_samples_in_memory_are_not_read_again(pack: Path) -> None:
    source = open_pack(pack, cache_mb=30 * 136 / 1e6)
    asked = []
    read = source._packs["train"].read

    def counted(field: str, indices: np.ndarray) -> np.ndarray:
        asked.append(len(indices))
        return read(field, indices)

    source._packs["train"].read = counted  # type: ignore[method-assign, assignment]
    for number, expected in ((0, SAMPLES), (1, SAMPLES - 30)):
        asked.clear()
        together(epoch(source, epoch=number))
        assert sum(asked) == 2 * expected  # inputs and targets


def test_pixels_are_normalised_by_channel(tmp_path: Path) -> None:
    folder = make_pack(tmp_path / "colours", shape=(2, 4, 4), dtype="uint8", samples=30)
    source = open_pack(folder, means=[10.0, 20.0], deviations=[2.0, 0.0], dtype="float32")
    images, _ = together(epoch(source, batch=30))
    plain = rows(30, (2, 4, 4), "uint8")[0]
    found = {round(image[0, 0, 0].item() * 2 + 10): image for image in images}
    assert sorted(found) == list(range(30))
    for number, image in found.items():
        assert image.dtype == torch.float32
        assert np.allclose(image[0], (plain[number, 0] - 10.0) / 2.0)
        assert np.allclose(image[1], plain[number, 1] - 20.0)  # a constant stays one


def test_a_damaged_sample_stops_the_run_or_is_left_out(tmp_path: Path) -> None:
    folder = make_pack(tmp_path / "numbers", samples=70)
    alter(folder, 33)
    alter(folder, 5)
    with pytest.raises(UserError, match=r"shard-0000\d.inputs.npy is damaged: sample (33|5) at"):
        epoch(open_pack(folder))
    for ahead in ({}, {"cache_mb": 1.0}, {"readers": 1, "reader_kind": "processes"}):
        source = open_pack(folder, damaged="skip", **ahead)
        for number in range(2):
            batches = epoch(source, ranks=2, batch=10, epoch=number)
            numbers = number_of(together(batches)[0].numpy())
            assert sorted(numbers) == [s for s in range(70) if s not in (5, 33)]
            assert sum(part.num_damaged for batch in batches for part in batch) == 2
        (notice,) = source.notices()
        assert "skipped 2 damaged so far: sample 5, 33" in notice
        assert source.notices() == []
        source.close()


def test_a_target_that_is_no_class_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "wrong"
    write(folder, np.zeros((4, 1, 4, 4)), np.array([0, 1, 7, 0]), classes=["a", "b"])
    with pytest.raises(UserError, match="the target of sample 2 is 7, but there are 2 classes"):
        epoch(open_pack(folder))


def write(folder: Path, inputs: np.ndarray, targets: np.ndarray, **others: Any) -> Path:
    fields = [
        Field(name=name, dtype=array.dtype.name, shape=list(array.shape[1:]))
        for name, array in (("inputs", inputs), ("targets", targets))
    ]
    for split in ("train", "validation"):
        with PackWriter(folder / split, fields=fields, **others) as writer:
            writer.add_rows({"inputs": inputs, "targets": targets})
    return folder


def test_texts_and_tables_are_known_by_their_shapes(tmp_path: Path) -> None:
    tokens = np.arange(60).reshape(6, 10) % 7
    folder = write(tmp_path / "text", tokens, tokens)
    shape, text = describe(folder).shape, open_pack(folder, dtype="int64")
    assert shape.is_text and shape.num_classes == 7
    (batch,) = text.read("train", [torch.arange(6)], 0)
    inputs, targets = batch.data
    assert inputs.dtype == torch.int64 and torch.equal(inputs, targets)
    table = describe(write(tmp_path / "table", np.zeros((6, 9)), np.arange(6)))
    assert table.shape.inputs == (1, 1, 9) and table.shape.num_classes == 6
    grey = describe(write(tmp_path / "grey", np.zeros((6, 5, 4)), np.arange(6)))
    assert grey.shape.inputs == (1, 5, 4)


QUANTITIES = {
    "regression": (np.zeros((3, 4)), np.zeros(3), (4,), ()),
    "fields": (np.zeros((3, 1, 4, 4)), np.zeros((3, 1, 2, 2)), (1, 4, 4), (1, 2, 2)),
    "two targets": (np.zeros((3, 1, 4, 4)), np.zeros((3, 2), int), (1, 4, 4), (2,)),
    "no tokens": (np.zeros((3, 4)), np.zeros((3, 4), int), (4,), (4,)),
    "video": (np.zeros((3, 2, 1, 4, 4)), np.zeros(3, int), (2, 1, 4, 4), None),
}


@pytest.mark.parametrize("what", QUANTITIES)
def test_what_is_no_class_of_an_image_or_text_is_for_models_of_the_users(
    tmp_path: Path, what: str
) -> None:
    inputs, targets, of_inputs, of_targets = QUANTITIES[what]
    folder = write(tmp_path / "pack", inputs, targets)
    shape = describe(folder).shape
    assert (shape.inputs, shape.targets) == (of_inputs, of_targets)
    assert not shape.is_text and not shape.is_image
    for model in ("mlp", "gpt"):
        with pytest.raises(UserError, match=r"--model file\.py:function"):
            check_data(model, shape)
    source = open_pack(folder, dtype="float32")
    *_, parts = epoch(source, ranks=3, batch=2)  # two ranks ask for none
    expected = torch.float32 if targets.dtype.kind == "f" else torch.int64
    assert sorted(part.num_samples for part in parts) == [0, 0, 1]
    for part in parts:
        _, found = part.data
        assert found.dtype == expected
        assert found.shape == (1, *targets.shape[1:])
    source.close()


def test_a_folder_that_is_no_pack_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        describe(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"there is no train/index\.json in it"):
        describe(tmp_path)
    with pytest.raises(UserError, match="--train-samples must be 1 to 77 for this data, not 78"):
        open_pack(make_pack(tmp_path / "numbers"), train_samples=78)


def anonymous_bytes() -> int:
    """Memory of this process that is not of a file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("Linux tells")


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_memory_is_bounded_however_large_the_data(tmp_path: Path, kind: str) -> None:
    """96 MB of samples, of which 12 batches of 1 MB are anywhere at a time, at most."""
    size, number, most = (1, 256, 256), 1500, 24 * 2**20
    pixels = np.zeros((100, *size), np.uint8)
    fields = [
        Field(name="inputs", dtype="uint8", shape=list(size)),
        Field(name="targets", dtype="int64", shape=[]),
    ]
    for split, count in (("train", number), ("validation", 100)):
        with PackWriter(tmp_path / split, fields=fields, classes=["a"]) as writer:
            for start in range(0, count, 100):
                pixels[:] = start // 100
                writer.add_rows({"inputs": pixels, "targets": np.zeros(100, np.int64)})
    source = open_pack(tmp_path, dtype="float32", readers=2, prefetch=3, reader_kind=kind)
    order = epoch_order(number, 0, 0)
    batches = source.read("train", [order[at : at + 4] for at in range(0, number, 4)], 0)
    for _ in itertools.islice(batches, 20):
        pass
    before, grown, seen = anonymous_bytes(), 0, 20 * 4
    for batch in batches:
        grown, seen = max(grown, anonymous_bytes() - before), seen + batch.num_samples
    source.close()
    assert seen == number
    assert grown < most < number * 256 * 256
