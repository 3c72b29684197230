"""A manifest is as it was written, to the bit, or refused in a line or two."""

import hashlib
import os
import random
from pathlib import Path

import msgspec
import pytest

from phalanx.checkpoints.folder import replacing
from phalanx.checkpoints.manifest import (
    MANIFEST,
    MODEL_FILE,
    OPTIMIZER_FILE,
    Manifest,
    StoredFile,
    folder_name,
    read_manifest,
    verify,
    write_manifest,
)
from phalanx.errors import UserError
from phalanx.records.progress import position_of


def manifest(**others: object) -> Manifest:
    plain = {
        "phalanx": "0", "model": "mlp", "dtype": "float32", "optimizer": "adam", "seed": 0,
        "dataset": "digits", "global_batch_size": 128, "epochs_done": 1, "run": "a run",
    }  # fmt: skip
    return Manifest(**{**plain, **others})  # type: ignore[arg-type]


def save(folder: Path, **others: object) -> Path:
    """A checkpoint whose tensors are bytes that nobody reads."""
    document = manifest(**others)
    target = folder / folder_name(*document.position)
    with replacing(target) as new:
        (new / MODEL_FILE).write_bytes(b"weights")
        (new / OPTIMIZER_FILE).write_bytes(b"moments")
        write_manifest(new, document)
    return target


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    recipe = {"lr": 1e-3, "clip_norm": None, "augment": False, "epochs": 5, "data": ""}
    found = verify(save(tmp_path, recipe=recipe, samples_seen=640, program={"width": 3}))
    expected = manifest(recipe=recipe, samples_seen=640, program={"width": 3})
    assert msgspec.structs.replace(found, files={}, sha256="", saved_at=expected.saved_at) == (
        expected
    )
    assert set(found.files) == {MODEL_FILE, OPTIMIZER_FILE}


def test_every_flipped_bit_is_refused(tmp_path: Path) -> None:
    """Each byte of the file with a bit of it, chosen by a seed."""
    path = save(tmp_path, recipe={"lr": 0.5}) / MANIFEST
    content, chosen = path.read_bytes(), random.Random(5)
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << chosen.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(UserError) as caught:
            verify(path.parent)
        assert str(caught.value).count("\n") <= 1
    path.write_bytes(content)
    verify(path.parent)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"samples_seen": -5}, "samples_seen"),
        ({"epochs_done": -7}, "epochs_done"),
        ({"global_batch_size": 0}, "global_batch_size"),
        ({"seed": -1}, "seed"),
        ({"schema": 99}, "newer Phalanx: update"),
        ({"schema": 2}, r"older Phalanx \(manifest schema 2, this one reads 5\)"),
    ],
)
def test_numbers_out_of_range_are_refused(
    tmp_path: Path, others: dict[str, int], words: str
) -> None:
    folder = tmp_path / "epoch-0001"
    folder.mkdir()
    for name in (MODEL_FILE, OPTIMIZER_FILE):
        (folder / name).write_bytes(b"")
    write_manifest(folder, manifest(**others))  # with a checksum that is right
    with pytest.raises(UserError, match=words):
        read_manifest(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is damaged"),
        (b"\xff\xfe", "is damaged"),
        (b"[" * 100_000, "is damaged"),
        (b'{"schema": 5, "phalanx": "0"}', "is damaged"),
        (b"{}", "older Phalanx"),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(UserError, match=words):
        read_manifest(tmp_path)


@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_a_manifest_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / MANIFEST)
    with pytest.raises(UserError, match="Not a regular file"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["../../home/.ssh/authorized_keys", "/etc/passwd", ".lock"])
def test_a_file_outside_of_the_checkpoint_is_refused(tmp_path: Path, name: str) -> None:
    """Resuming a stranger's checkpoint where nodes share no folder wrote a file of any name on the
    other node: its key into `authorized_keys`."""
    stored = StoredFile(sha256="", bytes=0)
    files = {MODEL_FILE: stored, OPTIMIZER_FILE: stored, name: stored}
    unsigned = manifest(files=files, saved_at=1.0)
    digest = hashlib.sha256(msgspec.json.encode(unsigned)).hexdigest()
    signed = msgspec.structs.replace(unsigned, sha256=digest)
    (tmp_path / MANIFEST).write_bytes(msgspec.json.encode(signed))
    with pytest.raises(UserError, match=r"is damaged: Expected `str` matching .*`key` in .*files"):
        read_manifest(tmp_path)


def test_both_files_must_be_named(tmp_path: Path) -> None:
    (tmp_path / MODEL_FILE).write_bytes(b"weights")
    write_manifest(tmp_path, manifest())
    with pytest.raises(UserError, match=r"does not list optimizer\.safetensors"):
        read_manifest(tmp_path)


def test_a_file_that_is_none_is_missing(tmp_path: Path) -> None:
    saved = save(tmp_path)
    (saved / MODEL_FILE).unlink()
    os.mkfifo(saved / MODEL_FILE)  # reading it would never end
    with pytest.raises(UserError, match=r"model\.safetensors is missing"):
        verify(saved)


def test_names_say_the_position() -> None:
    for position in ((0, 0), (12, 0), (3, 640), (10_000, 123_456_789)):
        assert position_of(folder_name(*position)) == position
    assert position_of("epoch-0001-step-000003") == (1, 3)
    assert position_of(".epoch-0007.old") == (7, 0)
