"""A program in a fork is to the caller what it would be in an interpreter of its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import ONE_THREAD

FORKED = {**os.environ, **ONE_THREAD}
"""Other numbers of threads start an interpreter."""
PROGRAM = """
import os, sys, time
print(os.getpid(), os.getcwd(), sys.argv[1:], os.environ.get("WORD"), "torch" in sys.modules)
sys.stdout.reconfigure(errors="replace")
print("told", file=sys.stderr, flush=True)
sys.stdout.flush()
exec(sys.argv[1])
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_files_folder_words_environment_and_exit_code(
    forking_python: Path, program: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [forking_python, program, "sys.exit(3)", "b"],
        cwd=tmp_path,
        env={**FORKED, "WORD": "é"},
        capture_output=True,
        text=True,
    )
    _, said = done.stdout.strip().split(" ", 1)
    assert (done.returncode, done.stderr) == (3, "told\n")
    assert said == f"{tmp_path} ['sys.exit(3)', 'b'] é True"


def test_variables_that_are_read_at_import_start_an_interpreter(
    forking_python: Path, program: str
) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    words = [forking_python, program, "sys.exit(3)"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stdout.strip().endswith("False")
    assert subprocess.run([forking_python, "-c", "raise SystemExit(4)"]).returncode == 4
    for name, value, is_forked in (
        ("PYTHONHASHSEED", "1", True),
        ("PYTHONHASHSEED", "2", False),
        ("TORCHINDUCTOR_CACHE_DIR", "/tmp/other", True),
    ):
        environment = {**FORKED, name: value}
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert done.stdout.strip().endswith(str(is_forked))


def test_folders_of_modules_come_before_those_of_the_libraries(
    forking_python: Path, program: str, tmp_path: Path
) -> None:
    ends = []
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "this.py").write_text("print('found')")  # beside that of Python
    for python in (forking_python, sys.executable):
        words = [python, program, "import this; print(sys.path[:2])"]
        environment = {**FORKED, "PYTHONPATH": str(tmp_path / "modules")}
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        ends.append(done.stdout.splitlines())
    assert ends[0][0].endswith("True")  # a fork
    assert ends[0][1:] == ends[1][1:] == ["found", str([str(tmp_path), str(tmp_path / "modules")])]


def test_ignored_signals_stay_so(forking_python: Path, program: str) -> None:
    words = ["nohup", str(forking_python), program, "os.kill(os.getpid(), 1)"]
    done = subprocess.run(words, env=FORKED, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "True" in done.stdout) == (0, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_its_death_is_that_of_the_program(
    forking_python: Path, program: str, number: signal.Signals
) -> None:
    words = [forking_python, program, f"os.kill(os.getpid(), {int(number)})"]
    done = subprocess.run(words, env=FORKED, capture_output=True, text=True)
    assert (done.returncode, "True" in done.stdout) == (-number, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_both(forking_python: Path, program: str, number: signal.Signals) -> None:
    words = [str(forking_python), program, "time.sleep(60)"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline().split()[0])
        process.send_signal(number)
        expected = 1 if number == signal.SIGINT else -number
        assert process.wait(60) in (expected, -number)
    until = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_processes_are_found_by_their_words(forking_python: Path, program: str) -> None:
    words = [str(forking_python), program, "time.sleep(60)", "é"]
    with subprocess.Popen(words, env=FORKED, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline().split()[0])
        shown = psutil.Process(pid).cmdline()
        process.kill()
    assert [word for word in shown if word] == words


def test_unbuffered_output_comes_at_once(forking_python: Path, program: str) -> None:
    words = [forking_python, "-u", program, "print(7); os.write(1, b'8'); print(9, end='')"]
    done = subprocess.run(words, env=FORKED, capture_output=True, text=True)
    assert done.stdout.splitlines()[1:] == ["7", "89"]
    assert done.stdout.splitlines()[0].endswith("True")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1:replace"])
def test_the_encoding_of_its_output(forking_python: Path, program: str, encoding: str) -> None:
    ends = []
    for python in (forking_python, sys.executable):
        done = subprocess.run(
            [python, program, "import torch.distributed as dist; print(dist.get_debug_level());"
             "print(sys.stdout.write_through, sys.stdout.errors, sys.stderr.errors, '\\xe4');"
             "sys.stdout.reconfigure(errors='strict'); print('\\u2026')"],
            env=FORKED | {"PYTHONIOENCODING": encoding, "PYTHONUNBUFFERED": "1",
                                           "TORCH_DISTRIBUTED_DEBUG": "INFO"},
            capture_output=True,
        )  # fmt: skip
        ends.append((done.returncode, done.stdout.splitlines()[1:], done.stderr.splitlines()[-1:]))
    assert ends[0] == ends[1]
    assert b"DebugLevel.INFO" in ends[0][1]


def test_an_error_is_printed(forking_python: Path, program: str) -> None:
    words = [forking_python, program, "1 / 0"]
    done = subprocess.run(words, env=FORKED, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


ENDING = """
import atexit, ctypes, pipes_of_tests, phalanx.errors, torch.distributed.distributed_c10d as c10d
class Ending:
    def __init__(self, name): self.name = name
    def __del__(self, write=os.write): write(1, f"{self.name} ends; ".encode())
for module in (pipes_of_tests, phalanx.errors, c10d):
    module.ending = Ending(module.__name__)
atexit.register(os.write, 1, b"exit; ")
c = ctypes.CDLL(None)
c.fdopen.restype = ctypes.c_void_p
c.fputs(b"C; ", ctypes.c_void_p(c.fdopen(os.dup(1), b"w")))  # kept until `exit`
print("Python", end="; ")
sys.exit(7)
"""


def test_it_ends_as_an_interpreter_does(forking_python: Path, program: str, tmp_path: Path) -> None:
    (tmp_path / "pipes_of_tests.py").touch()
    ends = []
    for python in (forking_python, sys.executable):
        words = [python, program, ENDING]
        done = subprocess.run(words, env=FORKED, capture_output=True, text=True)
        ends.append((done.returncode, sorted(done.stdout.splitlines()[-1].split("; "))))
    assert ends[0] == ends[1]
    assert len(ends[0][1]) == 7  # and an empty text
