"""`phalanx data` as it is typed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.data.published.file_sets import MNIST_FILES
from tests.data.published.mirror import serve


def phalanx(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "phalanx", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | variables,
    )


def test_fetch_then_list(mnist_folder: Path, tmp_path: Path) -> None:
    files = {file.gz_name: (mnist_folder / file.gz_name).read_bytes() for file in MNIST_FILES}
    root = str(tmp_path / "data")
    with serve({}) as bad, serve(files) as good:
        mirrors = ("--mirror", bad.url, "--mirror", good.url)
        answer = phalanx("data", "fetch", "mnist", "--data-root", root, *mirrors)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == f"mnist: complete and verified in {root}/mnist\n"
    assert f"{bad.url}train-images-idx3-ubyte.gz: 404 Not Found" in answer.stderr
    listed = phalanx("data", "list", PHALANX_DATA=root).stdout.splitlines()
    assert listed[0].split() == ["data", "training", "validation", "state", "where"]
    assert listed[2].split() == ["mnist", "60000", "10000", "verified", f"{root}/mnist"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fetch", "mnist", "--mirror", "ftp://x/"], "a mirror is an http:// or https:// address"),
        (["fetch", "imagenet"], "imagenet"),
        (["list", "--data-root", "/does/not/exist"], "--data-root /does/not/exist is not a folder"),
    ],
)
def test_bad_words_end_with_a_line_and_code_2(words: list[str], message: str) -> None:
    answer = phalanx("data", *words)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr.startswith("phalanx: ")
    assert message in answer.stderr
    assert len(answer.stderr.strip().splitlines()) <= 2


def test_no_mirror_serves(tmp_path: Path) -> None:
    with serve({}) as mirror:
        answer = phalanx("data", "fetch", "mnist", "--mirror", mirror.url)
    assert answer.returncode == 2
    note, first, second = answer.stderr.strip().splitlines()
    assert note == f"{mirror.url}train-images-idx3-ubyte.gz: 404 Not Found"
    assert first == "phalanx: none of 1 mirrors served train-images-idx3-ubyte.gz"
    assert second.startswith("run the same command to resume")
