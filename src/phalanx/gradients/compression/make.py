"""Construction of a compressor by its name."""

from __future__ import annotations

import torch

from phalanx.gradients.compression.codec import BlockInt8, Cast, ScaledFloat16
from phalanx.gradients.compression.codec_compressor import CodecCompressor
from phalanx.gradients.compression.compressor import Compressor, Uncompressed
from phalanx.gradients.compression.powersgd import PowerSGD
from phalanx.gradients.compression.topk import TopK

NAMES = ("none", "fp16", "bf16", "int8", "powersgd", "topk")


def make_compressor(
    name: str, *, powersgd_rank: int = 4, topk_fraction: float = 0.01, seed: int = 0
) -> Compressor:
    """Return the compressor `name`, one of NAMES. seed: of PowerSGD's first factors, the same on
    every rank.

    Raises: ValueError for another name, a rank below 1, a fraction outside (0, 1].
    """
    if powersgd_rank < 1:
        raise ValueError(f"the rank must be at least 1, not {powersgd_rank}")
    if not 0 < topk_fraction <= 1:
        raise ValueError(f"the fraction must be in (0, 1], not {topk_fraction}")
    match name:
        case "none":
            return Uncompressed()
        case "fp16":
            return CodecCompressor(name, ScaledFloat16())
        case "bf16":
            return CodecCompressor(name, Cast(torch.bfloat16))
        case "int8":
            return CodecCompressor(name, BlockInt8())
        case "powersgd":
            return PowerSGD(powersgd_rank, seed)
        case "topk":
            return TopK(topk_fraction)
        case _:
            raise ValueError(f"{name!r} is not a compressor; there are {', '.join(NAMES)}")
