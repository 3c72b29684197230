"""Memory that ranks share: it is what it is taken for, and holds no descriptors."""

import mmap
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from phalanx.comm.kernels import compiled
from phalanx.comm.memory import SharedMemory
from tests.conftest import Programs, Ranks, done

# The tools of a container without a container.
OWN_PROCESSES = ["unshare", "--pid", "--fork", "--mount-proc"]


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_memory_outlives_its_descriptor_and_ends_with_its_arrays() -> None:
    before = num_descriptors()
    memory = SharedMemory.create(10_000)
    other = SharedMemory.attach(memory.handle)
    memory.close_descriptor()
    assert num_descriptors() == before
    array, seen = memory.array(), other.array()
    address = memory.address
    del memory, other
    array[:] = np.arange(10_000) % 251
    assert (seen == np.arange(10_000) % 251).all()
    del array, seen
    maps = Path("/proc/self/maps").read_text()
    assert f"{address:x}-" not in maps or "memfd:phalanx" not in maps


def test_another_file_behind_the_number_is_not_touched(tmp_path: Path) -> None:
    """Processes of other containers may have the number of the one that is meant."""
    memory = SharedMemory.create(5000)
    content = os.urandom(8000)
    (tmp_path / "data").write_bytes(content)
    with (tmp_path / "data").open("rb") as file:
        with pytest.raises(OSError, match="PID namespaces"):
            SharedMemory.attach(memory.handle._replace(descriptor=file.fileno()))
        # of the same file system and size even
        twin = SharedMemory.create(5000)
        assert twin.descriptor is not None
        with pytest.raises(OSError, match="PID namespaces"):
            SharedMemory.attach(memory.handle._replace(descriptor=twin.descriptor))
        with pytest.raises(OSError, match="PID namespaces"):
            SharedMemory.attach(memory.handle._replace(word=bytes(16)))
    assert (tmp_path / "data").read_bytes() == content


def test_a_process_that_is_not_there() -> None:
    memory = SharedMemory.create(mmap.PAGESIZE)
    with pytest.raises(OSError, match="No such"):
        SharedMemory.attach(memory.handle._replace(process=2**22 + 1))


NEEDS_KERNELS = pytest.mark.skipif(compiled() is None, reason="no C kernels were built")


@pytest.mark.mpi
@NEEDS_KERNELS
@pytest.mark.parametrize("count", [2, 3])
def test_what_keeps_ranks_from_mapping_has_them_copy(
    ranks: Ranks, programs: Programs, tmp_path: Path, count: int
) -> None:
    assert done(ranks.mpi(count, programs("segments.py"), str(tmp_path)), count)


@pytest.mark.mpi
@NEEDS_KERNELS
def test_ranks_that_count_processes_each_for_themselves(
    new_ranks: Ranks,
    programs: Programs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if subprocess.run([*OWN_PROCESSES, "true"], capture_output=True).returncode:
        pytest.skip("namespaces cannot be made here")
    # Their own shared memory fails where processes of different ranks have equal numbers.
    monkeypatch.setenv("OMPI_MCA_btl", "self,tcp")
    monkeypatch.setenv("MPIR_CVAR_CH4_CMA_ENABLE", "0")
    output = new_ranks.mpi(2, programs("own_processes.py"), str(tmp_path))
    assert done(output, 2), output
    assert output.count("cannot share memory: rank 1 of the node cannot map that of rank 0") == 1
