"""Options that make no study are refused, by every kind, and named."""

from typing import Any

import pytest

from phalanx.errors import UserError
from phalanx.study.compression import CompressionConfig
from phalanx.study.io import IoStudyConfig
from phalanx.study.large_batch import LargeBatchConfig
from phalanx.study.parallelism import ParallelismConfig
from phalanx.study.scaling import ScalingConfig
from phalanx.study.survival import SurvivalConfig


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (ScalingConfig, {"seeds": (1, 1)}, "--seeds has a value twice"),
        (ScalingConfig, {"models": ()}, "--models needs at least one value"),
        (ParallelismConfig, {"ranks": (2, 2)}, "--ranks has a value twice"),
        (ParallelismConfig, {"ranks": (0,)}, "--ranks must be at least 1, not 0"),
        (ParallelismConfig, {"models": ()}, "--models needs at least one value"),
        (
            ParallelismConfig,
            {"schemes": ("mpi", "rings")},
            "--schemes rings is not one of sequential, mpi, library",
        ),
        (CompressionConfig, {"links": ("1ms",)}, "--links 1ms has no bandwidth"),
        (CompressionConfig, {"links": ("fast",)}, "neither a bandwidth nor a latency"),
        (CompressionConfig, {"compressors": ()}, "--compressors needs at least one value"),
        (CompressionConfig, {"seeds": (1, 1)}, "--seeds has a value twice: 1 1"),
        (CompressionConfig, {"ranks": 1}, "--ranks must be at least 2"),
        (CompressionConfig, {"steps": 2}, "--steps must be at least 8"),
        (LargeBatchConfig, {"seeds": ()}, "--seeds needs at least one"),
        (
            LargeBatchConfig,
            {"batch_sizes": (128, 128)},
            "--batch-sizes has a value twice: 128 128",
        ),
        (LargeBatchConfig, {"batch_sizes": (0,)}, "--batch-sizes must be at least 1, not 0"),
        (SurvivalConfig, {"seeds": ()}, "--seeds needs at least one"),
        (SurvivalConfig, {"ranks": 1}, "--ranks must be at least 2, not 1"),
        (SurvivalConfig, {"spares": -1}, "--spares must be at least 0, not -1"),
        (SurvivalConfig, {"fault_s": -1.0}, "--fault-s must be positive"),
        (SurvivalConfig, {"ranks": 9}, "--ranks 9, --micro-batches 8, .*at least the one before"),
        (IoStudyConfig, {"compute_scales": (0.0,)}, "--compute-scales must be positive, not 0"),
        (IoStudyConfig, {"formats": ()}, "--formats needs at least one value"),
        (IoStudyConfig, {"depth": (1, 1)}, "--depth has a value twice: 1 1"),
        (IoStudyConfig, {"profiles": ("a/x.yaml", "b/x.yaml")}, "their runs would share a name"),
    ],
)
def test_what_makes_no_study_is_refused(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        kind(**options)
