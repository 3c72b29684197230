"""The page "Your first hour" does what it says: its files are written, and its commands run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "first_hour.md"
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.M | re.S)
FOR_MPIEXEC = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


@pytest.mark.long
@pytest.mark.mpi
def test_the_page_works_from_top_to_bottom(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **FOR_MPIEXEC, "PATH": path}
    outputs = {}
    for kind, text in BLOCK.findall(PAGE.read_text()):
        if kind == "python":
            name = text.splitlines()[0].removeprefix("# ")
            (tmp_path / name).write_text(text)
            continue
        done = subprocess.run(
            ["bash", "-e", "-c", text],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, (text, done.stdout, done.stderr)
        outputs[text.split("\n")[0]] = re.findall(r"^epoch .*", done.stdout, re.M)
    alone, ranks = outputs["python train.py"], next(v for k, v in outputs.items() if "two" in k)
    assert alone == ranks and len(alone) == 10
    assert outputs["mpiexec -n 2 --bind-to none python train.py --epochs 2"] == alone[:2]
    resumed = next(lines for words, lines in outputs.items() if "--saved" in words)
    assert resumed == alone[:6]
    assert (tmp_path / "runs/two/report.html").exists()
    assert (tmp_path / "runs/study/report.html").exists()
