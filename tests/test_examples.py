"""The programs for teaching do what they say; `tests/examples` has those in NumPy."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from phalanx.cli.data_pack import pack_data
from tests.conftest import ONE_THREAD, Ranks, forked_python, long

EXAMPLES = Path(__file__).parents[1] / "examples"
WITH_PYTORCH = (
    *("06_torch_mpi", "07_data_parallel", "08_fsdp", "09_tensor_parallel", "10_pipeline"),
    *("11_own_program", "13_horovod"),
)
FROM_A_PACK, CONTRASTIVE = "12_volumes", "15_contrastive"

pytestmark = pytest.mark.mpi


def last_line(output: str) -> str:
    return output.strip().splitlines()[-1]


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_PYTORCH)
def test_examples_with_pytorch_learn(ranks: Ranks, name: str) -> None:
    found = re.match(r"([\d.]+)% of digits", last_line(ranks.mpi(2, EXAMPLES / f"{name}.py")))
    assert found
    assert float(found[1]) > 80


@pytest.mark.long
def test_a_loss_over_all_pairs_is_the_same_on_every_number_of_ranks(ranks: Ranks) -> None:
    """A contrastive loss over each rank's own pairs was another one on 2 ranks, without a word."""
    outputs = [ranks.mpi(count, EXAMPLES / f"{CONTRASTIVE}.py") for count in (1, 2, 3)]
    losses = [[float(text) for text in re.findall(r"loss ([\d.]+)", each)] for each in outputs]
    assert len(losses[0]) == 10
    assert losses[0] == pytest.approx(losses[1], abs=1e-10, rel=0)
    assert losses[0] == pytest.approx(losses[2], abs=1e-10, rel=0)
    assert len({last_line(each).split(",")[0] for each in outputs}) == 1


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2])
def test_volumes_are_packed_and_learned(ranks: Ranks, count: int, tmp_path: Path) -> None:
    program, pack = EXAMPLES / f"{FROM_A_PACK}.py", str(tmp_path / "volumes.pack")
    pack_data(f"{program}:samples", Path(pack))
    found = re.match(r"([\d.]+)% of balls", last_line(ranks.mpi(count, program, pack)))
    assert found
    assert float(found[1]) > 80


@pytest.mark.long
def test_a_network_learns_beside_a_simulation(ranks: Ranks) -> None:
    found = re.match(
        r"([\d.]+)% of a swing are foretold, by 2 ranks",
        last_line(ranks.mpi(3, EXAMPLES / "14_coupled.py")),
    )
    assert found
    assert float(found[1]) > 95


@pytest.mark.parametrize("count", [3, long(1), long(2)])
def test_a_policy_learns_from_what_it_has_just_done(ranks: Ranks, count: int) -> None:
    """Data that a model makes were those of one update before; nothing told."""
    words = [str(forked_python()), str(EXAMPLES / "ports" / "on_policy_before.py")]
    plain = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, **ONE_THREAD},
    ).stdout
    found = last_line(ranks.mpi(count, EXAMPLES / "16_on_policy.py"))
    distances = [float(line.split()[2]) for line in (plain, found)]
    assert distances[0] < 0.2
    assert abs(distances[0] - distances[1]) < 1e-10


def test_every_example_is_tested() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    known = {*WITH_PYTORCH, FROM_A_PACK, "14_coupled", CONTRASTIVE}
    assert names == known | {"16_on_policy"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_says_how_to_start_it(path: Path) -> None:
    text = path.read_text()
    started = [f"python examples/{path.name}", f"phalanx launch -n 3 examples/{path.name}"]
    assert any(command in text.split('"""')[1] for command in started)
    assert len(text.splitlines()) <= 75
