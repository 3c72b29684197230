"""Backend mpi on real ranks, from scripts that import nothing but torch."""

import re
import time
from pathlib import Path

import pytest

from tests.conftest import Programs, Ranks, done, long

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("count", [1, long(2), 3, long(4)])
def test_every_collective(ranks: Ranks, programs: Programs, count: int) -> None:
    assert done(ranks.mpi(count, programs("conformance.py")), count)


@pytest.mark.parametrize("count", [long(1), long(2), 3])
def test_every_collective_as_on_a_device(ranks: Ranks, programs: Programs, count: int) -> None:
    assert done(ranks.mpi(count, programs("device.py")), count)


@pytest.mark.parametrize("count", [1, 3])
def test_groups_come_and_go(ranks: Ranks, new_ranks: Ranks, programs: Programs, count: int) -> None:
    """One alone in an interpreter that imports PyTorch as users do; others fork one that has."""
    started = new_ranks if count == 1 else ranks
    assert done(started.mpi(count, programs("lifecycle.py")), count)


def test_torchcomms_leaves_groups_of_backend_mpi_alone(
    new_ranks: Ranks, programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 2.13 PyTorch asks torchcomms for every backend where it is installed and switched on,
    and that knows none called mpi. Later versions ask whether it has been built with one."""
    room = tmp_path / "torchcomms"
    room.mkdir()
    new = "def new_comm(backend, *_, **__):\n    raise RuntimeError(f'{backend}: no library')\n"
    (room / "__init__.py").write_text(f"def is_backend_built(name):\n    return False\n{new}")
    (room / "_comms.py").write_text(  # where 2.11 looks for all of it
        f"class _BackendWrapper: pass\ndef _is_backend_registered(name):\n    return False\n{new}"
    )
    (room / "hooks.py").write_text("class FlightRecorderHook: pass\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TORCH_DISTRIBUTED_USE_TORCHCOMMS", "1")
    assert done(new_ranks.mpi(3, programs("torchcomms_on.py")), 3)


def test_asynchronous_calls_return_at_once(ranks: Ranks, programs: Programs) -> None:
    assert done(ranks.mpi(2, programs("asynchronous.py")), 2)


def test_a_tensor_without_memory_is_no_call(ranks: Ranks, programs: Programs) -> None:
    """Read within the call, its attributes raised there, and this rank alone counted a sum more."""
    assert done(ranks.mpi(2, programs("wrappers.py")), 2)


def test_profilers_see_every_call(ranks: Ranks, programs: Programs) -> None:
    assert done(ranks.mpi(2, programs("profiled.py")), 2)


def test_bad_input_ends_in_an_error(ranks: Ranks, programs: Programs) -> None:
    assert done(ranks.mpi(2, programs("bad_input.py")), 2)


@pytest.mark.parametrize("count", [long(2), 3])
def test_ddp_trains_as_one_process_does(ranks: Ranks, programs: Programs, count: int) -> None:
    assert done(ranks.mpi(count, programs("ddp.py")), count)


@pytest.mark.parametrize(
    ("name", "value"), [long("PHALANX_CHECK", "1"), ("TORCH_DISTRIBUTED_DEBUG", "DETAIL")]
)
def test_debug_mode(
    ranks: Ranks, programs: Programs, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    program = "bad_input.py" if name == "PHALANX_CHECK" else "ddp.py"
    assert done(ranks.mpi(2, programs(program)), 2)


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("raise", "rank 1 failed: ValueError: the data of rank 1 is broken"),
        ("die", "rank 1 failed"),
        ("exit", "rank 1 called"),
        ("leave", "rank 1 called"),
    ],
)
def test_a_failed_rank_ends_the_waits_of_the_others(
    ranks: Ranks, programs: Programs, way: str, reason: str
) -> None:
    began = time.monotonic()
    output = ranks.mpi(3, programs("failing.py"), way, may_fail=True, timeout_s=60)
    assert time.monotonic() - began < 30
    # one of them at least: some launchers end the rest before it has spoken
    assert re.search(rf"rank [02] says: DistBackendError: .*{reason}", output), output
    if way == "raise":
        assert "ValueError: the data of rank 1 is broken" in output
        assert "Error in sys.excepthook" not in output  # no bytes stand for a part of its words


@pytest.mark.parametrize(
    ("count", "way", "kernels"),
    [
        long(2, "apart", "auto"),
        (3, "at_once", "arrays"),
        pytest.param(2, "at_once", "auto", marks=pytest.mark.long),
        pytest.param(2, "at_once", "arrays", marks=pytest.mark.long),
        pytest.param(3, "apart", "auto", marks=pytest.mark.long),
    ],
)
def test_a_failure_in_the_backward_pass_of_ddp(
    ranks: Ranks,
    programs: Programs,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    way: str,
    kernels: str,
) -> None:
    monkeypatch.setenv("PHALANX_KERNELS", kernels)
    output = ranks.mpi(count, programs("failing_ddp.py"), way, may_fail=True)
    assert done(output, count), output
    assert "ValueError: bad batch" in output
    assert re.search(r"rank [02] says: .*rank 1 failed: ValueError: bad batch", output), output


ON_MESSAGES = pytest.mark.parametrize(
    "kernels", ["auto", pytest.param("arrays", marks=pytest.mark.long)]
)


@ON_MESSAGES
@pytest.mark.parametrize("program", ["destroying.py", "handlers.py"])
def test_what_is_under_way(
    ranks: Ranks,
    programs: Programs,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    kernels: str,
) -> None:
    """When its group is destroyed, and when a signal comes whose handler makes collectives."""
    monkeypatch.setenv("PHALANX_KERNELS", kernels)
    assert done(ranks.mpi(2, programs(program)), 2)


def test_a_collective_under_way_at_the_end_is_said(ranks: Ranks, programs: Programs) -> None:
    output = ranks.mpi(2, programs("failing.py"), "thread", may_fail=True, timeout_s=60)
    assert "ending all ranks" in output
