"""Every benchmark runs to its end, in a copy whose constants make it short.

Types are checked with those of the sources.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
START = '\nif __name__ == "__main__":\n'
# Program: words of its command line, constants.
SHORT = {
    "bitwise.py": ("--quick", 'BATCH = {"mlp": 16}\nQUICK_ROUNDS = 3'),
    "checkpoints.py": ("--quick", "STEPS = 4\nEVERY = 2\nWIDTH = 32"),
    "fused_step.py": ("", "ELEMENTS = 1000\nSIZES = [ELEMENTS] * TENSORS\nSTEPS = 3"),
    "gpu.py": (
        "--cpu",
        'SIZES = {"4 KB": 4096}\nREPEATS = {"4 KB": 2}\nWIDTH = 16\nSTEPS = 2\nWARM_UP = 1',
    ),
    "gradient_check.py": ("", 'STEPS = {"mlp": 20}'),
    "import_torch.py": ("--rounds 2", ""),
    "loading.py": ("--quick", ""),
    "link.py": ("", 'LINKS = ("1Gbit/s,1ms",)\nROUNDS = 2\nSUMMED_BYTES = 100_000'),
    "nodes.py": ("--quick", ""),
    "overlap.py": ("--quick", ""),
    "plan_links.py": ("--rounds 1 --layouts 2x1 --models rnn", ""),
    "plan_programs.py": (
        "--rounds 1 mnist",
        f'FOLDER = Path("{BENCHMARKS.parent / "examples/ports"}")',
    ),
    "ports.py": (
        "pinn",
        f'FOLDER = Path("{BENCHMARKS.parent / "examples/ports"}")\nROUNDS = 1\n'
        'OPTIONS = "--steps 200"',
    ),
    "relay.py": ("16", "RUN_S = 0.3"),
    "staging.py": ("--rates 1000 --mib 8", "REPEATS = 2\nWARM_UP = 1"),
    "start_on_nodes.py": ("--rounds 1 --starts launch train", ""),
    "same_numbers.py": ("--models mlp --strategies mpi --ranks 2", ""),
    "survive.py": ("--quick", 'SIZES = {"short": Size(16, 32, 5)}'),
    "tensor_parallel.py": ("--rounds 1", "NEW_TOKENS = 4\nLAYERS = 1"),
    "training_over_nodes.py": ("--quick", ""),
    "training.py": ("mlp", 'SAMPLES = {"mlp": 1280}\nROUNDS = 2'),
}


def test_every_benchmark_is_run() -> None:
    programs = {path.name for path in BENCHMARKS.glob("*.py")}
    assert programs == {*SHORT, "harness.py"}


@pytest.mark.parametrize("name", SHORT)
def test_its_constants_are_there(name: str) -> None:
    text, (_, constants) = (BENCHMARKS / name).read_text(), SHORT[name]
    assert text.count(START) == 1
    for statement in ast.parse(constants).body:
        assert isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        constant = statement.targets[0].id
        assert re.search(rf"^([A-Z_]+, )*{constant}(, [A-Z_]+)*(: .*)? = ", text, re.M), constant


@pytest.mark.long
@pytest.mark.mpi
@pytest.mark.parametrize("name", SHORT)
def test_it_runs(name: str, tmp_path: Path) -> None:
    words, constants = SHORT[name]
    program = tmp_path / name
    text = (BENCHMARKS / name).read_text()
    program.write_text(text.replace(START, f"\n{constants}\n{START}"))
    path = f"{BENCHMARKS}:{BENCHMARKS.parent}"  # some use helpers of the tests
    subprocess.run(
        [sys.executable, program, *words.split()],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        check=True,
        timeout=600,
    )
