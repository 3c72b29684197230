"""Tar files of others and our own; what is unsafe is refused."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from phalanx.data.packing.find_origin import find_origin
from phalanx.data.packing.options import OriginOptions
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
    origin = find_origin(str(tmp_path), OriginOptions(decode=True))
    inputs, targets = everything(origin)
    np.testing.assert_array_equal(np.array(inputs), images.transpose(0, 3, 1, 2))
    assert targets.tolist() == [0, 1, 0, 1]


def test_several_inputs(tmp_path: Path) -> None:
    members = {}
    for i in range(4):
        depth = io.BytesIO()
        np.save(depth, np.full((2, 3), i, ">f4"))
        members[f"{i}.png"] = png(np.full((5, 4), i, np.uint8))
        members |= {f"{i}.depth.npy": depth.getvalue(), f"{i}.cls": b"%d" % (i % 2)}
    write_tar(tmp_path / "t.tar", members)
    options = OriginOptions(inputs=("png", ".depth.npy"), target="cls", decode=True)
    origin = find_origin(str(tmp_path / "t.tar"), options)
    rows = origin.read(np.arange(4))
    origin.close()
    assert isinstance(rows, dict)
    assert rows["png"][:, 0, 4, 3].tolist() == [0, 1, 2, 3]
    assert rows["depth"][:, 1, 2].tolist() == [0, 1, 2, 3]
    assert (rows["targets"].tolist(), origin.classes) == ([0, 1, 0, 1], ["0", "1"])


def test_attributes_of_macos_are_no_samples(tmp_path: Path) -> None:
    """`._000.png` was a sample of its own, without a label, and the tar was refused."""
    members = {}
    for name, content in (("png", png(np.zeros((4, 4), np.uint8))), ("cls", b"0")):
        members |= {f"a/._0.{name}": b"\0\5\x16\7", f"a/0.{name}": content}
    write_tar(tmp_path / "t.tar", members)
    origin = find_origin(str(tmp_path / "t.tar"), OriginOptions())
    assert everything(origin)[1].tolist() == [0]
    skipped = "2 members ._…, attributes of macOS: a/._0.png, a/._0.cls"
    assert [str(group) for group in origin.skipped] == [skipped]


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
        find_origin(str(tmp_path / "t.tar"), OriginOptions())


def test_tars_that_are_wrong(tmp_path: Path) -> None:
    path = tmp_path / "t.tar"
    array = io.BytesIO()
    np.save(array, np.array([{}], object), allow_pickle=True)
    write_tar(path, {"0.npy": array.getvalue(), "0.cls": b"0"})
    with pytest.raises(UserError, match=r"0.npy at byte 512 is not an array: Object arrays"):
        find_origin(str(path), OriginOptions())
    write_tar(path, {"0.png": png(np.zeros((2, 2), np.uint8)), "0.cls": b"0", "1.cls": b"0"})
    with pytest.raises(UserError, match=r"1.cls at byte \d+: it has no 'png', only cls"):
        find_origin(str(path), OriginOptions())
    with pytest.raises(UserError, match=r"t.tar has no member 'a': it has png, cls"):
        find_origin(str(path), OriginOptions(target=None, inputs=("a", "b")))
    content = path.read_bytes()
    path.write_bytes(content[:700])
    with pytest.raises(UserError, match=r"t.tar"):
        find_origin(str(path), OriginOptions())
    path.write_bytes(b"no tar at all" * 100)
    with pytest.raises(UserError, match="is not a tar, or damaged"):
        find_origin(str(path), OriginOptions())


def numbered(count: int, first: int = 0) -> dict[str, bytes]:
    """Members of samples 000, 001, …: an image and a class each."""
    image = png(np.zeros((2, 2), np.uint8))
    return {
        f"{i:03d}.{ending}": content
        for i in range(first, first + count)
        for ending, content in (("png", image), ("cls", b"%d" % (i % 2)))
    }


def header_of(path: Path, name: str) -> int:
    with tarfile.open(path) as archive:
        return archive.getmember(name).offset


def test_a_tar_that_ends_early_is_refused(tmp_path: Path) -> None:
    """Python's tarfile takes each of these for a shorter archive, without a word."""
    path = tmp_path / "t.tar"
    write_tar(path, numbered(10))
    whole, at = path.read_bytes(), header_of(path, "004.png")
    for offset in (at, at + 100, at + 148, at + 300):
        content = bytearray(whole)
        content[offset] ^= 1
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"damaged: at byte {at} there is neither a member"):
            find_origin(str(path), OriginOptions())
    path.write_bytes(whole[:at])
    with pytest.raises(UserError, match=rf"is cut off: it ends at byte {at} without"):
        find_origin(str(path), OriginOptions())
    path.write_bytes(whole[: at + 200])
    with pytest.raises(UserError, match=r"is cut off|is not a tar, or damaged"):
        find_origin(str(path), OriginOptions())


def test_tars_that_were_joined_are_read_on(tmp_path: Path) -> None:
    parts = []
    for i in range(3):
        write_tar(tmp_path / "part", numbered(4, first=4 * i))
        parts.append((tmp_path / "part").read_bytes())
    path = tmp_path / "t.tar"
    path.write_bytes(b"".join(parts))
    inputs, targets = everything(find_origin(str(path), OriginOptions()))
    assert len(inputs) == 12
    assert targets.tolist() == [0, 1] * 6
    path.write_bytes(parts[0] + b"\0" * 512 + b"rest" * 512)
    with pytest.raises(UserError, match="damaged: at byte"):
        find_origin(str(path), OriginOptions())


def test_a_second_member_of_one_ending_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "t.tar", "w") as archive:
        for name in ("a.cls", "a.png", "a.cls", "a.png"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(UserError, match=r"'a.cls' at byte 1536 is a second .cls of its sample"):
        find_origin(str(tmp_path / "t.tar"), OriginOptions())


def test_members_that_are_not_packed_are_named(tmp_path: Path) -> None:
    members = {}
    for name, content in numbered(12).items():
        members[name] = content
        if name.endswith("cls"):
            members[name.replace("cls", "json")] = b"{}"
    write_tar(tmp_path / "t.tar", members)
    origin = find_origin(str(tmp_path / "t.tar"), OriginOptions())
    assert [str(group) for group in origin.skipped] == [
        "12 members .json, neither inputs nor targets: "
        + ", ".join(f"{i:03d}.json" for i in range(10))
        + " and 2 more"
    ]
    origin.close()
    write_tar(tmp_path / "U.TAR", numbered(2, 12))
    for name in ("c.tgz", ".d.tar"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "more").mkdir()
    origin = find_origin(str(tmp_path), OriginOptions())
    assert origin.num_samples == 14, "endings in capitals are read too"
    assert str(origin.skipped[0]) == "3 hidden or not ending in .tar: " + ", ".join(
        str(tmp_path / name) for name in (".d.tar", "c.tgz", "more")
    )


NPY = io.BytesIO()
np.save(NPY, np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (("cls", b"9" * 30_000), "of 30,000 letters is not a target"),
        (("cls", b" "), r"1.cls at byte \d+: there is no target"),
        (("cls", b"x" * 70_000), "is not a target: it has 70,000 bytes"),
        (("cls", b"\xff"), "is neither text nor an array"),
        (("cls", b"0.5"), r"is not a finite number|0.png"),
        (("targets.npy", NPY.getvalue()[:-1]), "12 bytes, and 11 follow"),
        (
            ("targets.npy", NPY.getvalue().replace(b"(3,), }", b"(1000000000000,), }")),
            "4,000,000,000,000 bytes, and",
        ),
        (("targets.npy", NPY.getvalue().replace(b"(3,)", b"((3,")), "header cannot be read|Cannot"),
    ],
)
def test_targets_that_are_wrong(target: tuple[str, bytes], message: str, tmp_path: Path) -> None:
    (ending, content), image = target, png(np.zeros((2, 2), np.uint8))
    first = io.BytesIO()
    np.save(first, np.zeros(2, np.float32))
    good = first.getvalue() if ending == "targets.npy" else b"cat" if content == b"0.5" else b"0"
    members = {"0.png": image, f"0.{ending}": good, "1.png": image, f"1.{ending}": content}
    write_tar(tmp_path / "t.tar", members)
    if content == b"0.5":
        message = "0.cls at byte .*: the target 'cat' is not a finite number"
    with pytest.raises(UserError, match=message):
        find_origin(str(tmp_path / "t.tar"), OriginOptions(target=ending))


def test_quantities_of_a_tar(tmp_path: Path) -> None:
    members = {}
    for i in range(20):
        members |= {f"{i}.png": png(np.zeros((2, 2), np.uint8)), f"{i}.txt": b"%.3f" % (i * 0.37)}
    write_tar(tmp_path / "t.tar", members)
    origin = find_origin(str(tmp_path / "t.tar"), OriginOptions())
    _, targets = everything(origin)
    assert origin.classes == []
    np.testing.assert_array_equal(targets, np.round(np.arange(20) * 0.37, 3).astype(np.float32))
