"""Claims about scaling: what they say, and what they must not say."""

import random
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from phalanx.records.files import read_run, write_record
from phalanx.records.owner import this_process
from phalanx.records.schema import Outcome, Probe
from phalanx.report.build import conditions
from phalanx.report.claims import FarthestAccuracy, Fastest
from phalanx.report.folder import read_folder
from phalanx.report.measures import RunMeasure
from phalanx.report.pages.scaling import MPI_AGAINST_GLOO, BeyondIdeal, MoreNodes, Wall
from phalanx.report.training_page import BEST, BEST_AGAINST_THREADS
from phalanx.report.values import View
from tests.report.made_study import Job, make_study
from tests.report.made_view import (
    check_claims,
    known,
    measured,
    on_nodes,
    read,
    repeated,
    table_of,
    texts,
    told,
    view_of,
)


def scaled(*runs: tuple[Job, float]) -> View:
    return view_of(repeated(*runs))


def test_best_against_one_thread_and_against_the_best_sequential_run() -> None:
    view = scaled(
        (Job("mlp", "sequential"), 6.0),
        (Job("mlp", "sequential", threads=2), 4.0),
        (Job("mlp", "mpi", ranks=2), 2.0),
    )
    (best,) = texts(view, Fastest)
    assert best == (
        "MPI on 2 ranks is the fastest of 3 configurations: 2.00 s per epoch, 600 samples/s"
    )
    for claim, gain, base in (
        (BEST, 3.0, "one thread"),
        (BEST_AGAINST_THREADS, 2.0, "sequential with 2 threads"),
    ):
        (found,) = told(view, claim)
        assert found.interval is not None and found.interval.level == pytest.approx(0.975)
        assert found.interval.estimate == pytest.approx(gain)
        assert gain * 0.97 < found.interval.low < found.interval.high < gain * 1.03
        assert found.text.startswith(f"MPI on 2 ranks: {gain:.2f}× faster than {base} (95 % CI ")


def noisy(noise: random.Random, number: int = 13) -> View:
    """One speed, give or take 3 %, in 13 layouts."""
    layouts = [Job("mlp", "sequential"), Job("mlp", "sequential", threads=2)]
    layouts += [Job("mlp", name, ranks=n) for n in range(1, 7) for name in ("mpi", "gloo")]
    return view_of(
        measured(replace(job, seed=seed), noise.gauss(1.0, 0.03))
        for job in layouts[:number]
        for seed in range(3)
    )


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_finding(seed: int) -> None:
    """Of 13 layouts of 1 s \N{PLUS-MINUS SIGN} 3 % one was `1.06 times as fast`, and `the wall`
    stood at 2 ranks."""
    view = noisy(random.Random(seed))
    (best,) = texts(view, Fastest)
    assert best.startswith("No clear winner among 13 configurations")
    assert not [found for found in told(view, Wall) if found.verdict == "wall"]
    assert {found.verdict for found in told(view, MPI_AGAINST_GLOO)} == {"unclear"}


@pytest.mark.parametrize("seed", [49, 55])
def test_the_best_of_many_equals_is_no_key_figure(seed: int) -> None:
    """Chosen as the fastest of 13, and judged as if it were the only one: `1.04×`."""
    view = noisy(random.Random(seed))
    best = min(view.frame("cells"), key=lambda row: float(row["epoch_s"]))
    assert best["speed_up_low"] > 1, "as if it were the only one"
    (figure,) = view.page.keys(view)
    assert "×" not in figure.value
    assert figure.value.endswith(" s")
    assert view.page.headline(view).startswith("No configuration is significantly faster")


def test_nothing_is_compared_with_a_baseline_that_is_not_there() -> None:
    view = scaled((Job("mlp", "mpi", ranks=1), 3.0), (Job("mlp", "mpi", ranks=2), 2.0))
    assert texts(view, BEST) == [""], "no sentence"
    assert len(texts(view, Fastest)) == 1
    assert view.page.headline(view) == "MLP: 2.00 s per epoch, MPI on 2 ranks"


def test_the_sequential_program_may_win() -> None:
    view = scaled((Job("mlp", "sequential"), 1.0), (Job("mlp", "mpi", ranks=2), 2.0))
    assert texts(view, Fastest)[0].startswith("sequential with 1 thread is the fastest")
    assert texts(view, BEST) == ["Nothing is significantly faster than one thread"]


def test_the_wall_is_where_an_epoch_is_seen_to_get_longer() -> None:
    mpi, gloo = texts(
        scaled(
            (Job("mlp", "mpi", ranks=1), 4.0),
            (Job("mlp", "mpi", ranks=2), 2.0),
            (Job("mlp", "mpi", ranks=4), 2.5),
            (Job("mlp", "gloo", ranks=1), 4.0),
            (Job("mlp", "gloo", ranks=2), 3.0),
        ),
        Wall,
    )
    assert re.fullmatch(
        r"MPI on 4 ranks: 1\.25× slower than 2 ranks \(95 % CI 1\.2\d–1\.\d\d\), with shared "
        r"cores",
        mpi,
    )
    assert gloo == "Gloo: every step up to 2 ranks is faster than the one before"


def test_where_no_difference_is_seen_no_wall_is_told() -> None:
    view = scaled((Job("mlp", "mpi", ranks=1), 2.0), (Job("mlp", "mpi", ranks=2), 2.0))
    (text,) = texts(view, Wall)
    assert text.startswith("No significant difference between MPI on 2 ranks and 1 rank: 1.00× (")
    assert texts(scaled((Job("mlp", "mpi", ranks=2), 1.0)), Wall) == []


def test_more_than_its_cores_can_give_is_flagged() -> None:
    (text,) = texts(
        scaled(
            (Job("cnn", "sequential"), 2.18),
            (Job("cnn", "mpi", ranks=2), 1.0),
            (Job("cnn", "gloo", ranks=2), 1.0895),
        ),
        BeyondIdeal,
    )
    assert text.startswith("MPI on 2 ranks: efficiency 109 % (95 % CI 107 % to 111 %)")


def test_accuracy_with_one_seed_is_not_told_from_chance() -> None:
    view = view_of(
        [
            measured(Job("mlp", "sequential"), 1.0, 0.9),
            measured(Job("mlp", "mpi", ranks=2), 1.0, 0.895),
        ]
    )
    (found,) = told(view, FarthestAccuracy)
    assert (found.verdict, found.interval) == ("unclear", None)
    assert found.text == "MPI on 2 ranks: −0.50 points against the sequential program, one seed"


def test_accuracies_are_compared_seed_by_seed() -> None:
    """With seeds 98, 96 and 94 % apart, a configuration whose only seed was 98 was +2.00 off."""
    accuracies = {0: 0.98, 1: 0.96, 2: 0.94}
    runs = [
        *(measured(Job("mlp", "sequential", seed=s), 1.0, a) for s, a in accuracies.items()),
        measured(Job("mlp", "mpi", ranks=2), 1.0, 0.98),
        *(
            measured(Job("mlp", "gloo", ranks=2, seed=s), 1.0, a - 0.01 + s / 1000)
            for s, a in accuracies.items()
        ),
    ]
    (same,) = texts(view_of(runs[:4]), FarthestAccuracy)
    assert same == "MPI on 2 ranks: 0.00 points against the sequential program, one seed"
    (widest,) = told(view_of(runs), FarthestAccuracy)
    assert widest.text.startswith("Gloo on 2 ranks: accuracy below the sequential program, −0.90")
    assert widest.interval is not None
    assert widest.interval.estimate == pytest.approx(-0.009)


def test_mpi_against_gloo_only_where_all_else_is_equal() -> None:
    jobs = [("mpi", 1, 1.0), ("gloo", 1, 1.01), ("mpi", 2, 1.0), ("gloo", 2, 1.5), ("mpi", 4, 1.0)]
    runs = repeated(*((Job("mlp", name, ranks=ranks), s) for name, ranks, s in jobs))
    one, two = told(view_of(runs), MPI_AGAINST_GLOO)
    assert one.text.startswith("No significant difference between MPI on 1 rank and Gloo: 1.01×")
    assert two.text.startswith("MPI on 2 ranks: 1.50× faster than Gloo (95 % CI ")
    assert told(view_of(runs[-3:]), MPI_AGAINST_GLOO) == []


def test_the_page_of_a_study(full: Path, alone: Path, tmp_path: Path) -> None:
    content, _ = read(full)
    check_claims(content)
    assert content.headline == "RNN: MPI on 2 ranks 1.98× faster than one thread"
    assert [key.value for key in content.key_figures] == ["1.66×", "1.95×", "1.98×"]
    assert read(alone)[0].headline.startswith("CNN: 1.54 s per epoch")
    empty = make_study(tmp_path / "empty", [], also_planned=["mlp-mpi"])
    assert read(empty)[0].headline == "No run of this study has completed yet"


def test_runs_that_were_not_completed_are_counted_and_named(troubled: Path) -> None:
    (_, counts), (name, error) = read(troubled)[0].conditions
    assert counts == (
        "Not completed: 3 of 6 runs: 1 failed, 1 interrupted and 1 missing (mlp-mpi-r3-b128-s0, "
        "mlp-gloo-r2-b128-s0 and mlp-gloo-r4-b128-s0)."
    )
    assert name == "mlp-mpi-r3-b128-s0"
    assert error.startswith("rank 2: RuntimeError:")


def test_runs_of_two_commits_on_two_hosts_are_said_to_be(tmp_path: Path) -> None:
    folder = make_study(tmp_path / "s", [Job("mlp", "sequential"), Job("mlp", "mpi", ranks=2)])
    run = read_run(folder / "mlp-mpi-r2-b128-s0")
    elsewhere = msgspec.structs.replace(run.environment, commit="fedcba", hostname="other")
    write_record(folder / "mlp-mpi-r2-b128-s0", msgspec.structs.replace(run, environment=elsewhere))
    assert [text for _, text in read(folder)[0].conditions] == [
        "Runs differ in host: example in 1 of 2 runs and other in 1 of 2 runs.",
        "Runs differ in commit: 0123456789abcdef in 1 of 2 runs and fedcba in 1 of 2 runs.",
    ]


def disturb(folder: Path, name: str, share: float) -> None:
    run = read_run(folder / name)
    probes = [Probe(core_share=value, lowest=value) for value in (0.99, share)]
    write_record(folder / name, msgspec.structs.replace(run, probes=probes))


def test_a_disturbed_machine_has_a_line_of_its_own(tmp_path: Path) -> None:
    jobs = [Job("mlp", "sequential"), Job("mlp", "mpi", ranks=2)]
    folder = make_study(tmp_path / "s", jobs)
    disturb(folder, jobs[0].name, 0.98)
    disturb(folder, jobs[1].name, 0.60)
    content, _ = read(folder)
    assert content.notice.startswith("Other processes used 40 % of the CPU during 1 of 2 runs")
    assert "processes" not in content.headline + content.lead
    disturb(folder, jobs[1].name, 0.97)
    assert read(folder)[0].notice == ""


def test_a_run_with_one_epoch_ten_times_as_long_is_named() -> None:
    """MLP on 2 threads: 0.84, 3.42 and 0.33 s became `1.87 s, speed-up 0.13`, and no word."""
    run = measured(Job("mlp", "sequential", threads=2), 1.0)
    epochs = tuple(
        replace(run.epochs[0], epoch=n, epoch_s=s) for n, s in enumerate((0.84, 3.42, 0.33))
    )
    view = view_of([known(run, epochs=epochs, timed_ranks=[])])
    assert conditions(view.data) == [
        (run.name, "Epochs of 3.42, 0.330 s, 10.4\N{MULTIPLICATION SIGN} apart.")
    ]


def test_a_run_whose_process_is_gone_runs_no_more(tmp_path: Path) -> None:
    job = Job("mlp", "sequential", outcome=Outcome(status="running"))
    folder = make_study(tmp_path / "s", [job])
    run = read_run(folder / job.name)
    gone = msgspec.structs.replace(this_process(), process_began="never")
    for owner, status in ((gone, "interrupted"), (this_process(), "running"), (None, "running")):
        write_record(folder / job.name, msgspec.structs.replace(run, owner=owner))
        (found,) = read_folder(folder).runs
        assert found.status == status


def test_where_the_network_begins_to_cost() -> None:
    """The same ranks on two nodes, by the share of communication that these add."""
    found: list[RunMeasure] = []
    for nodes, epoch_s, share in ((1, 1.0, 0.1), (2, 2.0, 0.4)):
        for seed, factor in enumerate((0.99, 1.0, 1.01)):
            run = measured(Job("mlp", "mpi", ranks=2, seed=seed), epoch_s * factor)
            found.append(known(on_nodes(run, nodes), communication_share=share * factor))
    view = view_of(found)
    (text,) = texts(view, MoreNodes)
    assert text.startswith("MPI on 2 ranks over 2 nodes: 2.00× slower than MPI on 2 ranks (95 % CI")
    assert "memory takes 10 % of the training time; the network adds 30 % (" in text
    assert [row["shown"] for row in view.frame("cells")] == [True, False]
    assert texts(view, Wall) == []
    table = table_of(view, "Configurations")
    assert table is not None and "nodes" in table.columns
    alone = view_of(found[:3])
    assert texts(alone, MoreNodes) == []
    table = table_of(alone, "Configurations")
    assert table is not None and "nodes" not in table.columns
