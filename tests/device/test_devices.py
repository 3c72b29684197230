"""Backend mpi and `phalanx.start` on devices: on an emulated accelerator, whose memory the host
cannot read and whose streams lag; on a real GPU, which all ranks share; and on the CPU, so that the
programs stay right where there is neither.
"""

import json
import re
import runpy
import subprocess
import sys
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
EVERYWHERE = (
    *("sgd", "adam", "adamw_fused", "zero", "zero_clips", "micro_batches", "loader", "dataset"),
    *("bad_gradients", "checkpoints", "checkpoints_zero", "thirty_steps", "records", "gather"),
    *("default_device", "dropout", "autocast"),
)
"""Checks that no rank leaves by itself, as it would for what its own device does not take."""
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


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder by which PyTorch loads the device by itself in each process."""
    emulated.build()
    described = tmp_path / "vexa-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: vexa\nVersion: 1.0\n")
    entry = f"[torch.backends]\nvexa = {emulated.__name__}:install_from_environment\n"
    (described / "entry_points.txt").write_text(entry)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    monkeypatch.setenv("EMULATED_NAME", EMULATED)
    monkeypatch.setenv("EMULATED_LAG_US", "20")
    return tmp_path


def is_done(ranks: Ranks, count: int, program: Path, *words: str) -> bool:
    if EMULATED in words or emulated.MIXED.keys() & set(words):
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


@is_emulated
@pytest.mark.parametrize(
    ("count", "device"),
    [(2, EMULATED), pytest.param(4, "mixed", marks=long), pytest.param(2, "cpu", marks=long)],
)
def test_parts_have_the_bits_of_the_whole(
    ranks: Ranks, programs: Programs, count: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMULATED_LAG_US", "50")
    emulated.build()
    output = ranks.mpi(count, programs("parts.py"), device)
    assert done(output, count)
    text = (
        r"all_reduce\(float32, 89\d elements, SUM\).* \(in part [12] of 8 of all_reduce, 7,17\d el"
    )
    assert bool(re.search(text, output)) == (device != "cpu"), output


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


@is_emulated
@pytest.mark.parametrize(
    ("count", "names"),
    [
        (2, ("tensor_parallel", "1f1b", "checkpoints")),
        *(pytest.param(count, (), marks=long) for count in (2, 3)),
    ],
)
def test_divided_models_have_the_bits_of_the_cpu(
    ranks: Ranks,
    programs: Programs,
    count: int,
    names: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FSDP2, tensor parallelism, pipelines, and checkpoints that go from one to the other."""
    monkeypatch.setenv("EMULATED_LAG_US", "50")
    assert is_done(ranks, count, programs("divided.py"), EMULATED, *names)


@on_devices
def test_programs_train_as_one_process(
    request: pytest.FixtureRequest,
    programs: Programs,
    device: str,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EMULATED_LAG_US", "50")
    names = FIRST_CHECKS if (device, count) == (EMULATED, 2) else ()  # more ranks make all
    # Among all are workers of PyTorch's, which start from an interpreter, and not from a fork.
    ranks: Ranks = request.getfixturevalue("ranks" if names else "new_ranks")
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
@pytest.mark.parametrize(
    ("mixture", "names"),
    [
        ("mixed", ("thirty_steps", "records")),
        *(pytest.param(mixture, (), marks=long) for mixture in emulated.MIXED),
    ],
)
def test_programs_train_on_devices_of_several_kinds(
    request: pytest.FixtureRequest,
    programs: Programs,
    mixture: str,
    names: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one process does: 30 steps with checkpoints, resume and evaluation, and more."""
    ranks: Ranks = request.getfixturevalue("ranks" if names else "new_ranks")
    monkeypatch.setenv("EMULATED_LAG_US", "50")
    assert is_done(ranks, 4, programs("start.py"), mixture, *(names or EVERYWHERE))


BAD_INPUT = {
    ("mixed", "no such index"): r'rank 2: device="vexa:5", but PyTorch finds 2 of vexa here: use',
    ("mixed", "no cuda"): r'rank 2: device="cuda", but PyTorch finds 2 of vexa here: use',
    ("vexa", "no such name"): "rank 2: device='gpu' is not one of cpu, cuda, auto and other",
    ("mixed", "shared"): 'strategy="shared" works on CPU memory: leave it out, or use',
    ("mixed", "compressed"): "compress= is for gradients on the CPU: leave it out, or use",
    (
        "mixed",
        "compressed on the CPU",
    ): "compress= is for gradients on the CPU, but other ranks have",
    ("mixed", "default group"): r"call torch.distributed.destroy_process_group\(\) first",
    ("mixed", "bitwise"): "bitwise=True is for the CPU: leave device= out",
    ("mixed", "zero 3"): 'strategy="zero", zero_stage=3, works on CPU memory: leave it',
    ("mixed", "batch norm"): r"rank 1 was started with device \(of a model with SyncBatchNorm\)="
    "vexa, but rank 0 with cpu",
    (
        "cpu",
        "group made before",
    ): "rank [012] of group 0: backend mpi moves tensors of cpu, not of vexa:0: make the group "
    "where",
    ("mixed", "other dtypes"): r"ranks 0, 2 called all_reduce\(float32, 3 elements, SUM\), "
    r"rank 1 called all_reduce\(float64, 3",
    (
        "vexa",
        "full memory",
    ): "staging a tensor of 4,194,304 bytes: device 0 is out of memory: 4194304 "
    "bytes were asked for, .*; pieces of 65,536 bytes found no memory",
    ("vexa", "several devices"): "rank [012] of group 0, all_gather: tensors on several devices",
}


@is_emulated
@pytest.mark.parametrize(
    ("device", "case"),
    [
        pytest.param(*names, marks=() if names == ("mixed", "no such index") else long)
        for names in BAD_INPUT
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(
    ranks: Ranks,
    programs: Programs,
    device: str,
    case: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emulated.build()
    if case == "full memory":
        monkeypatch.setenv("EMULATED_MEMORY_MB", "48")
    output = ranks.mpi(3, programs("bad_input.py"), device, case, may_fail=True)
    assert re.search(BAD_INPUT[device, case], output)
    assert "is done" not in output


@is_emulated
@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("trains", r"ranks share a device: vexa:[01] on \S+ \(ranks \d, \d\)\n"),
        pytest.param(
            "first",
            r"vexa:0 on \S+ \(ranks 0, 1, 2\); 2 devices are visible there, 1 used: distribute ",
            marks=long,
        ),
    ],
)
def test_ranks_that_share_a_device_are_told_once(
    ranks: Ranks, programs: Programs, case: str, text: str
) -> None:
    emulated.build()
    output = ranks.mpi(3, programs("bad_input.py"), EMULATED, case)
    assert len(re.findall(text, output)) == output.count("share a device") == 1


@is_emulated
@long
def test_an_exclusive_device_takes_one_rank(
    new_ranks: Ranks, programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulated.build()
    monkeypatch.setenv("EMULATED_EXCLUSIVE", str(tmp_path))
    output = new_ranks.mpi(3, programs("bad_input.py"), EMULATED, "trains", may_fail=True)
    assert re.search(r"rank \d: device vexa:\d refuses this process \(device \d is", output)


@is_emulated
@pytest.mark.parametrize(
    ("command", "device"),
    [
        (("train", "--strategy", "mpi", "--ranks", "2"), "auto"),
        pytest.param(
            ("train", "--strategy", "zero", "--zero-stage", "1", "--ranks", "2"),
            "vexa:1",
            marks=long,
        ),
        pytest.param(
            ("study", "scaling", "--models", "mlp", "--strategies", "sequential", "mpi"),
            EMULATED,
            marks=long,
        ),
    ],
)
def test_the_command_line_trains_on_a_plug_in(
    plug_in: Path, command: tuple[str, ...], device: str
) -> None:
    is_study = command[0] == "study"
    folder = ("--study-dir" if is_study else "--run-dir", str(plug_in / "records"))
    less = ("--seeds", "0", "--ranks", "2", "--threads", "1") if is_study else ()
    words = (*command, *less, "--device", device, "--epochs", "2", "--dataset", "digits", *folder)
    program = (sys.executable, "-m", "phalanx", *words)
    subprocess.run(program, cwd=plug_in, check=True, timeout=500)
    found = [path.read_text() for path in (plug_in / "records").rglob("rank-*.jsonl")]
    assert len(found) >= 2 and all('"device":"vexa:' in text for text in found)


PATHS = {
    # PHALANX_GPU_AWARE, is aware: status and text of both findings
    (None, False): (
        ("ok", r"tested: it crashes \(segmentation fault\) on an address of vexa:0"),
        ("ok", r"through pinned host memory: [\d.]+ GB/s in a sum over 2 ranks; copy to the host"),
    ),
    (None, True): (
        (
            "ok",
            "it accepts addresses of vexa:0, unreported; set PHALANX_GPU_AWARE=1 to use that",
        ),
        ("ok", "through pinned host memory: "),
    ),
    ("1", True): (
        ("ok", "tested: it accepts addresses of vexa:0, as it reports"),
        ("ok", r"passed to MPI directly: [\d.]+ GB/s in a sum over 2 ranks; copy to the host"),
    ),
    ("1", False): (
        ("problem", r"it is marked GPU-aware, but crashes \(segmentation fault\) on an address of"),
    ),
}


@is_emulated
@pytest.mark.parametrize(
    ("variable", "is_aware"),
    [
        pytest.param(*case, marks=() if case in ((None, False), ("1", True)) else long)
        for case in PATHS
    ],
)
@pytest.mark.usefixtures("plug_in")
def test_doctor_asks_and_tries(
    variable: str | None, is_aware: bool, aware: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_aware:
        monkeypatch.setenv("LD_PRELOAD", str(aware))
    if variable is not None:
        monkeypatch.setenv("PHALANX_GPU_AWARE", variable)
    program = "import json\nfrom phalanx.doctor.devices import check_gpu, check_path\n"
    program += "found = [*check_gpu(), *check_path()]\n"
    program += "print(json.dumps([[each.status, each.detail] for each in found]))"
    ran = subprocess.run((sys.executable, "-c", program), capture_output=True, timeout=300)
    gpu, *found = json.loads(ran.stdout)
    assert gpu == ["ok", "vexa:0, vexa:1"]
    for (status, detail), (expected, text) in zip(found, PATHS[variable, is_aware], strict=True):
        assert status == expected and re.search(text, detail), detail


@is_emulated
@pytest.mark.parametrize("way", ["pinned", pytest.param("direct", marks=long)])
def test_a_benchmark_says_where_its_tensors_are(
    plug_in: Path, way: str, aware: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "direct":
        monkeypatch.setenv("LD_PRELOAD", str(aware))
        monkeypatch.setenv("PHALANX_GPU_AWARE", "1")
    words = (sys.executable, "-m", "phalanx", "bench", "collectives", "--collectives", "all")
    words += ("--device", "auto", "--paths", "torch", "--sizes", "64KB", "--repeats", "3", "--json")
    words += ("--no-preflight", "--output", str(plug_in / "bench"))
    ran = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    rows = json.loads(ran.stdout)["rows"]
    assert {row["path"] for row in rows} == {f"torch mpi vexa, {way}"} and len(rows) == 6
    assert not any(row["wrong"] for row in rows)


@is_emulated
@pytest.mark.parametrize("mpi", ["aware", pytest.param("usual", marks=long)])
def test_some_ranks_leave_the_device_alone_that_all_see(
    request: pytest.FixtureRequest, programs: Programs, mpi: str
) -> None:
    """Beside an aware MPI one rank went by its device and the other by the host: they waited for
    each other."""
    ranks: Ranks = request.getfixturevalue("ranks" if mpi == "usual" else "aware_ranks")
    output = ranks.mpi(2, programs("bad_input.py"), EMULATED, "some on the CPU")
    assert output.count("is done") == 2


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
        *(pytest.param(2, name, marks=long) for name in ("torch_engines.py", "divided.py")),
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
