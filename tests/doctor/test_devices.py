"""What is said about tensors of a device, by the output of the probe."""

import json
from typing import Any

import pytest

from phalanx.doctor.devices import judge_path

START = {"world_size": 2, "device": "cuda:0", "path": "host", "nccl": False}
END = START | {"wrong": 0, "sum_bytes_per_s": 2.5e9, "copy_bytes_per_s": 2e10}
CRASHED = (139, json.dumps(START) + "\n*** Process received signal ***\nSegmentation fault (11)")


def ran(**changes: Any) -> tuple[int, str]:
    return 0, json.dumps(START | changes) + json.dumps(END | changes)


@pytest.mark.parametrize(
    ("taken", "tried", "statuses", "text"),
    [
        (ran(), CRASHED, ["ok", "ok"], "tested: it crashes (segmentation fault) on an address of"),
        (
            ran(),
            ran(path="direct"),
            ["ok", "ok"],
            "unreported; set PHALANX_GPU_AWARE=1 to use that",
        ),
        (
            ran(),
            ran(wrong=3),
            ["ok", "ok"],
            "tested: it computes wrong sums at addresses of cuda:0",
        ),
        (ran(), (None, ""), ["ok", "ok"], "does not return within 40 s from an address of"),
        (ran(), (1, "an error"), ["ok", "ok"], "tested: it fails (an error) on an address of"),
        (ran(wrong=1), CRASHED, ["ok", "problem"], "through host memory: sums are wrong"),
        (CRASHED, CRASHED, ["ok", "problem"], "through host memory: Segmentation fault"),
        ((1, "no MPI: an error"), CRASHED, ["problem"], "2 ranks cannot be tested: no MPI: an"),
    ],
)
def test_what_is_tried_is_said(
    taken: tuple[int, str], tried: tuple[int | None, str], statuses: list[str], text: str
) -> None:
    found = judge_path(taken, tried, num_devices=1)
    assert [finding.status for finding in found] == statuses
    assert any(text in finding.detail for finding in found), found


@pytest.mark.parametrize(
    ("tried", "status", "text"),
    [
        (ran(path="direct"), "ok", "tested: it accepts addresses of cuda:0, as it reports"),
        (
            ran(path="direct", wrong=2),
            "problem",
            "GPU-aware, but computes wrong sums at addresses of",
        ),
        (
            (139, json.dumps(START | {"path": "direct"}) + "Segmentation fault"),
            "problem",
            "it is marked GPU-aware, but crashes (segmentation fault) on an address of cuda:0",
        ),
    ],
)
def test_a_false_promise_is_a_problem(tried: tuple[int, str], status: str, text: str) -> None:
    first, *_ = judge_path(tried, tried, num_devices=1)
    assert first.status == status and text in first.detail
    assert (first.mend is not None) == (status == "problem")


def test_nccl_sums_where_each_rank_has_a_gpu() -> None:
    taken = ran(nccl=True)
    details = [judge_path(taken, CRASHED, num_devices=n)[-1].detail for n in (1, 2)]
    assert details[0] == (
        "through pinned host memory: 2.50 GB/s in a sum over 2 ranks; copy to the host 20.00 GB/s"
    )
    assert details[1] == (f"phalanx.start: NCCL, one GPU per rank; backend mpi: {details[0]}")
