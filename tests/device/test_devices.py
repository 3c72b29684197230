"""Backend mpi and `phalanx.start` on devices: on an emulated accelerator, whose memory the host
cannot read and whose streams lag; on a real GPU, which all ranks share; and on the CPU, so that the
programs stay right where there is neither.
"""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.conftest import RANK_MODULES, Programs, Ranks, done, forking
from tests.device import emulated

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(600)]

EMULATED = "vexa"
is_emulated = pytest.mark.skipif(
    not emulated.can_be_built(), reason="needs g++, to build the emulated device"
)
is_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no GPU that this PyTorch can use"
)
long = pytest.mark.long
on_devices = pytest.mark.parametrize(
    ("device", "count"),
    [
        pytest.param(EMULATED, 2, marks=is_emulated),
        *(pytest.param(EMULATED, count, marks=[is_emulated, long]) for count in (3, 4)),
        *(pytest.param("cuda", count, marks=[is_gpu, long]) for count in (2, 3)),
        *(pytest.param("cpu", count, marks=long) for count in (2, 3)),
    ],
)
FIRST_CHECKS = ("sgd", "zero_clips", "loader", "bad_gradients", "checkpoints", "gather", "refused")
FAULTS = runpy.run_path(str(Path(__file__).parent / "programs" / "mutations.py"), run_name="faults")


@pytest.fixture(scope="session")
def aware() -> Path:
    return emulated.build_aware_mpi()


@pytest.fixture(scope="session")
def aware_python(aware: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An interpreter whose programs are forks, with that library before all others."""
    folder, preloaded = tmp_path_factory.mktemp("forking"), {"LD_PRELOAD": str(aware)}
    with forking(folder, *RANK_MODULES, environment=preloaded) as python:
        yield python


@pytest.fixture
def aware_ranks(
    tmp_path: Path, aware_python: Path, monkeypatch: pytest.MonkeyPatch, aware: Path
) -> Ranks:
    """Ranks have an MPI that takes addresses of the emulated device."""
    monkeypatch.setenv("LD_PRELOAD", str(aware))
    monkeypatch.setenv("PHALANX_GPU_AWARE", "1")
    return Ranks(tmp_path / "ranks.log", aware_python)


def is_done(ranks: Ranks, count: int, program: Path, *words: str) -> bool:
    if EMULATED in words or "mixed" in words:
        emulated.build()  # here, not by every rank
    return done(ranks.mpi(count, program, *words, timeout_s=500), count)


@is_emulated
def test_the_emulated_device_shows_what_a_program_forgets(
    new_ranks: Ranks, programs: Programs
) -> None:
    emulated.build()
    assert "it lies in wait" in new_ranks.mpi(1, programs("lies_in_wait.py"), EMULATED)


@on_devices
def test_collectives_wait_for_late_streams(
    ranks: Ranks, programs: Programs, device: str, count: int
) -> None:
    words = {"cuda": ("20",), EMULATED: ("1", "few")}.get(device, ("1",))
    assert is_done(ranks, count, programs("collectives.py"), device, *words)


@on_devices
def test_every_collective(
    ranks: Ranks, programs: Programs, device: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMULATED_LAG_US", "50")
    assert is_done(ranks, count, programs("conformance.py"), device)


@on_devices
def test_engines_of_torch_train_as_one_process(
    ranks: Ranks, programs: Programs, device: str, count: int
) -> None:
    assert is_done(ranks, count, programs("torch_engines.py"), device)


@on_devices
def test_programs_train_as_one_process(
    ranks: Ranks, programs: Programs, device: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMULATED_LAG_US", "50")
    names = FIRST_CHECKS if (device, count) == (EMULATED, 2) else ()  # more ranks make all
    assert is_done(ranks, count, programs("start.py"), device, *names)


@pytest.mark.parametrize(
    "device",
    [pytest.param(EMULATED, marks=is_emulated), pytest.param("cuda", marks=[is_gpu, long])],
)
def test_one_process_trains_there(
    ranks: Ranks, programs: Programs, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMULATED_LAG_US", "50")
    assert is_done(ranks, 1, programs("start.py"), device, *FIRST_CHECKS)


@is_emulated
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("collectives.py", ("1", "few")),
        ("torch_engines.py", ("ddp", "ddp_of_views", "ddp_accumulates", "torch_fp16")),
    ],
)
def test_ranks_have_devices_of_several_kinds(
    ranks: Ranks, programs: Programs, program: str, words: tuple[str, ...]
) -> None:
    """The CPU, and those of two vendors."""
    assert is_done(ranks, 4, programs(program), "mixed", *words)


@is_emulated
def test_devices_of_several_kinds_beside_an_aware_mpi(
    aware_ranks: Ranks, programs: Programs
) -> None:
    """The ranks waited for each other: each went by the way of its own device."""
    assert is_done(aware_ranks, 4, programs("collectives.py"), "mixed", "1", "few")


@is_emulated
@pytest.mark.parametrize(
    ("count", "program"),
    [
        (2, "collectives.py"),
        *(pytest.param(count, "conformance.py", marks=long) for count in (2, 3)),
        pytest.param(2, "torch_engines.py", marks=long),
    ],
)
def test_an_aware_mpi_gets_the_tensors_themselves(
    aware_ranks: Ranks, programs: Programs, count: int, program: str
) -> None:
    words = ("1", "few") if program == "collectives.py" else ()
    assert is_done(aware_ranks, count, programs(program), EMULATED, *words)


@is_emulated
def test_an_mpi_that_is_not_aware_crashes_on_them(
    ranks: Ranks, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_GPU_AWARE", "1")
    emulated.build()
    words = (programs("collectives.py"), EMULATED, "1", "few")
    assert re.search(FAULTS["CRASH"], ranks.mpi(2, *words, may_fail=True))


def shows(ranks: Ranks, program: Path, fault: str, symptom: str) -> object:
    emulated.build()
    output = ranks.mpi(2, program, EMULATED, "1", "few", fault, may_fail=True)
    is_another = re.search("(Name|Attribute|Type|Import)Error", output)
    return f"{fault} is in" in output and re.search(symptom, output) and not is_another


@is_emulated
@long
@pytest.mark.parametrize(("fault", "symptom"), FAULTS["STAGED"].items())
def test_a_fault_of_staging_is_seen_in_one_run(
    ranks: Ranks, programs: Programs, fault: str, symptom: str
) -> None:
    assert shows(ranks, programs("mutations.py"), fault, symptom)


@is_emulated
@long
@pytest.mark.parametrize(("fault", "symptom"), FAULTS["AWARE"].items())
def test_a_fault_of_transport_is_seen_in_one_run(
    aware_ranks: Ranks, programs: Programs, fault: str, symptom: str
) -> None:
    assert shows(aware_ranks, programs("mutations.py"), fault, symptom)


@is_emulated
@long
def test_a_hundred_runs_without_a_fault_are_clean(ranks: Ranks, programs: Programs) -> None:
    assert is_done(ranks, 2, programs("collectives.py"), EMULATED, "100", "few")
