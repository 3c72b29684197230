"""Checks of accelerators: what PyTorch sees, and how their tensors reach MPI, asked and tried."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from typing import Any

from phalanx.comm.gpu import VARIABLE
from phalanx.doctor.examine import Finding, ok, problem, warning
from phalanx.doctor.mpi import PROBE_TIMEOUT_S, parse_answers, reason, run_probe
from phalanx.jobs.installation import find_mpi

PROGRAM = "phalanx.torch_backend.device_probe"
RANKS = 2
_CRASH = re.compile(r"segmentation fault|bus error|signal:? \d+", re.IGNORECASE)


def check_gpu() -> list[Finding]:
    import torch

    driver = shutil.which("nvidia-smi") is not None
    return [judge_gpu(device_names(), torch.version.cuda, has_driver=driver)]


def device_names() -> list[str]:
    """Return the names of the accelerators that PyTorch sees, of any vendor."""
    import torch

    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return []
    name_of = getattr(torch.get_device_module(kind), "get_device_name", None)
    numbers = range(torch.accelerator.device_count())
    return [f"{kind.type}:{n} {name_of(n) if name_of else ''}".strip() for n in numbers]


def judge_gpu(names: list[str], cuda: str | None, *, has_driver: bool) -> Finding:
    """Judge the GPUs. names: usable by PyTorch; cuda: version it was built for, None: CPU build."""
    if names:
        return ok("GPU", ", ".join(names))
    if has_driver and cuda is None:
        detail = "an NVIDIA driver is installed, but PyTorch is a CPU build"
        return warning("GPU", detail, "see pytorch.org/get-started for a CUDA build")
    if has_driver:
        detail = f"an NVIDIA driver is installed, but PyTorch (CUDA {cuda}) finds no device"
        return warning("GPU", detail, "run nvidia-smi and compare its CUDA version")
    return ok("GPU", "none; ranks compute on the CPU")


def check_path() -> list[Finding]:
    """Sum tensors of the devices on two ranks as a program would; and by giving MPI their
    addresses, whatever it says. In jobs of their own: an MPI may crash on an address."""
    names = device_names()
    if not names:
        return []
    installation = find_mpi(os.environ)
    taken = run_probe(installation, RANKS, PROGRAM)
    is_direct = any(answer["path"] == "direct" for answer in parse_answers(taken[1]))
    tried = taken if is_direct else run_probe(installation, RANKS, PROGRAM, {VARIABLE: "1"})
    return judge_path(taken, tried, num_devices=len(names))


def judge_path(
    taken: tuple[int | None, str], tried: tuple[int | None, str], *, num_devices: int
) -> list[Finding]:
    """Judge awareness and path by exit code (None: timeout) and output of the probe of devices.

    taken: as the environment has it; tried: where MPI gets addresses, the same if `taken` does.
    """
    answers = parse_answers(taken[1])
    if not answers:
        return [problem("GPU path", f"{RANKS} ranks cannot be tested: {reason(taken[1])}")]
    device, path = answers[0]["device"], answers[0]["path"]
    what = describe_trial(tried)
    name = "MPI on the GPU"
    if path == "direct" and what is not None:
        mend = f"{VARIABLE}=0, so tensors go through host memory"
        return [problem(name, f"it is marked GPU-aware, but {what} {device}", mend)]
    if path == "direct":
        aware = ok(name, f"tested: it accepts addresses of {device}, as it reports")
    elif what is None:
        text = f"tested: it accepts addresses of {device}, unreported; set {VARIABLE}=1 to use that"
        aware = ok(name, text)
    else:
        aware = ok(name, f"tested: it {what} {device}")
    if "wrong" not in answers[-1] or answers[-1]["wrong"]:
        why = "sums are wrong" if "wrong" in answers[-1] else reason(taken[1])
        return [aware, problem("GPU path", f"through host memory: {why}")]
    return [aware, ok("GPU path", describe_path(answers[-1], num_devices))]


def describe_trial(tried: tuple[int | None, str]) -> str | None:
    """Return what MPI does with addresses of a device; None: it takes them."""
    code, output = tried
    last: Sequence[dict[str, Any]] = parse_answers(output)[-1:]
    if last and "wrong" in last[0]:
        return "computes wrong sums at addresses of" if last[0]["wrong"] else None
    if code is None:
        return f"does not return within {PROBE_TIMEOUT_S:g} s from an address of"
    crash = _CRASH.search(output)
    how = f"crashes ({crash[0].lower()})" if crash else f"fails ({reason(output)})"
    return f"{how} on an address of"


def describe_path(answer: dict[str, Any], num_devices: int) -> str:
    """Return the path of a collective of GPU tensors, and its rate."""
    to_mpi = {"direct": "passed to MPI directly", "host": "through pinned host memory"}
    path, rate = to_mpi[answer["path"]], answer["sum_bytes_per_s"] / 1e9
    if answer["nccl"] and num_devices >= RANKS:
        path = f"phalanx.start: NCCL, one GPU per rank; backend mpi: {path}"
    copy = answer["copy_bytes_per_s"] / 1e9
    return f"{path}: {rate:.2f} GB/s in a sum over {RANKS} ranks; copy to the host {copy:.2f} GB/s"
