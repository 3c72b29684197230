"""`phalanx compare`: the same bits, or where two runs part."""

from pathlib import Path

import msgspec
import pytest

from phalanx.cli.compare import compare
from phalanx.errors import UserError
from phalanx.records.files import rank_file, read_run, write_record
from phalanx.report.bitwise import find_parting, judge, read_bitwise_run
from phalanx.run.departure import close_ended
from tests.run.programs.certificate import train

pytestmark = pytest.mark.usefixtures("restored_settings")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, flipped_at, options in (
        ("one", None, {}),
        ("again", None, {}),
        ("flipped", 2, {}),
        ("flipped last", 3, {}),
        ("cut otherwise", None, {"micro_batches": 4}),
        ("shorter", None, {"steps": 2}),
        ("usual", None, {"bitwise": False}),
    ):
        train(flipped_at, run_dir=folder / name, **options)
        close_ended()
    return folder


def test_two_runs_of_the_same_bits(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare(runs / "one", runs / "again")
    assert capsys.readouterr().out.endswith("\nthe same bits\n")


@pytest.mark.parametrize(("name", "step"), [("flipped", 2), ("flipped last", 3)])
def test_one_flipped_bit_is_found(
    runs: Path, name: str, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        compare(runs / "one", runs / name)
    assert ended.value.code == 1
    shown = capsys.readouterr().out
    assert f"different bits: they first differ at step {step}, in 3.weight\n" in shown
    assert "options, versions and processors in the records agree" in shown


def test_another_cut_is_named_as_the_cause(runs: Path) -> None:
    is_same, (said, why) = judge(*map(read_bitwise_run, (runs / "one", runs / "cut otherwise")))
    assert not is_same
    assert "they first differ at step 0, in 0.weight, 0.bias" in said
    assert why == "likely cause: micro batches: 8 and 4"


def test_a_shorter_run(runs: Path) -> None:
    _, (said, _) = judge(*map(read_bitwise_run, (runs / "one", runs / "shorter")))
    assert said == "different bits: the same for 2 steps, but one made 4"


def test_a_run_that_has_not_ended(runs: Path, tmp_path: Path) -> None:
    lines = rank_file(runs / "one", 0).read_text().splitlines(keepends=True)
    rank_file(tmp_path, 0).write_text("".join(lines[:-1]))
    write_record(tmp_path, read_run(runs / "one"))
    one, cut = read_bitwise_run(runs / "one"), read_bitwise_run(tmp_path)
    assert find_parting(one, cut) is None
    with pytest.raises(UserError, match=r"identical bits up to step 3; its end is unknown"):
        judge(one, cut)


def test_what_cannot_be_compared(runs: Path) -> None:
    with pytest.raises(UserError, match=r"usual has no digests .* only bitwise runs record them"):
        compare(runs / "one", runs / "usual")
    one = read_bitwise_run(runs / "one")
    run = msgspec.structs.replace(one.run, run="other")
    other = type(one)(
        **{**vars(one), "run": run, "names": ["w", *one.names[1:]]},
    )
    with pytest.raises(UserError, match=r"different models: 0.weight and w"):
        judge(one, other)
