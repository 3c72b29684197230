"""Choice of a data set, its search path, and the errors when it is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.data.datasets.catalog import digits_file, fetch_folder, resolve
from phalanx.data.published.file_sets import MNIST_FILES
from phalanx.errors import UserError
from phalanx.records.files import cache_folder


def make_mnist(folder: Path) -> Path:
    """Four files of the right names and sizes; zeros, which take no room on disk."""
    folder.mkdir(parents=True)
    for file in MNIST_FILES:
        with (folder / file.name).open("wb") as empty:
            empty.truncate(file.num_bytes)
    return folder


def test_digits_are_taken_when_asked_for() -> None:
    choice = resolve("digits", Path("/nowhere"))
    assert (choice.name, choice.folder) == ("digits", None)


def test_auto_without_mnist_takes_digits_and_says_why(cache_home: Path) -> None:
    choice = resolve("auto")
    assert choice.name == "digits"
    assert choice.reason == (
        f"embedded digits (no MNIST in {cache_home / 'phalanx'}; "
        "`phalanx data fetch mnist` gets it)"
    )


@pytest.mark.parametrize("layout", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("name", ["auto", "mnist"])
def test_mnist_is_found_in_a_root_or_below_it(tmp_path: Path, layout: str, name: str) -> None:
    folder = make_mnist(tmp_path / "root" / layout)
    choice = resolve(name, tmp_path / "root")
    assert (choice.name, choice.folder) == ("mnist", folder)
    assert str(folder) in choice.reason


def test_zipped_files_serve_too(mnist_copy: Path) -> None:
    assert resolve("mnist", mnist_copy).folder == mnist_copy
    assert resolve("mnist", mnist_copy.parent).folder == mnist_copy


def test_argument_then_variable_then_cache(
    tmp_path: Path, cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_cache = make_mnist(cache_home / "phalanx" / "mnist")
    assert resolve("auto").folder == in_cache
    monkeypatch.setenv("PHALANX_DATA", str(tmp_path / "variable"))
    assert resolve("auto").folder == in_cache
    by_variable = make_mnist(tmp_path / "variable")
    assert resolve("auto").folder == by_variable
    by_argument = make_mnist(tmp_path / "argument")
    assert resolve("auto", tmp_path / "argument").folder == by_argument


def test_a_root_that_was_named_is_the_only_one(tmp_path: Path, cache_home: Path) -> None:
    make_mnist(cache_home / "phalanx" / "mnist")
    with pytest.raises(UserError, match=f"there is no MNIST in {tmp_path}\n.*data fetch mnist"):
        resolve("mnist", tmp_path)


@pytest.mark.parametrize("name", ["auto", "mnist"])
def test_a_root_that_does_not_exist_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=f"--data-root {tmp_path / 'no'} is not a folder"):
        resolve(name, tmp_path / "no")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="unknown data set 'cifar': choose one of auto, digits"):
        resolve("cifar")


def test_what_an_incomplete_copy_lacks_is_named(tmp_path: Path) -> None:
    folder = make_mnist(tmp_path / "mnist")
    (folder / "t10k-labels-idx1-ubyte").unlink()
    lack = f"the MNIST in {folder} lacks t10k-labels-idx1-ubyte.gz"
    with pytest.raises(UserError, match=lack):
        resolve("mnist", tmp_path)
    assert resolve("auto", tmp_path).reason.startswith(f"embedded digits ({lack}; ")


@pytest.mark.parametrize("name", ["auto", "mnist"])
def test_a_truncated_file_is_an_error_for_auto_too(tmp_path: Path, name: str) -> None:
    path = make_mnist(tmp_path / "mnist") / "train-labels-idx1-ubyte"
    path.write_bytes(b"\0" * 1000)
    with pytest.raises(UserError, match=f"{path} is truncated: expected 60008 .*, found 1000\n"):
        resolve(name, tmp_path)


def test_a_truncated_zip_is_an_error(mnist_copy: Path) -> None:
    path = mnist_copy / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:1_000_000])
    with pytest.raises(UserError, match=f"{path} is truncated or damaged"):
        resolve("auto", mnist_copy)


def test_a_download_goes_where_a_run_looks_first(
    tmp_path: Path, cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fetch_folder(None) == cache_home / "phalanx" / "mnist"
    monkeypatch.setenv("PHALANX_DATA", str(tmp_path / "variable"))
    assert fetch_folder(None) == tmp_path / "variable" / "mnist"
    assert fetch_folder(tmp_path / "argument") == tmp_path / "argument" / "mnist"
    flat = make_mnist(tmp_path / "flat")
    assert fetch_folder(flat) == flat


def test_cache_folder_follows_the_convention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/somebody/.cache/phalanx")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative paths are to be ignored")
    assert cache_folder() == Path("/home/somebody/.cache/phalanx")
    assert digits_file().parent == cache_folder()


def test_the_launcher_asks_without_torch_or_numpy() -> None:
    program = (
        "import sys; from phalanx.data.datasets.catalog import resolve; resolve('auto');"
        "print({'torch', 'numpy', 'sklearn'} & set(sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.stdout == "set()\n", answer.stderr


def test_digits_without_what_they_are_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are taken from the cache, or refused before anything is started."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("phalanx.data.datasets.catalog.find_spec", lambda _: None)
    for name in ("digits", "auto"):
        with pytest.raises(UserError, match=r"scikit-learn, .* pip install 'phalanx\[study\]'"):
            resolve(name)
    digits_file().parent.mkdir()
    digits_file().write_bytes(b"")
    assert resolve("digits").name == "digits"
