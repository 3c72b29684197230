"""What batch systems say of their nodes."""

from pathlib import Path

import pytest

from phalanx.launch.allocation import most_local_ranks, slots_per_node


@pytest.mark.parametrize(
    ("environ", "slots"),
    [
        ({}, []),
        ({"SLURM_TASKS_PER_NODE": "4(x2),3", "SLURM_JOB_NUM_NODES": "3"}, [4, 4, 3]),
        ({"SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_NNODES": "2"}, [1, 1]),
        ({"SLURM_JOB_NUM_NODES": "3"}, [1, 1, 1]),
        ({"SLURM_TASKS_PER_NODE": "8"}, [8]),
        ({"LSB_MCPU_HOSTS": "n0 4 n1 2"}, [4, 2]),
        ({"PBS_NODEFILE": "n0\nn0\nn1\n"}, [2, 1]),
        ({"PBS_NODEFILE": None}, []),
        ({"HYDRA_HOST_FILE": "# all\nn0:2\nn1\n\n"}, [2, 1]),
        ({"PRTE_MCA_prte_default_hostfile": "n0 slots=2 # fast\nn1 slots = 3\nn0\n"}, [3, 3]),
    ],
)
def test_slots(environ, slots, tmp_path: Path) -> None:
    found = {}
    for name, text in environ.items():
        if "FILE" in name.upper():
            file = tmp_path / "nodes"
            if text is not None:
                file.write_text(text)
            text = str(file)
        found[name] = text
    assert slots_per_node(found) == slots


@pytest.mark.parametrize(
    ("ranks", "slots", "local"),
    [
        (4, [], 4),
        (2, [1, 1], 1),
        (3, [2, 2], 2),
        (2, [4, 4], 2),
        (6, [2, 2], 3),
        (5, [2, 4], 3),
        (1, [8], 1),
    ],
)
def test_the_fullest_node(ranks: int, slots: list[int], local: int) -> None:
    assert most_local_ranks(ranks, slots) == local
