"""MNIST's way from mirrors to a verified folder, with mirrors that do all that mirrors do."""

import gzip
import hashlib
from pathlib import Path

import pytest

from phalanx.data.file_lock import exclusive
from phalanx.data.published.fetch_mnist import fetch_mnist
from phalanx.data.published.file_sets import MNIST_FILES, PublishedFile, is_verified
from phalanx.errors import UserError
from tests.data.published.mirror import Manner, serve

CONTENTS = {"one": bytes(range(256)) * 1000, "two": b"2" * 5000}
FILES = [
    PublishedFile(name=name, num_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    for name, content in CONTENTS.items()
]
GOOD = {f"{name}.gz": gzip.compress(content) for name, content in CONTENTS.items()}
STORED = {f"{name}.gz": gzip.compress(content, 0) for name, content in CONTENTS.items()}
WRONG = {name: gzip.compress(b"something else") for name in GOOD}


class Notes:
    """Keeps what a user would see."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.received: dict[str, int] = {}

    def note(self, line: str) -> None:
        self.lines.append(line)

    def progress(self, file: str, received_bytes: int, total_bytes: int | None) -> None:
        assert total_bytes is None or received_bytes <= total_bytes
        self.received[file] = received_bytes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "root" / "mnist"


def fetch(folder: Path, *mirrors: str, timeout_s: float = 10) -> Notes:
    notes = Notes()
    fetch_mnist(folder, notes, mirrors=mirrors, files=FILES, timeout_s=timeout_s)
    return notes


def visible(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def check_complete(folder: Path) -> None:
    assert visible(folder) == set(GOOD)
    assert all(is_verified(folder, file) for file in FILES)


def test_files_come_verified_and_are_not_asked_for_again(folder: Path) -> None:
    with serve(GOOD) as mirror:
        notes = fetch(folder, mirror.url)
        assert notes.lines == []
        assert notes.received == {name: len(content) for name, content in GOOD.items()}
        check_complete(folder)
        again = fetch(folder, mirror.url)
        assert again.lines == [f"{name} already exists, verified" for name in GOOD]
        assert len(mirror.asked) == 2


@pytest.mark.parametrize("manner", ["error", "silent", "cut"])
def test_a_mirror_that_fails_is_named_and_the_next_is_asked(folder: Path, manner: Manner) -> None:
    with serve(STORED, manner) as bad, serve(STORED) as good:
        notes = fetch(folder, bad.url, good.url, timeout_s=0.5)
        check_complete(folder)
        assert [line.split(": ")[0] for line in notes.lines] == [bad.url + name for name in GOOD]
        assert "\n" not in "".join(notes.lines)


def test_wrong_bytes_are_refused_and_removed(folder: Path) -> None:
    with (
        serve(WRONG) as mirror,
        pytest.raises(UserError, match=r"none of 1 mirrors served one\.gz"),
    ):
        fetch(folder, mirror.url)
    assert visible(folder) == set()


def test_after_wrong_bytes_the_next_mirror_is_asked(folder: Path) -> None:
    with serve(WRONG) as bad, serve(GOOD) as good:
        notes = fetch(folder, bad.url, good.url)
    check_complete(folder)
    assert "served a file with a wrong checksum" in notes.lines[0]


def test_an_error_page_is_not_a_file(folder: Path) -> None:
    pages = dict.fromkeys(GOOD, b"<html>Please log in to this network</html>")
    with serve(pages) as mirror, pytest.raises(UserError):
        fetch(folder, mirror.url)
    assert visible(folder) == set()


def test_files_that_came_are_kept_for_the_next_call(folder: Path) -> None:
    with serve({"one.gz": GOOD["one.gz"]}) as mirror:
        with pytest.raises(UserError, match="run the same command to resume") as caught:
            fetch(folder, mirror.url)
        assert len(str(caught.value).splitlines()) == 2
        assert visible(folder) == {"one.gz"}
        mirror.files = GOOD
        notes = fetch(folder, mirror.url)
        assert notes.lines == ["one.gz already exists, verified"]
    check_complete(folder)


def test_a_damaged_file_is_replaced(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "one").write_bytes(b"damaged")
    (folder / "two.gz").write_bytes(GOOD["two.gz"][:-3])
    with serve(GOOD) as mirror:
        fetch(folder, mirror.url)
    check_complete(folder)


def test_a_small_zip_that_unzips_without_end_is_refused(folder: Path) -> None:
    bombs = {name: gzip.compress(bytes(50_000_000)) for name in GOOD}
    with serve(bombs) as mirror, pytest.raises(UserError):
        fetch(folder, mirror.url)
    assert visible(folder) == set()


def test_two_fetches_do_not_write_the_same_part(folder: Path) -> None:
    with (
        exclusive(folder / "fetch", timeout_s=0),
        serve(GOOD) as mirror,
        pytest.raises(UserError, match="another `phalanx data fetch` is writing to"),
    ):
        fetch(folder, mirror.url)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file")
    with pytest.raises(UserError, match=r"root/mnist cannot be written: Not a directory"):
        fetch(tmp_path / "root" / "mnist", "http://127.0.0.1:9/")


def test_only_web_addresses_are_mirrors(folder: Path) -> None:
    with pytest.raises(UserError, match="an http:// or https:// address, not 'file:///etc/'"):
        fetch(folder, "file:///etc/")
    assert not folder.exists()


def test_all_of_mnist(mnist_folder: Path, folder: Path) -> None:
    files = {file.gz_name: (mnist_folder / file.gz_name).read_bytes() for file in MNIST_FILES}
    with serve(files) as mirror:
        fetch_mnist(folder, Notes(), mirrors=[mirror.url])
    assert all(is_verified(folder, file) for file in MNIST_FILES)
