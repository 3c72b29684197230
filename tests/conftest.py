"""Real ranks for tests: started by the MPI of this environment, ended whatever happens."""

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import pytest
from _pytest.mark import ParameterSet

from phalanx.errors import UserError
from phalanx.jobs.binding import THREAD_POOLS
from phalanx.jobs.command import Command, local_commands, mpi_job
from phalanx.jobs.installation import find_mpi
from phalanx.jobs.job import Job
from tests.forking import python
from tests.forking.server import ROOM

# A shell starts background jobs with both ignored, and the tests' processes would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored below nohup
# Every process that a test starts would compile all modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if "PYTEST_XDIST_WORKER" in os.environ:  # ranks of another test need the cores, too
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")

# On a busy machine: PHALANX_TEST_PATIENCE=4 pytest --timeout 480
PATIENCE = float(os.environ.get("PHALANX_TEST_PATIENCE", "1"))
ONE_THREAD = dict.fromkeys(THREAD_POOLS, "1")
RANK_MODULES = (
    *("phalanx.train.session", "phalanx.checkpoints.program", "phalanx.bench.rank_benchmark"),
    *("phalanx.bench.io.rank_benchmark", "phalanx.run.loop", "phalanx.torch_backend.multi_backend"),
    *("phalanx.parallel.on_mesh", "numpy.typing", "rich.live", "torch.distributed.optim"),
    *("torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp"),
    *("torch.distributed.pipelining", "cyclopts", "rich.console", "phalanx.cli.app"),
)
"""What most ranks import, without mpi4py.MPI and without what starts ranks by `sys.executable`."""


def long(*values: object) -> ParameterSet:
    """A case that `make test-long` runs: another number of ranks, another way to the same end."""
    return pytest.param(*values, marks=pytest.mark.long)


Programs = Callable[[str], Path]
"""Finds the program of that name beside the test."""


def done(output: str, count: int) -> bool:
    """Return whether each of `count` ranks has said that it is done, in any order, lines joined."""
    said = re.findall(rf"rank (\d+) of {count} is done", output)
    return sorted(said, key=int) == [str(rank) for rank in range(count)]


class Ranks:
    """Runs a program on ranks and gives its output; fails the test when the program fails."""

    def __init__(self, log: Path, interpreter: Path) -> None:
        self._log = log
        self._interpreter = str(interpreter)

    def mpi(
        self,
        count: int,
        program: Path,
        *words: str,
        timeout_s: float = 90,
        may_fail: bool = False,
    ) -> str:
        command = mpi_job(
            find_mpi(os.environ),
            count,
            [self._interpreter, str(program), *words],
            environ=os.environ,
        )
        return self._run([command], timeout_s, {}, may_fail)

    def torchrun(
        self,
        count: int,
        program: Path,
        *words: str,
        environment: Mapping[str, str] = MappingProxyType({}),
        timeout_s: float = 90,
        may_fail: bool = False,
    ) -> str:
        run = (self._interpreter, "-m", "torch.distributed.run", "--standalone")
        command = Command(words=(*run, f"--nproc-per-node={count}", str(program), *words))
        return self._run([command], timeout_s, environment, may_fail)

    def local(
        self,
        count: int,
        program: Path,
        *words: str,
        environment: Mapping[str, str],
        timeout_s: float = 90,
    ) -> str:
        commands = local_commands(
            count, [self._interpreter, str(program), *words], environ=os.environ
        )
        return self._run(commands, timeout_s, environment)

    def _run(
        self,
        commands: list[Command],
        timeout_s: float,
        environment: Mapping[str, str],
        may_fail: bool = False,
    ) -> str:
        commands = [
            replace(command, environment={**command.environment, **ONE_THREAD, **environment})
            for command in commands
        ]
        self._log.unlink(missing_ok=True)  # a job adds to what the one before has said
        with Job.start(commands, self._log) as job:
            code = job.wait(timeout_s * PATIENCE)
        output = self._log.read_text()
        assert code == 0 or may_fail, f"exit code {code} (None: out of time)\n{output}"
        return output


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Two threads on a busy machine wait for each other longer than one computes."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def restored_settings() -> Iterator[None]:
    """Undo what a bitwise run sets for its process, and a training: what is frozen has no
    referrers, and Hypothesis, where the session's end imports it, warns of that."""
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    gc.unfreeze()


@contextlib.contextmanager
def forking(
    folder: Path, *libraries: str, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Path]:
    """An interpreter that runs programs in forks of a process that has imported the libraries."""
    stand_in = folder / "python"
    stand_in.write_text(f"#!{sys.executable} -IS\n{Path(python.__file__).read_text()}")
    stand_in.chmod(0o755)
    loading = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    words = (str(folder / "socket"), *libraries, " " * ROOM)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.forking.server", *words],
        cwd=Path(__file__).parents[1],
        env={**os.environ, **ONE_THREAD, **loading, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield stand_in
        server.stdin.close()


def pytest_collection() -> None:
    gc.disable()  # nothing that is imported is garbage, and to look through it all takes seconds


def pytest_collection_finish() -> None:
    gc.enable()


_servers = contextlib.ExitStack()


def pytest_unconfigure() -> None:
    _servers.close()


@cache
def forked_python() -> Path:
    """Return an interpreter that runs programs in forks of a process that has imported what ranks
    do; it lasts as long as the tests."""
    folder = _servers.enter_context(tempfile.TemporaryDirectory(prefix="forking-"))
    seed = {"PYTHONHASHSEED": "1"}  # as of the ranks of `phalanx check`
    return _servers.enter_context(forking(Path(folder), *RANK_MODULES, environment=seed))


def forked_phalanx() -> list[str]:
    """Return the first words of a `phalanx` that runs in a fork, as its ranks do."""
    return [str(forked_python()), "-m", "phalanx"]


@pytest.fixture(scope="session")
def forking_python() -> Path:
    """An interpreter whose programs are forks."""
    return forked_python()


@pytest.fixture(scope="session")
def command(forking_python: Path) -> list[str]:
    """`phalanx` in a process of its own, whose ranks are forks."""
    _skip_without_mpi()
    program = (
        "import sys; sys.argv[0], sys.executable = 'phalanx', sys.argv.pop(1); "
        "from phalanx.cli.main import main; main()"
    )
    return [sys.executable, "-c", program, str(forking_python)]


@pytest.fixture
def new_ranks(tmp_path: Path) -> Ranks:
    """Ranks that are processes of their own from the start, as users start them."""
    return _ranks(tmp_path, Path(sys.executable))


@pytest.fixture
def ranks(tmp_path: Path, forking_python: Path) -> Ranks:
    """Ranks that are forks: what is tested begins after the imports."""
    return _ranks(tmp_path, forking_python)


def _skip_without_mpi() -> None:
    try:
        find_mpi(os.environ)
    except UserError as error:
        pytest.skip(str(error))


def _ranks(folder: Path, interpreter: Path) -> Ranks:
    _skip_without_mpi()
    return Ranks(folder / "ranks.log", interpreter)


@pytest.fixture
def programs(request: pytest.FixtureRequest) -> Programs:
    """Path of a rank's program in the folder `programs` beside the test."""
    return lambda name: request.path.parent / "programs" / name
