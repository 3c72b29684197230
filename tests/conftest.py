"""Real ranks for tests: started by the MPI of this environment, ended whatever happens."""

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from _pytest.mark import ParameterSet

from phalanx.errors import UserError
from phalanx.launch.command import Command, local_commands, mpi_job
from phalanx.launch.cores import usable_cores
from phalanx.launch.installation import find_mpi
from phalanx.launch.job import Job

# A shell starts background jobs with both ignored, and the tests' processes would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# On a busy machine: PHALANX_TEST_PATIENCE=4 pytest --timeout 480
PATIENCE = float(os.environ.get("PHALANX_TEST_PATIENCE", "1"))
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def long(*values: object) -> ParameterSet:
    """A case that `make test-long` runs: another number of ranks, another way to the same end."""
    return pytest.param(*values, marks=pytest.mark.long)


class Ranks:
    """Runs a program on ranks and gives its output; fails the test when the program fails."""

    def __init__(self, log: Path) -> None:
        self._log = log

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
            [sys.executable, str(program), *words],
            cores=usable_cores(),
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
        run = (sys.executable, "-m", "torch.distributed.run", "--standalone")
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
        commands = local_commands(count, [sys.executable, str(program), *words], environ=os.environ)
        return self._run(commands, timeout_s, environment)

    def _run(
        self,
        commands: list[Command],
        timeout_s: float,
        environment: Mapping[str, str],
        may_fail: bool = False,
    ) -> str:
        commands = [
            Command(
                words=command.words,
                environment={**command.environment, **ONE_THREAD, **environment},
                death_signal=command.death_signal,
            )
            for command in commands
        ]
        with Job.start(commands, self._log) as job:
            code = job.wait(timeout_s * PATIENCE)
        output = self._log.read_text()
        assert code == 0 or may_fail, f"exit code {code} (None: out of time)\n{output}"
        return output


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    try:
        find_mpi(os.environ)
    except UserError as error:
        pytest.skip(str(error))
    return Ranks(tmp_path / "ranks.log")


@pytest.fixture
def programs(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Path of a rank's program in the folder `programs` beside the test."""
    return lambda name: request.path.parent / "programs" / name
