"""Check of the GPUs that PyTorch can use."""

from __future__ import annotations

import shutil

from phalanx.doctor.finding import Finding, ok, warning


def check_gpu() -> list[Finding]:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    driver = shutil.which("nvidia-smi") is not None
    return [judge_gpu(names, torch.version.cuda, has_driver=driver)]


def judge_gpu(names: list[str], cuda: str | None, *, has_driver: bool) -> Finding:
    """Judge the GPUs. names: usable by PyTorch; cuda: version it was built for, None: CPU build."""
    if names:
        return ok("GPU", ", ".join(names))
    if has_driver and cuda is None:
        detail = "there is an NVIDIA driver, but PyTorch is a CPU build"
        return warning("GPU", detail, "see pytorch.org/get-started for a CUDA build")
    if has_driver:
        detail = f"there is an NVIDIA driver, but PyTorch (CUDA {cuda}) finds no device"
        return warning("GPU", detail, "nvidia-smi, then compare its CUDA version")
    return ok("GPU", "none; ranks compute on the CPU")
