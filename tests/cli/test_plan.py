"""`phalanx plan` and `phalanx bench machine` as a user calls them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.plan.machine import machine_text, read_machine
from phalanx.plan.profile import read_profile, write_profile
from tests.cli.conftest import Phalanx
from tests.cli.test_no_mpi import WITHOUT_MPI
from tests.plan.made_profile import machine, profile


def printed(phalanx: Phalanx, *words: str) -> str:
    done = phalanx(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refused(phalanx: Phalanx, *words: str) -> str:
    done = phalanx(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a profile, and a machine file beside it."""
    place = tmp_path / "profile"
    place.mkdir()
    write_profile(place, profile())
    (tmp_path / "hpc.yaml").write_text(machine_text(machine(), {}))
    return place


def test_plan_of_a_profile(folder: Path, forked_phalanx: Phalanx) -> None:
    words = ["--machine", "hpc.yaml", "--ranks", "1..8"]
    text = printed(forked_phalanx, "plan", str(folder), *words)
    assert "EXTRAPOLATED: another processor" in text
    rows = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["1", "2", "4", "8"]
    assert "worth it: " in text
    assert "mends most: a minute on 2 nodes of hpc" in text
    assert "not sure at 8 ranks: " in text


def test_plan_of_a_whole_training(folder: Path, forked_phalanx: Phalanx) -> None:
    """4 epochs of 10 steps and what is outside them, with a price and a budget."""
    words = ["--machine", "hpc.yaml", "--ranks", "1..8", "--epochs", "4", "--budget", "1h"]
    words += ["--what-if", "bandwidth=2x,price=3600", "--trace"]
    text = printed(forked_phalanx, "plan", str(folder), *words)
    assert "2 GB/s out of a node" in text
    assert "1 node hours are enough for " in text
    (cost,) = {line.split()[1] for line in text.splitlines() if line.startswith("        ")}
    assert cost == "EUR"
    (place,) = folder.parent.glob("runs/plan/*")
    plan = json.loads((place / "plan.json").read_text())
    one = plan["rows"][0]
    assert one["whole_s"]["median"] == pytest.approx(3.0 + 40 * one["step_s"]["median"])
    assert one["cost"] == pytest.approx(one["whole_s"]["median"])
    assert "imagined run: phalanx report" in text
    printed(forked_phalanx, "trace", str(place / "ranks-8"))
    printed(forked_phalanx, "report", str(place / "ranks-8"))
    assert "planned, not run" in (place / "ranks-8" / "report.html").read_text()


def test_plan_as_json(folder: Path, forked_phalanx: Phalanx) -> None:
    words = ["--machine", "dlperf-v100", "--ranks", "8,16", "--json"]
    plan = json.loads(printed(forked_phalanx, "plan", str(folder), *words))
    assert [each["ranks"] for each in plan["rows"]] == [8, 16]
    step = plan["rows"][1]["step_s"]
    assert step["low"] < step["median"] < step["high"]
    assert plan["machine"].startswith("V100 nodes of DLPerf: ")


def test_profile_of_a_recorded_run(tmp_path: Path, forked_phalanx: Phalanx) -> None:
    """Nothing is measured; of a run of few steps no profile is made."""
    words = ["train", "--validation-samples", "64", "--dataset", "digits"]
    runs = (("mine", "1", "2560", "128"), ("short", "1", "64", "64"), ("epochs", "12", "64", "64"))
    for name, epochs, samples, batch in runs:
        sizes = ["--epochs", epochs, "--train-samples", samples, "--batch-size", batch]
        places = ["--run-dir", name, "--checkpoint-dir", f"{name}-saved"]
        printed(forked_phalanx, *words, *sizes, *places)
    assert read_profile(tmp_path / "epochs").times[0].median_s > 0, "by the sum of its parts"
    found = read_profile(tmp_path / "mine")
    (times,) = found.times
    assert (times.at_once, times.samples) == (1, 128)
    assert len(times.pooled) == 15, "20 steps, the first of which has none before it, but a quarter"
    assert found.quantities == 2, "Adam"
    assert times.peak_bytes == found.peak_memory_bytes > 10**7
    assert found.checkpoint_s and found.evaluation_s and not (found.layers or found.gradients)
    assert 0 <= found.state_bytes - 4 * found.gradient_bytes < 100, "and counters of steps"
    text = printed(forked_phalanx, "plan", "mine", "--ranks", "1,2", "--ranks-per-node", "2")
    assert "1 rank, steps of 128 samples" in text
    assert "has records of 1 steps" in refused(forked_phalanx, "plan", "short", "--ranks", "1")
    words = ["plan", "mine", "--ranks", "1", "--with", "short"]
    assert "global batch is 64, that of the profile 128" in refused(forked_phalanx, *words)


@pytest.mark.mpi
def test_plan_of_a_training(tmp_path: Path, forked_phalanx: Phalanx) -> None:
    """Measured here, kept, and planned by again."""
    words = ["--dataset", "digits", "--width", "32", "--ranks", "1,2", "--ranks-per-node", "2"]
    text = printed(forked_phalanx, "plan", *words)
    assert "1 and 2 ranks that exchange nothing, steps of 64 samples and 128 samples" in text
    (folder,) = (tmp_path / "runs" / "plan").iterdir()
    found = read_profile(folder)
    assert [(each.at_once, each.samples) for each in found.times] == [(1, 64), (1, 128), (2, 64)]
    assert [each.ranks for each in found.sums] == [2, 2, 2]
    assert found.sums[-1].bytes == found.gradient_bytes
    assert sum(each.bytes for each in found.gradients) == found.gradient_bytes
    assert all(each.peak_bytes > 10**7 for each in found.times)
    assert [layer.name for layer in found.layers if layer.parameter_bytes] == list(found.units)
    assert [time.samples for time in found.layers[1].times] == [2, 16, 128]
    assert found.split and found.split.of("hidden2").all_reduces == 1
    assert found.saved_bytes >= sum(layer.saved_bytes for layer in found.layers) > 4 * 784
    assert found.train_samples == 60_000, "of all that a training would have"
    assert found.checkpoint_s and found.evaluation_s, "of 10,000 samples, by those of 500"
    assert not (folder / "checkpoints").exists()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print(1)", "train.py 64 did not start a run by phalanx.start"),
        ("import sys\nraise ValueError(sys.argv[1])", "fails with its own batch: ValueError: 64"),
    ],
)
def test_programs_that_no_plan_can_measure(
    program: str, said: str, tmp_path: Path, forked_phalanx: Phalanx
) -> None:
    """More of them are in tests/bench/test_profile.py."""
    (tmp_path / "train.py").write_text(program)
    text = refused(forked_phalanx, "plan", "train.py", "--ranks", "1,2", "--", "64")
    assert said in text
    assert text.count("phalanx: ") == 1


def test_options_of_models_are_not_for_programs(folder: Path, forked_phalanx: Phalanx) -> None:
    for name in ("train.py", str(folder)):
        words = ["plan", name, "--batch-size", "8"]
        assert "--batch-size is for the built-in models" in refused(forked_phalanx, *words)
    assert "there is no file train.py" in refused(forked_phalanx, "plan", "train.py")
    assert "takes one folder" in refused(forked_phalanx, "plan", str(folder), "b")


@pytest.mark.mpi
def test_machine_file_of_this_machine(tmp_path: Path, forked_phalanx: Phalanx) -> None:
    printed(forked_phalanx, "bench", "machine", "--ranks", "2", "--price-per-node-hour", "2")
    found = read_machine(str(tmp_path / "machine.yaml"))
    assert set(found.contention) == {1, 2}
    assert {each.ranks for each in found.all_reduce} == {2}
    assert found.price_per_node_hour == 2
    assert found.unknown == ["network"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", "4..1"], "write 1..1024 for powers of two"),
        (["--ranks", "64", "--ranks-per-node", "2"], "name a machine with a network"),
        (["--machine", "cori-knl", "--ranks", "4"], "states no network, and 4 ranks are on 4"),
        (["--machine", "hpc.yaml", "--link", "1ms"], "leave --machine out"),
        (["--speed", "0"], "--speed must be from"),
        (["--ranks-per-node", "0"], "--ranks-per-node must be at least 1"),
        (["--what-if", "bandwidth=2x"], "name it, too: --machine FILE"),
        (["--machine", "hpc.yaml", "--what-if", "colour=2"], "the names are bandwidth, latency"),
        (["--machine", "hpc.yaml", "--what-if", "cores=2x"], "does not state cores_per_node"),
        (["--budget", "a lot"], "write node hours, such as 500h"),
        (["--compress", "topk"], "plans know fp16, bf16, int8"),
        (["--compress", "fp16", "--strategy", "zero"], "it is for --strategy mpi"),
        (["--all-reduce", "tree"], "a plan takes its default"),
        (["--strategy", "zero", "--ranks", "2"], "are not in this profile"),
        (["--mesh", "dp=2,tp=2", "--ranks", "2"], "use --ranks 4"),
        (["--rounds", "3"], "--rounds 3 is for --validate"),
        (["--here", "rounds.json"], "--here rounds.json is for --validate"),
        (["--page", "page.md"], "--page page.md is for --validate"),
        (["--validate", "--rounds", "-1"], "must not be negative"),
        (["--validate", "--here", "hpc.yaml"], "hpc.yaml is no file of rounds"),
        (["--validate", "--page", "no/page.md"], "--page no/page.md cannot be written"),
    ],
)
def test_bad_input_is_refused(
    words: list[str], said: str, folder: Path, forked_phalanx: Phalanx
) -> None:
    assert said in refused(forked_phalanx, "plan", str(folder), *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--per-rank-batch-size", "8"], "give --batch-size"), (["--device", "cuda"], "the CPU")],
)
def test_options_that_a_plan_does_not_heed_are_refused(
    words: list[str], said: str, forked_phalanx: Phalanx
) -> None:
    assert said in refused(forked_phalanx, "plan", "--ranks", "1", *words)


def test_damaged_and_missing_profiles(folder: Path, forked_phalanx: Phalanx) -> None:
    (folder / "profile.json").write_text("{")
    assert "profile.json is damaged" in refused(forked_phalanx, "plan", str(folder))
    assert "nowhere" in refused(forked_phalanx, "plan", "nowhere")


def test_published_tables(tmp_path: Path, forked_phalanx: Phalanx) -> None:
    text = printed(forked_phalanx, "plan", "--validate", "--page", "page.md")
    assert "TF K80 EC2: parameter servers" in text
    assert "phalanx plan --validate --page page.md" in (tmp_path / "page.md").read_text()
    printed_json = printed(forked_phalanx, "plan", "--validate", "--json")
    assert len(json.loads(printed_json)["published"]) > 60
    (tmp_path / "rounds.json").write_text(printed_json)
    read = printed(forked_phalanx, "plan", "--validate", "--here", "rounds.json")
    assert read == text, "no rounds on this machine are in it"


def test_machine_files_are_not_overwritten(folder: Path, forked_phalanx: Phalanx) -> None:
    assert "add --overwrite" in refused(forked_phalanx, "bench", "machine", "hpc.yaml")
    assert "ends in .yaml" in refused(forked_phalanx, "bench", "machine", "hpc.txt")
    assert "at least 1" in refused(forked_phalanx, "bench", "machine", "--ranks", "0")


# -- what bad input gets ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks-per-node", "5000"], "at least 1, and at most 4096, not 5000"),
        (["--machine", "hpc.yml"], "hpc.yml cannot be read"),
        (["--machine", "."], "is no .yaml file and no machine that ships"),
        (["--speed", "nan"], "--speed must be from 0.001 to 1000"),
        (
            ["--machine", "hpc.yaml", "--what-if", "ranks_per_node=0.4"],
            "ranks_per_node=0.4: ranks_per_node must be a number of ranks from 1 to 4096, not 0",
        ),
        (["--machine", "hpc.yaml", "--what-if", "bandwidth=1e9x"], "bytes per second out of a"),
    ],
)
def test_more_bad_input_is_refused(
    words: list[str], said: str, folder: Path, forked_phalanx: Phalanx
) -> None:
    assert said in refused(forked_phalanx, "plan", str(folder), *words)


def test_ranks_that_share_a_node_do_not_fit_its_memory(
    folder: Path, tmp_path: Path, forked_phalanx: Phalanx
) -> None:
    (tmp_path / "small.yaml").write_text(machine_text(machine(memory_gib_per_rank=0.1), {}))
    words = ["plan", str(folder), "--machine", "small.yaml", "--ranks", "32"]
    assert "does not fit" not in printed(forked_phalanx, *words)
    assert "does not fit: 9.29 MB" in printed(forked_phalanx, *words, "--ranks-per-node", "32")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere/m.yaml"], "nowhere/m.yaml cannot be written"),
        (["folder.yaml", "--overwrite"], "folder.yaml cannot be written"),
        (["--sizes", "1XB"], "--sizes 1XB: not a size"),
        (["--price-per-node-hour", "-1"], "must be from 0 to 100000 of the currency"),
        (["--price-per-node-hour", "nan"], "must be from 0 to 100000 of the currency"),
        (["--hosts", "a:1,b:2"], "--hosts names nodes of 1 and of 2 ranks"),
        (["--hosts", "a:2,b:2", "--ranks", "4"], "--ranks 4, but --hosts names 2 on each node"),
        (["--hosts", "a:0"], "'a:0' is not a host"),
        (["--hosts", "a", "--hostfile", "hosts"], "both name the nodes"),
    ],
)
def test_machines_that_cannot_be_measured(
    words: list[str], said: str, tmp_path: Path, forked_phalanx: Phalanx
) -> None:
    (tmp_path / "folder.yaml").mkdir()
    assert said in refused(forked_phalanx, "bench", "machine", *words)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PHALANX_LINK": "1ms"}, "PHALANX_LINK emulates a link"),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
            "bench machine starts its ranks, but openmpi already started 2",
        ),
    ],
)
def test_a_machine_is_measured_by_its_own_ranks_over_real_links(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, forked_phalanx: Phalanx
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert said in refused(forked_phalanx, "bench", "machine")


def test_without_an_mpi_one_rank_is_measured_and_several_are_refused(tmp_path: Path) -> None:
    def measured(file: str, ranks: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", WITHOUT_MPI, "bench", "machine", file, "--ranks", ranks],
            env={"PATH": "", "HOME": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )

    several = measured("two.yaml", "2")
    assert (several.returncode, (tmp_path / "two.yaml").exists()) == (2, False)
    assert "no MPI was found" in several.stderr
    assert measured("one.yaml", "1").returncode == 0
    found = read_machine(str(tmp_path / "one.yaml"))
    assert (found.ranks_per_node, found.contention, found.unknown) == (1, {1: 1.0}, ["network"])
