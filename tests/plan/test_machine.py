"""Machine files: what is read, and what is refused with the key, the unit and what to write."""

from pathlib import Path

import pytest
import yaml

from phalanx.errors import UserError
from phalanx.plan.machine import (
    SumTime,
    machine_text,
    published_machines,
    read_machine,
    shared_by,
)
from tests.plan.made_profile import machine

MINIMAL = {"name": "hpc", "source": "mine", "nodes": 4, "ranks_per_node": 2}


def written(folder: Path, **changes: object) -> str:
    path = folder / "hpc.yaml"
    content = {key: value for key, value in {**MINIMAL, **changes}.items() if value != "left out"}
    path.write_text(yaml.safe_dump(content))
    return str(path)


def test_published_machines_are_read_and_say_what_is_unknown() -> None:
    names = published_machines()
    assert len(names) == 12
    for name in names:
        found = read_machine(name)
        assert found.source and "@" in found.source, "repository and commit"
        assert "price" in found.unknown
        assert (found.network is None) == any("bandwidth" in each for each in found.unknown)


def test_a_machine_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = machine(
        contention={1: 1.0, 2: 1.25},
        memory_bytes_per_s={65536: 3e10, 2**26: 8e9},
        all_reduce=[SumTime(ranks=2, bytes=2**20, seconds=2e-4, spread=0.05)],
        price_per_node_hour=1.5,
    )
    path = tmp_path / "hpc.yaml"
    path.write_text(machine_text(found, {"contention": "a line\nand another"}))
    assert "# and another\ncontention:" in path.read_text()
    assert read_machine(str(path)) == found


def test_numbers_may_be_written_with_exponents(tmp_path: Path) -> None:
    path = tmp_path / "hpc.yaml"
    lines = [*(f"{key}: {value}" for key, value in MINIMAL.items())]
    path.write_text("\n".join([*lines, "network: {bandwidth_bytes_per_s: 12.5e9}"]))
    network = read_machine(str(path)).network
    assert network is not None and network.bandwidth_bytes_per_s == 12.5e9
    assert network.latency_s is None


NETWORK = {"bandwidth_bytes_per_s": 1e9}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"node": 4}, "there is no key node; do you mean nodes?"),
        ({"colour": "red"}, "there is no key colour; it may be name"),
        ({"nodes": "left out"}, "nodes is missing, a number of nodes from 1 to 1e+06"),
        ({"nodes": 0}, "nodes must be a number of nodes from 1 to 1e+06, not 0"),
        ({"nodes": "many"}, "nodes must be a number of nodes"),
        ({"ranks_per_node": True}, "ranks_per_node must be a number of ranks"),
        ({"nodes": 2.5}, "nodes"),
        ({"network": {"bandwith": 1}}, "no key network.bandwith; do you mean network.bandwidth"),
        ({"network": {"latency_s": 1e-6}}, "network.bandwidth_bytes_per_s is missing, a number of"),
        ({"network": {**NETWORK, "latency_s": 20}}, "latency_s must be a number of seconds from"),
        ({"network": {"bandwidth_bytes_per_s": 1e13}}, "bytes per second out of a node"),
        ({"network": 3}, "network"),
        ({"contention": {2: 0.1}}, "contention of 2 must be a number of times the seconds"),
        ({"contention": {0: 1.5}}, "a key of contention must be a number of ranks from 1 to 4096"),
        ({"memory_bytes_per_s": {65536: 10}}, "memory_bytes_per_s of 65536 must be a number of"),
        ({"all_reduce": [{"ranks": 1, "bytes": 8, "seconds": 1}]}, "ranks must be a number of ra"),
        (
            {"memory_bytes_per_s": {2**26: 1e10}, "network": {"bandwidth_bytes_per_s": 1e11}},
            "are these bits? Then write 1.25e+10",
        ),
    ],
)
def test_bad_values_are_refused(changes: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        read_machine(written(tmp_path, **changes))
    assert words in str(raised.value)
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [("- 1", "holds no machine"), ("a: [", "is no YAML in line"), ("[" * 5000, "is no YAML")],
)
def test_other_files_are_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "hpc.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        read_machine(str(path))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fugako", "do you mean fugaku?"),
        ("mine", "cori-gpu"),
        ("there/is/none.yaml", "No such file"),
    ],
)
def test_unknown_names_are_refused(name: str, words: str) -> None:
    with pytest.raises(UserError) as raised:
        read_machine(name)
    assert words in str(raised.value)


# -- what bad input gets ---------------------------------------------------------------------------

SUM = {"ranks": 2, "bytes": 8, "seconds": 1e-3}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"all_reduce": [{**SUM, "second": 1}]}, "all_reduce.second; do you mean all_reduce.sec"),
        (
            {"all_reduce": [{"ranks": 2, "bytes": 8}]},
            "all_reduce.seconds is missing, a number of seconds from 1e-09 to 1000",
        ),
        ({"all_reduce": 3}, "all_reduce"),
        (
            {"network": {**NETWORK, "bandwidth_spread": 1.5}},
            "bandwidth_spread must be a number of shares of the bandwidth from 0 to 0.9, not 1.5",
        ),
        ({"network": {**NETWORK, "latency_spread": -1}}, "network.latency_spread must be"),
        ({"network": {**NETWORK, "send_cpu_s_per_mb": "much"}}, "processor seconds per megabyte"),
        ({"sum_cpu_s_per_mb": 11}, "processor seconds per megabyte from 0 to 10, not 11"),
        ({"price_per_node_hour": -1}, "of the currency per node and hour from 0 to 100000"),
        ({"memory_gib_per_rank": float("nan")}, "memory_gib_per_rank must be a number of GiB"),
        (
            {"network": {"bandwidth_bytes_per_s": 200e9}},
            "more than any known machine has for so many ranks (1.4e+11): are these bits? Then "
            "write 2.5e+10; if they are bytes, state memory_bytes_per_s, too",
        ),
    ],
)
def test_more_bad_values_are_refused(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as raised:
        read_machine(written(tmp_path, **changes))
    assert words in str(raised.value)


def test_a_stated_bandwidth_of_bytes_is_taken_where_memory_is_faster(tmp_path: Path) -> None:
    changes = {"network": {"bandwidth_bytes_per_s": 200e9}, "memory_bytes_per_s": {2**26: 150e9}}
    network = read_machine(written(tmp_path, **changes)).network
    assert network is not None and network.bandwidth_bytes_per_s == 200e9


def test_more_ranks_than_a_node_states_share_its_memory() -> None:
    found = machine(memory_gib_per_rank=16.0)
    shares = [shared_by(found, ranks).memory_gib_per_rank for ranks in (1, 2, 4)]
    assert shares == [16.0, 16.0, 8.0], "a device's memory does not grow where there are fewer"
    assert shared_by(machine(), 4) == machine()


def test_a_file_of_many_sums_is_one_screen(tmp_path: Path) -> None:
    sums = [SumTime(ranks=k, bytes=2**20, seconds=1e-3) for k in (2, 4, 8) for _ in range(5)]
    path = tmp_path / "hpc.yaml"
    path.write_text(machine_text(machine(all_reduce=sums), {}))
    assert len(path.read_text().splitlines()) < 40
    assert read_machine(str(path)).all_reduce == sums
