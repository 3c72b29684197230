"""One rank of PyTorch's distributed suite: rank.py FOLDER.

Runs the tests that FOLDER/tests names, each in a process group of its own as PyTorch does, and
writes FOLDER/<number of the test>.<rank>. The job ends with the first test that fails: nobody knows
what that leaves behind.
"""

import json
import os
import sys
import time
import unittest
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import TEST_SKIPS
from torch.testing._internal.distributed import distributed_test as suite

SKIPS = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Suite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
    """A test that runs in this process: PyTorch's own class would start one per rank."""

    rank = RANK


def skip_reason(end: SystemExit) -> str:
    """Return why a test has ended its process. Raises: RuntimeError: it was no skip."""
    code = end.code or 0
    if code not in SKIPS:
        raise RuntimeError(f"the test ended its process with {code}")
    return SKIPS[int(code)]


def run_test(name: str, folder: Path) -> tuple[str, str]:
    """Return the test's result and the reason of a skip. Raises whatever makes the test fail."""
    for inner in ("barrier", "test_dir"):
        (folder / inner).mkdir(parents=True, exist_ok=True)
    os.environ["TEMP_DIR"] = str(folder)
    suite.Barrier.barrier_id = 0
    suite.INIT_METHOD = f"file://{folder}/again"
    case = Suite(name)
    case.file_name = str(folder / "store")
    dist.init_process_group(
        suite.BACKEND,
        init_method=case.init_method,
        rank=RANK,
        world_size=WORLD_SIZE,
        timeout=timedelta(seconds=suite.CUSTOM_PG_TIMEOUT.get(name, suite.default_pg_timeout)),
    )
    case._barrier(WORLD_SIZE)
    result, reason = "pass", ""
    try:
        getattr(case, name)()
    except unittest.SkipTest as skip:
        result, reason = "skip", str(skip)
    except SystemExit as end:
        result, reason = "skip", skip_reason(end)
    case._barrier(WORLD_SIZE)
    dist.destroy_process_group()
    return result, reason


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    names = (folder / "tests").read_text().split()
    for number, name in enumerate(names):
        try:
            result, reason = run_test(name, folder / f"{number}")
        except BaseException as error:  # noqa: BLE001  SystemExit, too
            result, reason = "fail", f"{type(error).__name__}: {error}"
        written = folder / f".{number}.{RANK}"
        written.write_text(json.dumps([time.monotonic(), result, reason]))
        written.rename(folder / f"{number}.{RANK}")
        if result == "fail":
            os._exit(1)  # its peers may wait for it, and the launcher ends them
    # The first that ends without MPI_Finalize ends the others.
    while not all((folder / f"{len(names) - 1}.{rank}").exists() for rank in range(WORLD_SIZE)):
        time.sleep(0.01)
    os._exit(0)  # nothing that the tests have left may keep it


if __name__ == "__main__":
    main()
