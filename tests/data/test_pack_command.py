"""`phalanx data pack` and `phalanx data verify` as they are typed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from phalanx.data.packed.pack import Pack
from tests.data.test_command import phalanx


def table(path: Path, num_rows: int) -> str:
    rows = (f"{i},{i / 8},{'ab'[i % 2]}" for i in range(num_rows))
    path.write_text("\n".join(["x,y,kind", *rows]) + "\n")
    return str(path)


def test_pack_then_verify_then_damage(tmp_path: Path) -> None:
    source, folder = table(tmp_path / "t.csv", 40), str(tmp_path / "t.pack")
    answer = phalanx("data", "pack", source, folder, "--target", "kind")
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert lines[0].split() == ["split", "samples", "shards", "MB", "fields"]
    assert lines[1].split()[:3] == ["train", "36", "1"]
    assert lines[2].split()[:3] == ["validation", "4", "1"]
    assert lines[3] == "2 classes: a, b"
    assert lines[-1] == f"next: phalanx train --data {folder}"
    answer = phalanx("data", "verify", folder)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("samples: train 36, validation 4\n")
    assert answer.stdout.endswith("all intact\n")
    shard = tmp_path / "t.pack" / "train" / "shard-00000.inputs.npy"
    content = bytearray(shard.read_bytes())
    content[128 + 3 * 8] ^= 1  # inputs of sample 3
    shard.write_bytes(content)
    answer = phalanx("data", "verify", folder)
    assert answer.returncode == 1
    assert answer.stdout.splitlines() == [
        f"{shard} is not what was written",
        "  sample 3, shard-00000.inputs.npy byte 152: is not what was packed",
    ]
    assert answer.stderr.endswith(f"phalanx: 1 of 6 files of {folder} are damaged\n")
    shard.with_name("index.json").unlink()
    answer = phalanx("data", "verify", folder)
    assert answer.returncode == 1
    assert answer.stderr.endswith(
        f"phalanx: {folder} is incomplete: {folder}/train has 1 shards and no index.json: it is "
        "damaged or incomplete\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pack", "{csv}", "{folder}"], "choose one with --target: x, y, kind"),
        (
            ["pack", "{csv}", "{folder}", "--target", "x", "--size", "9"],
            "--size takes HEIGHTxWIDTH",
        ),
        (["verify", "{folder}"], "is not a pack: it has no index.json"),
    ],
)
def test_bad_words_end_with_a_line_and_code_2(
    words: list[str], message: str, tmp_path: Path
) -> None:
    places = {"csv": table(tmp_path / "t.csv", 4), "folder": str(tmp_path / "t.pack")}
    answer = phalanx("data", *(word.format(**places) for word in words))
    assert answer.returncode == 2
    assert message in answer.stderr
    assert answer.stderr.startswith("phalanx: ")
    assert len(answer.stderr.strip().splitlines()) <= 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv"]


def test_stopped_by_the_keyboard_and_gone_on_with(tmp_path: Path) -> None:
    words = ["data", "pack", table(tmp_path / "t.csv", 6_000), str(tmp_path / "t.pack")]
    words += ["--target", "kind", "--shard-mb", "0.002"]
    with subprocess.Popen(
        [sys.executable, "-m", "phalanx", *words], stderr=subprocess.PIPE, text=True
    ) as process:
        hidden = tmp_path / ".t.pack.packing" / ".train.packing"
        while process.poll() is None and not list(hidden.glob("shard-00001*")):
            pass
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "run the same command to resume" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "t.pack").exists()
    assert phalanx(*words).returncode == 0
    pack = Pack(tmp_path / "t.pack" / "train")
    values = pack.read("inputs", np.arange(pack.num_samples))
    assert len(np.unique(values[:, 0])) == 5_400
    pack.close()


def test_what_is_no_file_or_no_markup(tmp_path: Path) -> None:
    """In one start each: names with brackets, a FIFO and a device are a line, and nothing hangs."""
    os.mkfifo(tmp_path / "pipe.tar")
    (tmp_path / "zeros.csv").symlink_to("/dev/zero")
    for source, message in (
        ("[/red]", "there is no [/red]: use a file"),
        (str(tmp_path / "pipe.tar"), "pipe.tar cannot be read: Not a regular file"),
        (str(tmp_path), "pipe.tar cannot be read: Not a regular file"),
        (str(tmp_path / "zeros.csv"), "zeros.csv cannot be read: Not a regular file"),
    ):
        answer = phalanx("data", "pack", source, str(tmp_path / "p"))
        assert (answer.returncode, answer.stderr.count("\n")) == (2, 1), answer.stderr
        assert message in answer.stderr


def test_the_summary_names_what_is_not_packed(tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image")
    for kind in ("cat", "dog"):
        (tmp_path / "pets" / kind).mkdir(parents=True)
        image_module.new("L", (4, 4)).save(tmp_path / "pets" / kind / "0.png")
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("miaow")
    answer = phalanx("data", "pack", str(tmp_path / "pets"), str(tmp_path / "p"))
    assert answer.returncode == 0, answer.stderr
    notes = tmp_path / "pets" / "cat" / "notes.txt"
    assert f"not packed: 1 files that end in none of .png, .jpg, .jpeg …: {notes}\n" in (
        answer.stdout
    )
