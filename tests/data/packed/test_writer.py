"""A pack is there whole or not at all, and what was interrupted goes on to the same bytes."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.data.packed.hidden_folder import hidden_folder
from phalanx.data.packed.index import Field
from phalanx.data.packed.pack import Pack
from phalanx.data.packed.writer import PackWriter
from phalanx.errors import UserError
from tests.data.packed.made import IMAGES, Kind, fields_of, files_of, folder, make, rows, sample_of

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parent / "programs" / "pack_slowly.py"
kinds = pytest.mark.parametrize("kind", ["png", "raw"])


class StoppedError(Exception):
    pass


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["png", "raw"]),
    st.integers(1, 5_000),
    st.integers(1, 40),
    st.lists(st.integers(0, 39), max_size=3),
)
def test_going_on_gives_the_same_bytes(
    kind: Kind, shard_bytes: int, num_samples: int, stops: list[int]
) -> None:
    content = rows(IMAGES, num_samples)

    def pack_until(path: Path, stop: int | None) -> None:
        with PackWriter(path, fields=fields_of(kind), shard_bytes=shard_bytes) as writer:
            while writer.num_samples < num_samples:
                if stop is not None and writer.num_samples >= stop:
                    raise StoppedError
                i = writer.num_samples
                writer.add(sample_of(content, i, kind))

    with folder() as path:
        for stop in stops:
            if stop < num_samples:
                with pytest.raises(StoppedError):
                    pack_until(path / "interrupted", stop)
                assert not (path / "interrupted").exists()
        pack_until(path / "interrupted", None)
        pack_until(path / "whole", None)
        assert files_of(path / "interrupted") == files_of(path / "whole")
        assert not hidden_folder(path / "interrupted").exists()


def test_a_killed_process_goes_on(tmp_path: Path) -> None:
    kind: Kind = "png"
    for killed_at in (40, 97):
        with start(tmp_path / "killed", kind) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) >= killed_at:
                    process.kill()
                    break
        assert not (tmp_path / "killed").exists()
    for name in ("killed", "whole"):
        with start(tmp_path / name, kind) as process:
            first = int(process.communicate(timeout=60)[0].split()[0])
        assert process.returncode == 0
        assert first > 80 if name == "killed" else first == 1, "whole shards are not packed again"
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


def start(path: Path, kind: Kind) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(path), kind],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 128 KiB; apart from the folders that other tests' runs clear away."""
    place = Path(tempfile.mkdtemp(prefix="phalanx-small-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)]
    is_mounted = os.geteuid() == 0 and not subprocess.run(mount, capture_output=True).returncode
    try:
        if not is_mounted:
            pytest.skip("no disk can be mounted here")
        yield place
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(place)], check=True)
        place.rmdir()


@kinds
def test_a_full_disk_leaves_what_was_there(kind: Kind, small_disk: Path) -> None:
    make(small_disk / "before", kind, num_samples=10)
    before = files_of(small_disk / "before")
    filler = small_disk / "filler"
    filler.write_bytes(bytes(60_000))
    content = rows(IMAGES, 4000)

    def writer() -> PackWriter:
        return PackWriter(small_disk / "p", fields=fields_of(kind), shard_bytes=10_000)

    full = pytest.raises(UserError, match=r"No space left on device.*saved in .*\nfree some space")
    with full, writer() as first:
        for number in range(4000):
            first.add(sample_of(content, number, kind))
    assert files_of(small_disk / "before") == before
    assert not (small_disk / "p").exists()
    filler.unlink()
    second = writer()
    kept = second.num_samples
    assert kept > 0, "whole shards are kept"
    for number in range(kept, kept + 5):
        second.add(sample_of(content, number, kind))
    second.finish()
    pack = Pack(small_disk / "p")
    got = pack.read("inputs", np.arange(kept + 5))
    np.testing.assert_array_equal(got, content["inputs"][: kept + 5])
    pack.close()


def test_other_arguments_are_refused(tmp_path: Path) -> None:
    first = PackWriter(tmp_path / "p", fields=IMAGES, source="cats")
    with pytest.raises(StoppedError), first:
        raise StoppedError
    with pytest.raises(UserError, match="part of a pack of cats, which has changed or was"):
        PackWriter(tmp_path / "p", fields=IMAGES, source="dogs")
    make(tmp_path / "q", "raw")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with pytest.raises(StoppedError), PackWriter(tmp_path / "p", fields=IMAGES):
        with pytest.raises(UserError, match="being packed by another process"):
            PackWriter(tmp_path / "p", fields=IMAGES)
        raise StoppedError


def test_names_that_are_taken(tmp_path: Path) -> None:
    make(tmp_path / "pack", "raw")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="is a pack already"):
        PackWriter(tmp_path / "pack", fields=IMAGES)
    with pytest.raises(UserError, match="exists and is not a pack"):
        PackWriter(tmp_path / "other", fields=IMAGES)
    make(tmp_path / "empty", "raw")


def test_no_samples_are_no_pack(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no samples to pack"):
        PackWriter(tmp_path / "p", fields=IMAGES).finish()
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (Field(name="a/b", dtype="uint8", shape=[]), "letters, digits"),
        (Field(name="..", dtype="uint8", shape=[]), "letters, digits"),
        (Field(name="a", dtype="object", shape=[]), "not one of numbers"),
        (Field(name="a", dtype="uint7", shape=[]), "no dtype 'uint7'"),
        (Field(name="a", dtype="uint8", shape=[-1]), "is not the shape of a sample"),
        (Field(name="a", dtype="int64", shape=[1, 2, 2], encoding="png"), "png needs uint8"),
        (Field(name="a", dtype="uint8", shape=[2, 2], encoding="png"), "png needs"),
    ],
)
def test_fields_that_cannot_be(field: Field, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        PackWriter(tmp_path / "p", fields=[field])
    assert not list(tmp_path.iterdir())


def test_samples_that_do_not_fit(tmp_path: Path) -> None:
    good = rows(IMAGES, 3)
    cases = {
        "has the fields": {"inputs": good["inputs"]},
        "different numbers of rows": {"inputs": good["inputs"], "targets": good["targets"][:2]},
        r"takes uint8 of \(1, 4, 4\), not int64": {**good, "inputs": good["inputs"].astype(int)},
        r"not int64 of \(1,\)": {**good, "targets": good["targets"][:, None]},
        # Whose elements alone would pass, and be cut off: 2.7 was packed as 2.
        "not object of": {**good, "targets": np.array([np.int64(1), 2.7, True], object)},
        "not >i8 of": {**good, "targets": good["targets"].astype(">i8")},
    }
    with PackWriter(tmp_path / "p", fields=IMAGES) as writer:
        for message, wrong in cases.items():
            with pytest.raises(ValueError, match=message):
                writer.add_rows(wrong)
        with pytest.raises(ValueError, match="takes an array of uint8, not bytes"):
            writer.add({"inputs": b"x", "targets": good["targets"][0, ...]})
        writer.add_rows(good)
    pack = Pack(tmp_path / "p")
    assert pack.num_samples == 3
    pack.close()


def test_mean_and_deviation(tmp_path: Path) -> None:
    fields = [
        Field(name="image", dtype="uint8", shape=[3, 4, 5]),
        Field(name="features", dtype="float32", shape=[7]),
        Field(name="tokens", dtype="int64", shape=[6]),
    ]
    random = np.random.default_rng(0)
    content = {
        "image": random.integers(0, 256, (50, 3, 4, 5)).astype(np.uint8),
        "features": 1e4 + random.random((50, 7), np.float32),
        "tokens": random.integers(0, 9, (50, 6)),
    }
    with PackWriter(
        tmp_path / "p", fields=fields, measure=["image", "features", "tokens"]
    ) as writer:
        writer.add_rows(content)
    pack = Pack(tmp_path / "p")
    for name, axes in {"image": (0, 2, 3), "features": (0,), "tokens": (0, 1)}.items():
        values = content[name].astype(np.float64)
        np.testing.assert_allclose(pack.fields[name].mean, np.atleast_1d(values.mean(axes)))
        np.testing.assert_allclose(pack.fields[name].deviation, np.atleast_1d(values.std(axes)))
    pack.close()
