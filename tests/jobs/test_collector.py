"""Records of ranks that lack the run's folder: sent by a process beside the rank, written here."""

import os
import pwd
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phalanx.jobs import collector as collector_module
from phalanx.jobs import rank_log
from phalanx.jobs.collector import SATURATED, Collector, Files
from phalanx.jobs.frames import FRAME_BYTES, MAX_DATA, Decoder, Frame, Packer, frames_of
from phalanx.jobs.rank_notes import read_ends
from phalanx.jobs.relay import ORDER, Order, pause_s

PROGRAM = """
import os, sys, pathlib
from phalanx.jobs import relayed
folder = pathlib.Path(sys.argv[1])
print("hello from", folder == pathlib.Path(os.environ["PHALANX_RUN_DIR"]), flush=True)
(folder / "rank-3.jsonl").write_text((folder / "run.json").read_text() * 2000)
with (folder / "rank-3.jsonl").open("a") as file:
    file.write("more")
(folder / ".hidden").write_text("x")
(folder / ".new").write_text(f"whole, see {folder}/x")
(folder / ".new").rename(folder / "error.json")
relayed.flush()
exec(sys.argv[2])
"""
CONTENT = '{"number": 1}\n'


def relay(home: Path, order: Order, ending: str, collector: Collector) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", PROGRAM, str(home), ending]
    environment = {"RANK": "3", "WORLD_SIZE": "4", "PHALANX_RUN_DIR": str(home)}
    started = subprocess.Popen(
        [sys.executable, "-P", "-m", rank_log.__name__, str(home), *words],
        env={**os.environ, **environment, ORDER: order.encode()},
        stdin=subprocess.DEVNULL,
        stdout=collector.output,
        stderr=subprocess.STDOUT,
    )
    collector.release()
    return started


def test_a_program_cannot_print_the_records_of_another_rank(tmp_path: Path) -> None:
    """Whatever a rank's program printed to the launcher's output was taken as records, if it looked
    like them."""
    collector = Collector(tmp_path)
    forged = b"".join(frames_of(b"", 1, "ended-1.json", 0, 0, b"[0]"))
    os.write(collector.output, forged + b"".join(frames_of(b"key", 1, "error.json", 0, 0, b"x")))
    collector.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["launcher.log"]
    assert (tmp_path / "launcher.log").read_bytes().startswith(forged)


@pytest.mark.parametrize(
    ("ending", "code"),
    [("sys.exit(0)", 0), ("sys.exit(5)", 5), ("os.kill(os.getpid(), 9)", -signal.SIGKILL)],
)
def test_files_output_and_end_come_home(tmp_path: Path, ending: str, code: int) -> None:
    collector = Collector(tmp_path)
    order = Order(str(tmp_path), ".not there", {"run.json": CONTENT}, collector.key)
    started = relay(tmp_path, order, ending, collector)
    assert started.wait(30) == (code if code >= 0 else 128 - code)
    collector.wait()
    assert (tmp_path / "rank-3.jsonl").read_text() == CONTENT * 2000 + "more"
    assert (tmp_path / "error.json").read_text() == f"whole, see {tmp_path}/x"
    assert (tmp_path / "rank-3.log").read_text() == "hello from True\n"
    assert (tmp_path / "launcher.log").read_text() == ""
    assert {path.name for path in tmp_path.iterdir()} == {
        *("rank-3.jsonl", "rank-3.log", "error.json", "launcher.log", "ended-3.json"),
    }
    assert read_ends(tmp_path) == {3: code}


def test_flushed_files_are_here_although_the_sender_is_killed(tmp_path: Path) -> None:
    collector = Collector(tmp_path)
    order = Order(str(tmp_path), ".not there", {"run.json": CONTENT}, collector.key)
    started = relay(tmp_path, order, "os.kill(os.getppid(), 9); os._exit(0)", collector)
    assert started.wait(30) == -signal.SIGKILL
    collector.wait()
    assert (tmp_path / "error.json").read_text() == f"whole, see {tmp_path}/x"


def test_where_the_folder_is_there_the_program_writes_it_itself(tmp_path: Path) -> None:
    collector = Collector(tmp_path)
    (tmp_path / ".here").touch()
    (tmp_path / "run.json").write_text(CONTENT)
    started = relay(tmp_path, Order(str(tmp_path), ".here", {}, collector.key), "pass", collector)
    assert started.wait(30) == 0
    collector.wait()
    assert (tmp_path / "rank-3.jsonl").read_text() == CONTENT * 2000 + "more"
    assert read_ends(tmp_path) == {3: 0}


@pytest.mark.parametrize("launched_on", ["elsewhere", os.uname().nodename])
def test_a_rank_of_hydra_has_the_user_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched_on: str
) -> None:
    """It takes all variables of the launching machine, where the user may be another one."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for name, value in {"PMI_RANK": "3", "PMI_SIZE": "4", "HOME": "/of/alice"}.items():
        monkeypatch.setenv(name, value)
    collector = Collector(tmp_path)
    files = {"run.json": CONTENT}
    order = Order(str(tmp_path), ".not there", files, collector.key, launched_on)
    started = relay(tmp_path, order, "print(os.environ['HOME'], flush=True)", collector)
    assert started.wait(30) == 0
    collector.wait()
    own = pwd.getpwuid(os.getuid()).pw_dir
    home = own if launched_on == "elsewhere" else "/of/alice"
    assert (tmp_path / "rank-3.log").read_text() == f"hello from True\n{home}\n"


def test_a_request_to_end_reaches_the_program(tmp_path: Path) -> None:
    collector = Collector(tmp_path)
    order = Order(str(tmp_path), ".not there", {"run.json": CONTENT}, collector.key)
    ending = (
        "import signal, time; signal.signal(15, lambda *_: sys.exit(7)); "
        "print('ready', flush=True); time.sleep(60)"
    )
    started = relay(tmp_path, order, ending, collector)
    until = time.monotonic() + 30
    log = tmp_path / "rank-3.log"
    while not (log.exists() and "ready" in log.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    started.terminate()
    assert started.wait(30) == 7
    collector.wait()
    assert read_ends(tmp_path) == {3: 7}


def test_a_file_with_a_gap_ends_before_it(tmp_path: Path) -> None:
    files, text = Files(tmp_path), os.urandom(4 * MAX_DATA)
    frames = [Frame(0, "a.log", 0, at, text[at : at + MAX_DATA], False) for at in (0, 255, 765)]
    for frame in frames:
        files.take(frame)
    files.flush()
    assert (tmp_path / "a.log").read_bytes() == text[: 2 * MAX_DATA]


def test_a_replaced_file_holds_the_last_version(tmp_path: Path) -> None:
    files = Files(tmp_path)
    for version, text in enumerate([b"first " * 100, b"second"]):
        for start in range(0, max(1, len(text)), MAX_DATA):
            chunk = text[start : start + MAX_DATA]
            files.take(Frame(0, "error.json", version, start, chunk, start + MAX_DATA >= len(text)))
    assert (tmp_path / "error.json").read_bytes() == b"second"


@pytest.mark.parametrize("name", ["../x", "/etc/x", ".x", "a/b", "-rf"])
def test_no_name_leaves_the_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    files = Files(folder)
    files.take(Frame(0, name, 0, 0, b"text", True))
    files.flush()
    assert not list(folder.iterdir())
    assert list(tmp_path.iterdir()) == [folder]


def test_packed_pieces_come_home_as_they_were(tmp_path: Path) -> None:
    files, packer = Files(tmp_path, are_packed=True), Packer()
    lines = [f'{{"type": "step", "step": {n}, "at_s": {n / 7}}}\n'.encode() for n in range(600)]
    num_frames = 0
    for start in range(0, 600, 60):
        piece, offset = b"".join(lines[start : start + 60]), packer.num_bytes
        for frame in _frames("rank-3.jsonl", 0, offset, packer.pack(piece)):
            files.take(frame)
            num_frames += 1
        files.flush()
        assert (tmp_path / "rank-3.jsonl").read_bytes() == b"".join(lines[: start + 60])
    assert num_frames * FRAME_BYTES < sum(map(len, lines)), "less than the records themselves"


def test_a_packed_piece_that_is_missing_ends_its_file(tmp_path: Path) -> None:
    files, packer = Files(tmp_path, are_packed=True), Packer()
    for number in range(4):
        offset = packer.num_bytes
        frames = _frames("a.log", 0, offset, packer.pack(f"line {number}\n".encode()))
        for frame in frames if number != 2 else []:
            files.take(frame)
    files.flush()
    assert (tmp_path / "a.log").read_text() == "line 0\nline 1\n"


def _frames(name: str, version: int, offset: int, data: bytes) -> list[Frame]:
    found = Decoder(b"key").feed(b"".join(frames_of(b"key", 3, name, version, offset, data)))
    return [item for item in found if isinstance(item, Frame)]


@pytest.mark.parametrize(
    ("rank", "num_ranks", "seconds"),
    [(1, 2, 0.25), (1, 64, 0.25), (0, 1024, 0.25), (7, 1024, 1.25), (7, 16_384, 5.0)],
)
def test_of_many_ranks_each_sends_larger_pieces(rank: int, num_ranks: int, seconds: float) -> None:
    assert pause_s(rank, num_ranks) == seconds


def test_records_that_come_faster_than_they_are_taken_are_all_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(collector_module, "SATURATED_S", -1.0)
    collector, packer = Collector(tmp_path), Packer()
    for number in range(500):
        offset, key = packer.num_bytes, collector.key.encode()
        piece = packer.pack(f"line {number} {os.urandom(500).hex()}\n".encode())
        text = b"".join(frames_of(key, 3, "rank-3.jsonl", 0, offset, piece))
        while text:
            text = text[os.write(collector.output, text) :]
    collector.wait()
    numbers = [line.split()[1] for line in (tmp_path / "rank-3.jsonl").read_text().splitlines()]
    assert numbers == [str(number) for number in range(500)]
    assert capfd.readouterr().err.splitlines() == [f"phalanx: {SATURATED}"]
