"""Tar files of others and our own; what is unsafe is refused."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from phalanx.data.packed.pack import Pack
from phalanx.data.packing.find import find_origin
from phalanx.data.packing.origin import Wanted
from phalanx.data.packing.run import Packing, pack
from phalanx.errors import UserError
from tests.data.packing.read import RANDOM, everything, png

pytest.importorskip("PIL.Image")


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def test_tars_of_others(tmp_path: Path) -> None:
    images = RANDOM.integers(0, 256, (4, 6, 5, 3)).astype(np.uint8)
    for shard in range(2):
        members = {}
        for i in (2 * shard, 2 * shard + 1):
            members |= {f"set/{i:03d}.jpg": png(images[i]), f"set/{i:03d}.cls": b"%d" % (i % 2)}
            members[f"set/{i:03d}.json"] = b"{}"
        write_tar(tmp_path / f"{shard}.tar", members)
    origin = find_origin(str(tmp_path), Wanted(decode=True))
    inputs, targets = everything(origin)
    np.testing.assert_array_equal(np.array(inputs), images.transpose(0, 3, 1, 2))
    assert targets.tolist() == [0, 1, 0, 1]


def test_what_we_packed_is_read_as_a_tar(tmp_path: Path) -> None:
    """Ours are read like those of others."""
    (tmp_path / "t.csv").write_text("a,b,t\n" + "".join(f"{i},{-i},{i % 3}\n" for i in range(20)))
    first = find_origin(str(tmp_path / "t.csv"), Wanted(target="t"))
    pack(first, tmp_path / "p", Packing(layout="tar", validation=0, shard_mb=0.01))
    again = find_origin(str(tmp_path / "p" / "train"), Wanted(kind="tar"))
    inputs, targets = everything(again)
    (train,) = (Pack(tmp_path / "p" / "train"),)
    np.testing.assert_array_equal(np.array(inputs), train.read("inputs", np.arange(20)))
    np.testing.assert_array_equal(targets, train.read("targets", np.arange(20)))
    assert len(train.shards) > 1
    train.close()


def link(name: str, kind: bytes, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (tarfile.TarInfo("/etc/0.cls"), "'/etc/0.cls' leaves the folder"),
        (tarfile.TarInfo("a/../../0.cls"), "leaves the folder"),
        (link("0.cls", tarfile.SYMTYPE, "/etc/passwd"), "is a link or no plain file"),
        (link("0.cls", tarfile.LNKTYPE, "0.jpg"), "is a link or no plain file"),
        (link("0.cls", tarfile.CHRTYPE, ""), "is a link or no plain file"),
        (link("0.cls", tarfile.FIFOTYPE, ""), "is a link or no plain file"),
    ],
)
def test_unsafe_members_are_refused(info: tarfile.TarInfo, message: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "t.tar", "w") as archive:
        archive.addfile(info)
    with pytest.raises(UserError, match=message):
        find_origin(str(tmp_path / "t.tar"), Wanted())


def test_tars_that_are_wrong(tmp_path: Path) -> None:
    path = tmp_path / "t.tar"
    array = io.BytesIO()
    np.save(array, np.array([{}], object), allow_pickle=True)
    write_tar(path, {"0.npy": array.getvalue(), "0.cls": b"0"})
    with pytest.raises(UserError, match=r"0.npy at byte 512 is no array: Object arrays"):
        find_origin(str(path), Wanted())
    write_tar(path, {"0.png": png(np.zeros((2, 2), np.uint8)), "0.cls": b"0", "1.cls": b"0"})
    with pytest.raises(UserError, match=r"1.cls at byte \d+: its sample has no member .png"):
        find_origin(str(path), Wanted())
    with pytest.raises(UserError, match=r"name one ending each .* cls, png"):
        find_origin(str(path), Wanted(target=None, inputs=("a", "b")))
    content = path.read_bytes()
    path.write_bytes(content[:700])
    with pytest.raises(UserError, match=r"t.tar"):
        find_origin(str(path), Wanted())
    path.write_bytes(b"no tar at all" * 100)
    with pytest.raises(UserError, match="is not a tar, or damaged"):
        find_origin(str(path), Wanted())
