"""A folder with its splits, there whole or not at all."""

from pathlib import Path

import numpy as np
import pytest

from phalanx.data.packed.hidden_folder import hidden_folder
from phalanx.data.packed.pack import Pack
from phalanx.data.packed.shard_writers import Rows
from phalanx.data.packing import run
from phalanx.data.packing.options import OriginOptions
from phalanx.data.packing.origin import Origin
from phalanx.data.packing.run import PackingOptions, pack
from phalanx.data.packing.table import ArrayTable, Numbers
from phalanx.errors import UserError

NUM_SAMPLES = 100
CONTENT = np.arange(NUM_SAMPLES * 4, dtype=np.float32).reshape(NUM_SAMPLES, 4)
SMALL_SHARDS = PackingOptions(shard_mb=0.0004, seed=3)


class Interrupted(Origin):
    """Its reader is stopped after so many calls."""

    def __init__(self, num_reads: int, text: str = "numbers") -> None:
        targets = np.arange(NUM_SAMPLES) % 7
        classes = [str(i) for i in range(7)]
        arrays = {"inputs": CONTENT, "targets": targets}
        table = ArrayTable(text, arrays, classes=classes, fingerprint="1")
        super().__init__(table, OriginOptions())
        self.num_reads = num_reads

    def read(self, numbers: Numbers) -> Rows:
        self.num_reads -= 1
        if self.num_reads < 0:
            raise KeyboardInterrupt
        return super().read(numbers)


@pytest.fixture(autouse=True)
def ten_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_READ_SAMPLES", 10)


def content_of(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def test_both_splits_hold_every_sample_once(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    indices = pack(Interrupted(99), tmp_path / "p", SMALL_SHARDS, lambda *what: told.append(what))
    assert {name: index.num_samples for name, index in indices.items()} == {
        "train": 90,
        "validation": 10,
    }
    assert told[0] == ("train", 0, 90)
    assert told[-1] == ("validation", 10, 10)
    values = []
    for name in indices:
        split = Pack(tmp_path / "p" / name)
        inputs = split.read("inputs", np.arange(split.num_samples))
        targets = split.read("targets", np.arange(split.num_samples))
        np.testing.assert_array_equal(targets, inputs[:, 0] / 4 % 7)
        values += inputs.tolist()
        split.close()
    assert sorted(values) == CONTENT.tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p"]
    train = indices["train"].fields[0]
    assert train.mean is not None
    assert len(train.mean) == 4
    assert indices["train"].classes == list("0123456")
    assert indices["train"].source == "numbers; seed 3"


@pytest.mark.parametrize("num_reads", [0, 4, 9])
def test_interrupted_and_gone_on_with(num_reads: int, tmp_path: Path) -> None:
    pack(Interrupted(99), tmp_path / "whole", SMALL_SHARDS)
    with pytest.raises(KeyboardInterrupt):
        pack(Interrupted(num_reads), tmp_path / "p", SMALL_SHARDS)
    assert not (tmp_path / "p").exists()
    origin = Interrupted(99)
    pack(origin, tmp_path / "p", SMALL_SHARDS)
    assert content_of(tmp_path / "p") == content_of(tmp_path / "whole")
    if num_reads == 9:
        assert origin.num_reads == 98, "the training samples are not read again"


def test_what_was_begun_and_cannot_be_read_is_begun_anew(tmp_path: Path) -> None:
    """One byte that is no UTF-8 stopped `data pack` for ever."""
    with pytest.raises(KeyboardInterrupt):
        pack(Interrupted(4), tmp_path / "p", SMALL_SHARDS)
    path = hidden_folder(tmp_path / "p") / ".arguments.json"
    path.write_bytes(path.read_bytes().replace(b"numbers", b"number\xff"))
    pack(Interrupted(99), tmp_path / "whole", SMALL_SHARDS)
    pack(Interrupted(99), tmp_path / "p", SMALL_SHARDS)
    assert content_of(tmp_path / "p") == content_of(tmp_path / "whole")


def test_other_options_do_not_go_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        pack(Interrupted(4), tmp_path / "p", SMALL_SHARDS)
    with pytest.raises(UserError, match=r"part of a pack of numbers.*\n.*start anew"):
        pack(Interrupted(99), tmp_path / "p", PackingOptions(seed=4))
    with pytest.raises(UserError, match="start anew with --overwrite"):
        pack(Interrupted(99, "other numbers"), tmp_path / "p", SMALL_SHARDS)
    pack(Interrupted(99), tmp_path / "p", PackingOptions(seed=4, overwrite=True))
    assert not hidden_folder(tmp_path / "p").exists()


def test_a_pack_is_replaced_when_the_new_one_is_whole(tmp_path: Path) -> None:
    pack(Interrupted(99), tmp_path / "p", SMALL_SHARDS)
    before = content_of(tmp_path / "p")
    with pytest.raises(UserError, match=r"is a pack already.* --overwrite"):
        pack(Interrupted(99), tmp_path / "p", SMALL_SHARDS)
    other = PackingOptions(seed=5, overwrite=True)
    with pytest.raises(KeyboardInterrupt):
        pack(Interrupted(4), tmp_path / "p", other)
    assert content_of(tmp_path / "p") == before
    pack(Interrupted(99), tmp_path / "p", other)
    assert content_of(tmp_path / "p") != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p"]


def test_folders_that_are_taken_or_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    with pytest.raises(UserError, match="exists and is not a pack"):
        pack(Interrupted(99), tmp_path / "letters", PackingOptions(overwrite=True))
    with pytest.raises(UserError, match="cannot be written: Not a directory"):
        pack(Interrupted(99), tmp_path / "letters" / "a.txt" / "p", PackingOptions())
    usage = run.shutil.disk_usage(tmp_path)._replace(free=1999)
    monkeypatch.setattr(run.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(UserError, match=r"has 0\.0 MB free, and 0\.0 MB are needed"):
        pack(Interrupted(99), tmp_path / "p", PackingOptions())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["letters"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard_mb": 0}, "--shard-mb must be positive, not 0"),
        ({"shard_mb": float("nan")}, "--shard-mb must be positive, not nan"),
        ({"validation": 1.0}, "--validation must be from 0 to below 1"),
        ({"seed": -1}, "--seed must not be negative"),
    ],
)
def test_options_that_cannot_be(options: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PackingOptions(**options)  # type: ignore[arg-type]
