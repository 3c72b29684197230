"""The table on the terminal."""

from pathlib import Path

from rich.console import Console

from phalanx.report.build import content_of
from tests.report.made_study import make_study, scaling_jobs


def printed(folder: Path, width: int = 80) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        content_of(folder).print_summary(console)
    return capture.get().splitlines()


def test_numbers_stand_in_columns_of_80(alone: Path) -> None:
    head, _, row, *_ = printed(alone)
    assert " ".join(head.split()) == (
        "model strategy ranks threads epoch s samples/s speed-up comm % acc. %"
    )
    assert row.split()[:4] == ["cnn", "mpi", "2", "1"]
    assert row.index("2") == head.index("ranks") + len("ranks") - 1, "set to the right"


def test_every_run_has_a_row_with_its_status(troubled: Path) -> None:
    text = "\n".join(printed(troubled, width=120))
    for word in ("completed", "failed", "interrupted", "not run"):
        assert word in text
    assert "MLP: MPI on 2 ranks 1.66× faster than one thread" in text


def test_batch_and_seed_are_shown_only_when_there_are_several(full: Path, alone: Path) -> None:
    assert {"batch", "seed"} <= set(printed(full, width=120)[0].split())
    assert not {"batch", "seed"} & set(printed(alone, width=120)[0].split())


def test_of_several_seeds_no_word_is_cut(tmp_path: Path) -> None:
    """The status of runs that all came to their end gives its room to the seed."""
    jobs = [job for seed in (0, 1) for job in scaling_jobs(["mlp"], seed)]
    head, _, *rows = printed(make_study(tmp_path / "s", jobs))
    assert "seed" in head.split()
    assert "status" not in head.split()
    assert len([row for row in rows if row.startswith("mlp")]) == len(jobs)


def test_six_claims_and_how_many_more(full: Path) -> None:
    lines = printed(full, width=120)
    (more,) = (line for line in lines if "more in the report" in line)
    assert int(more.split()[0]) > 6
    assert sum("95 % CI" in line for line in lines) == 6
